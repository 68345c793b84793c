// Checkpoints, evaluations, traces, and the engine's sleeps.
import { bytes, clockTime, dateTime, seconds, value as number } from "../../data/format";
import type { JobView } from "../../data/job";
import { Empty, Section } from "../../ui/parts";

const MOST = 100;

function Checkpoints({ view }: { view: JobView }) {
  const saved = view.checkpoints.slice(-MOST).reverse();
  if (saved.length === 0) return <Empty title="No checkpoint has been written." />;
  return (
    <div class="scroll">
      <table class="plain">
        <thead>
          <tr>
            <th class="num">Step</th>
            <th>At</th>
            <th class="num">Bytes</th>
            <th class="num">Took</th>
            <th class="num">Training stood still</th>
            <th>Directory</th>
          </tr>
        </thead>
        <tbody>
          {saved.map((event) => (
            <tr key={event.revision}>
              <th scope="row" class="num">
                {event.checkpoint?.step}
              </th>
              <td title={dateTime(event.time)}>{clockTime(event.time)}</td>
              <td class="num">{bytes(event.checkpoint?.bytes)}</td>
              <td class="num">{seconds(event.checkpoint?.seconds)}</td>
              <td class="num">{seconds(event.checkpoint?.stallSeconds ?? 0)}</td>
              <td class="path">{event.checkpoint?.path}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Evaluations({ view }: { view: JobView }) {
  const { evals } = view;
  if (evals.length === 0) return <Empty title="No evaluation yet." />;
  const names = [
    "loss",
    ...evals
      .names()
      .filter((name) => name !== "loss" && name !== "seconds")
      .sort(),
    "seconds",
  ];
  const lines = names.map((name) => evals.line(name).mean);
  const rows = evals
    .xs("step")
    .map((step, i) => ({ step, i }))
    .slice(-MOST)
    .reverse();
  return (
    <div class="scroll">
      <table class="plain">
        <thead>
          <tr>
            <th class="num">Step</th>
            {names.map((name) => (
              <th key={name} class="num">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ step, i }) => (
            <tr key={i}>
              <th scope="row" class="num">
                {step}
              </th>
              {lines.map((line, column) => (
                <td key={names[column]} class="num">
                  {number(line[i])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Generations({ view }: { view: JobView }) {
  if (view.generations.length === 0) return null;
  const mean = (isWake: boolean) => {
    const those = view.generations.filter(
      (event) => (event.generation?.isWake ?? false) === isWake,
    );
    return (
      those.reduce((sum, event) => sum + (event.generation?.seconds ?? 0), 0) / (those.length || 1)
    );
  };
  return (
    <Section title="The generation engine">
      <p class="meta">
        Of its last {view.generations.length} transitions, waking took {seconds(mean(true))} and
        going to sleep {seconds(mean(false))} on average.
      </p>
    </Section>
  );
}

function Traces({ view }: { view: JobView }) {
  const saved = view.traces.slice(-MOST).reverse();
  if (saved.length === 0) return null;
  return (
    <Section title="Traces">
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th class="num">Step</th>
              <th class="num">Rank</th>
              <th>At</th>
              <th>File, for Perfetto or chrome://tracing</th>
            </tr>
          </thead>
          <tbody>
            {saved.map((event) => (
              <tr key={event.revision}>
                <th scope="row" class="num">
                  {event.trace?.step}
                </th>
                <td class="num">{event.trace?.rank ?? 0}</td>
                <td title={dateTime(event.time)}>{clockTime(event.time)}</td>
                <td class="path">{event.trace?.path}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

export function Events({ view }: { view: JobView }) {
  return (
    <>
      <Section title="Checkpoints">
        <Checkpoints view={view} />
      </Section>
      <Section title="Evaluations">
        <Evaluations view={view} />
      </Section>
      <Traces view={view} />
      <Generations view={view} />
    </>
  );
}
