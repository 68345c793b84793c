// Where the time of a step goes, and how long the job was in each state.
import { clockTime, dateTime, duration, epoch, percent, seconds } from "../../data/format";
import { isOver, type JobView, toneOf } from "../../data/job";
import { stack } from "../../data/stack";
import { useNow } from "../../poll";
import { Chart, type Curve, Key } from "../../ui/chart";
import { Empty, Section } from "../../ui/parts";

const PHASES: readonly (readonly [string, string, string])[] = [
  ["data", "data", "c9"],
  ["generation", "generation", "c6"],
  ["reward", "judging", "c8"],
  ["forward", "forward", "c1"],
  ["backward", "backward", "c4"],
  ["communication", "waiting for other ranks", "c7"],
  ["optimizer", "optimizer", "c3"],
];
const RECENT = 50;

function Steps({ view }: { view: JobView }) {
  const { steps } = view;
  const phases = PHASES.filter(([name]) =>
    steps.line(`time/${name}`).max.some((value) => (value ?? 0) > 0),
  );
  const lines = phases.map(([name]) => steps.line(`time/${name}`).mean);
  const total = steps.line("time/total").mean;
  const rest = total.map((all, i) =>
    all === null ? null : Math.max(0, all - lines.reduce((sum, line) => sum + (line[i] ?? 0), 0)),
  );
  const sums = stack([...lines, rest]);
  const named = [
    ...phases.map(([, label, color]) => ({ label, color })),
    { label: "other", color: "c11" },
  ];
  const curves: Curve[] = named.map((phase, i) => ({
    ...phase,
    values: sums[i]!,
    shown: [...lines, rest][i]!,
  }));
  const recent = [...phases.map(([name]) => steps.recentMean(`time/${name}`, RECENT) ?? 0)];
  const whole = steps.recentMean("time/total", RECENT) ?? 0;
  recent.push(Math.max(0, whole - recent.reduce((sum, part) => sum + part, 0)));
  return (
    <>
      <div class="panel chart-panel">
        <Chart
          title="A step on rank 0"
          xs={steps.xs("step")}
          axis="step"
          curves={curves}
          format={seconds}
          height={280}
          stacked
          bottom={0}
        />
      </div>
      <Section title="The last steps">
        <div class="bars">
          <div class="bar-row">
            <span>{seconds(whole)}</span>
            <div
              class="bar-parts"
              role="img"
              aria-label={named
                .map((phase, i) => `${phase.label} ${percent(recent[i]! / whole)}`)
                .join(", ")}
            >
              {named.map((phase, i) => (
                <i
                  key={phase.label}
                  title={phase.label}
                  style={{
                    width: `${(recent[i]! / whole) * 100}%`,
                    "--key": `var(--${phase.color})`,
                  }}
                />
              ))}
            </div>
          </div>
        </div>
        <table class="plain narrow">
          <thead>
            <tr>
              <th>Phase</th>
              <th class="num">Mean</th>
              <th class="num">Share</th>
            </tr>
          </thead>
          <tbody>
            {named.map((phase, i) => (
              <tr key={phase.label}>
                <th scope="row">
                  <Key color={phase.color} />
                  {phase.label}
                </th>
                <td class="num">{seconds(recent[i])}</td>
                <td class="num">{percent(recent[i]! / whole)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Section>
    </>
  );
}

interface Stay {
  state: string;
  from: number;
  until: number;
  reason: string;
  since: string | undefined;
}

function stays(view: JobView, now: number): Stay[] {
  const changes = view.milestones.filter((event) => event.state !== undefined);
  return changes.map((event, i) => {
    const next = changes[i + 1];
    const from = epoch(event.time) ?? 0;
    const state = event.state!.state ?? "";
    const until = next ? (epoch(next.time) ?? from) : isOver(state) ? from : now / 1000;
    return { state, from, until, reason: event.state!.reason ?? "", since: event.time };
  });
}

function States({ view, now }: { view: JobView; now: number }) {
  const all = stays(view, now);
  if (all.length === 0) return null;
  const begin = all[0]!.from;
  const whole = Math.max(all.at(-1)!.until - begin, 1e-3);
  return (
    <Section title="Life of the job">
      <div
        class="bar-parts life"
        role="img"
        aria-label={all
          .map((stay) => `${stay.state} for ${duration(stay.until - stay.from)}`)
          .join(", ")}
      >
        {all.map((stay, i) => (
          <i
            key={i}
            class={toneOf(stay.state)}
            title={`${stay.state.toLowerCase()}: ${duration(stay.until - stay.from)}`}
            style={{ width: `${((stay.until - stay.from) / whole) * 100}%` }}
          />
        ))}
      </div>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th>State</th>
              <th>Since</th>
              <th class="num">For</th>
              <th>Why</th>
            </tr>
          </thead>
          <tbody>
            {all.map((stay, i) => (
              <tr key={i}>
                <th scope="row">
                  <i class={`dot ${toneOf(stay.state)}`} />
                  {stay.state.toLowerCase()}
                </th>
                <td title={dateTime(stay.since)}>{clockTime(stay.since)}</td>
                <td class="num">
                  {i === all.length - 1 && isOver(stay.state)
                    ? ""
                    : seconds(stay.until - stay.from)}
                </td>
                <td>{stay.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

export function Time({ view }: { view: JobView }) {
  const now = useNow();
  return (
    <>
      {view.steps.has("time/total") ? <Steps view={view} /> : <Empty title="No step yet." />}
      <States view={view} now={now} />
    </>
  );
}
