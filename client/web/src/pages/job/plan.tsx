// What the planner chose, and what a rank was rehearsed to need.
import type { FieldChange, JobEvent, Rehearsal } from "../../api/types";
import { bytes, clockTime, count, percent, seconds } from "../../data/format";
import type { JobView } from "../../data/job";
import { Empty, Section, Stat } from "../../ui/parts";

function Changes({ changes }: { changes: readonly FieldChange[] }) {
  return (
    <table class="plain narrow">
      <thead>
        <tr>
          <th>Field</th>
          <th>Set to</th>
        </tr>
      </thead>
      <tbody>
        {changes.map((change) => (
          <tr key={change.field}>
            <th scope="row">
              <code>{change.field}</code>
            </th>
            <td>
              <code>{change.value}</code>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Chosen({ event }: { event: JobEvent }) {
  const plan = event.plan!;
  const peak = Number(plan.rehearsal?.peakBytes ?? 0);
  const memory = Number(plan.deviceMemoryBytes ?? 0);
  return (
    <article class="chosen">
      <p>
        <strong>{plan.reason}</strong>
      </p>
      <p class="meta">
        {clockTime(event.time)} · a rank then needs {bytes(peak)}
        {memory > 0 && ` of ${bytes(memory)} (${percent(peak / memory)})`}
        {plan.timeRatio
          ? ` · a step takes ${plan.timeRatio.toFixed(2)} times as long as written`
          : ""}
      </p>
      <Changes changes={plan.changes ?? []} />
    </article>
  );
}

function Need({ rehearsal, view }: { rehearsal: Rehearsal; view: JobView }) {
  const peak = view.job.peak;
  const cost = rehearsal.cost;
  return (
    <>
      <dl class="stats inner">
        <Stat
          label="Peak of a rank"
          hint={
            rehearsal.assumesFullRows
              ? "a bound: rows taken as full"
              : `rank ${rehearsal.rank ?? 0} of ${rehearsal.worldSize ?? 1}`
          }
        >
          {bytes(rehearsal.peakBytes)}
        </Stat>
        {peak && (
          <Stat
            label="Measured"
            hint={`${percent(Number(peak.measuredBytes ?? 0) / Number(peak.predictedBytes || 1))} of it, rank ${peak.rank ?? 0}`}
          >
            {bytes(peak.measuredBytes)}
          </Stat>
        )}
        <Stat label="Parameters" hint={`${count(rehearsal.numTrainableParameters)} trained`}>
          {count(rehearsal.numParameters)}
        </Stat>
        <Stat label="Tokens of a step">{count(rehearsal.numTokens)}</Stat>
      </dl>
      <div class="pair scroll">
        {cost && (
          <table class="plain narrow">
            <caption>Work of one step of one rank</caption>
            <tbody>
              <tr>
                <th scope="row">Floating-point operations</th>
                <td class="num">{count(cost.flops)}</td>
              </tr>
              <tr>
                <th scope="row">Bytes read and written on the device</th>
                <td class="num">{bytes(cost.memoryBytes)}</td>
              </tr>
              <tr>
                <th scope="row">Bytes received from other ranks</th>
                <td class="num">{bytes(cost.linkBytes)}</td>
              </tr>
              <tr>
                <th scope="row">Bytes between device and host</th>
                <td class="num">{bytes(cost.hostBytes)}</td>
              </tr>
              <tr>
                <th scope="row">Operators</th>
                <td class="num">{count(cost.numOperators)}</td>
              </tr>
              {cost.seconds !== undefined && (
                <tr>
                  <th scope="row">Predicted time</th>
                  <td class="num">{seconds(cost.seconds)}</td>
                </tr>
              )}
            </tbody>
          </table>
        )}
        {(rehearsal.phases ?? []).length > 0 && (
          <table class="plain narrow">
            <caption>Most bytes at once</caption>
            <thead>
              <tr>
                <th>Phase</th>
                <th class="num">Rehearsed</th>
                <th class="num">Measured</th>
              </tr>
            </thead>
            <tbody>
              {rehearsal.phases!.map((phase) => {
                const measured = view.ranks
                  .get(rehearsal.rank ?? 0)
                  ?.last.phases?.find((other) => other.phase === phase.phase);
                return (
                  <tr key={phase.phase}>
                    <th scope="row">{phase.phase}</th>
                    <td class="num">{bytes(phase.peakBytes)}</td>
                    <td class="num">{measured ? bytes(measured.peakBytes) : ""}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        )}
      </div>
    </>
  );
}

export function Plan({ view }: { view: JobView }) {
  const { job } = view;
  const plans = view.milestones.filter((event) => event.plan !== undefined);
  return (
    <>
      <Section title="Rehearsal">
        {job.rehearsal ? (
          <Need rehearsal={job.rehearsal} view={view} />
        ) : (
          <Empty title="The job was not rehearsed.">
            <p>No agent could be asked when it was submitted.</p>
          </Empty>
        )}
      </Section>
      <Section title="What the planner set">
        {plans.map((event) => (
          <Chosen key={event.revision} event={event} />
        ))}
        {plans.length === 0 &&
          ((job.planned ?? []).length > 0 ? (
            <Changes changes={job.planned!} />
          ) : (
            <p class="meta">
              Nothing: the job runs as it was written. <code>tessera plan job.yaml</code> shows what
              other techniques would save.
            </p>
          ))}
      </Section>
    </>
  );
}
