// Each rank: where it runs, how far it is, what it holds.
import { useMemo } from "preact/hooks";

import { bytes, duration, percent, seconds } from "../../data/format";
import type { JobView } from "../../data/job";
import { lags } from "../../data/ranks";
import { Chart } from "../../ui/chart";
import { Empty, Progress, Section } from "../../ui/parts";
import { Collectives } from "./collectives";

// Of a step, that it is worth a word.
const MUCH_WAITING = 0.15;
const RECENT = 50;

function Waiting({ view }: { view: JobView }) {
  const { steps } = view;
  const wait = steps.line("time/communication").mean;
  const total = steps.line("time/total").mean;
  const share = wait.map((value, i) => (value === null || !total[i] ? null : value / total[i]!));
  const mean =
    (steps.recentMean("time/communication", RECENT) ?? 0) /
    (steps.recentMean("time/total", RECENT) || 1);
  return (
    <div class="panel chart-panel">
      <Chart
        title="Share of a step in which rank 0 waits for others"
        xs={steps.xs("step")}
        axis="step"
        curves={[{ label: "waiting", color: "c7", values: share }]}
        format={percent}
        bottom={0}
        top={0.1}
        note={
          mean > MUCH_WAITING
            ? `Rank 0 waited for ${percent(mean)} of the time of the last steps: another rank is slower, or the links between them are.`
            : "Little waiting: no rank holds up the others."
        }
      />
    </div>
  );
}

// How long ranks are busy with a step: the one that is so for longest sets the pace.
function Skew({ view }: { view: JobView }) {
  const { steps } = view;
  const lines = ["max", "median", "min"].map((name) => steps.line(`busy/${name}`).mean);
  const straggler = view.straggler;
  return (
    <div class="panel chart-panel">
      <Chart
        title="Busy in a step, over the ranks"
        xs={steps.xs("step")}
        axis="step"
        curves={[
          { label: "slowest", color: "c4", values: lines[0]! },
          { label: "in the middle", color: "c1", values: lines[1]! },
          { label: "fastest", color: "c3", values: lines[2]! },
        ]}
        format={seconds}
        bottom={0}
        note={
          straggler
            ? "The others wait for the slowest rank."
            : "A rank is a straggler once it is busy for 20% longer than the one in the middle, 6 times of 8."
        }
      />
    </div>
  );
}

export function Ranks({ view }: { view: JobView }) {
  const ranks = [...view.ranks.values()];
  const known = useMemo(() => new Map(lags(ranks).map((lag) => [lag.rank, lag])), [ranks]);
  const placed = new Map(
    (view.job.placements ?? []).map((placement) => [placement.rank ?? 0, placement]),
  );
  const numbers = [...new Set([...known.keys(), ...placed.keys()])].sort((a, b) => a - b);
  if (numbers.length === 0) return <Empty title="No rank has started." />;
  const most = Math.max(1, ...ranks.map((rank) => Number(rank.last.peakBytes ?? 0)));
  const straggler = view.straggler;
  const times = view.job.step?.rankTimes ?? [];
  const late = [...known.values()].filter((lag) => lag.isStraggler);
  return (
    <>
      {late.length > 0 && (
        <p class="warn" role="status">
          {late
            .map(
              (lag) =>
                `Rank ${lag.rank} is ${lag.steps} steps behind and silent for ${duration(lag.silentSeconds)}.`,
            )
            .join(" ")}
        </p>
      )}
      {straggler && (
        <p class="warn" role="status">
          Rank {straggler.rank ?? 0} on {straggler.node} is a straggler: busy for{" "}
          {seconds(straggler.busySeconds)} of a step, the rank in the middle for{" "}
          {seconds(straggler.medianBusySeconds)}.
        </p>
      )}
      <Collectives view={view} />
      {view.steps.has("busy/max") && <Skew view={view} />}
      {numbers.length > 1 && view.steps.has("time/communication") && <Waiting view={view} />}
      <Section title="Ranks">
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th class="num">Rank</th>
                <th>Runs on</th>
                <th class="num">Step told</th>
                <th class="num">Behind</th>
                <th class="num">Busy</th>
                <th class="num">Waits</th>
                <th class="num">Told last</th>
                <th class="num">Memory now</th>
                <th>Peak</th>
              </tr>
            </thead>
            <tbody>
              {numbers.map((number) => {
                const lag = known.get(number);
                const last = view.ranks.get(number)?.last;
                const place = placed.get(number);
                return (
                  <tr
                    key={number}
                    class={lag?.isStraggler || (straggler && (straggler.rank ?? 0) === number) ? "late" : ""}
                  >
                    <th scope="row" class="num">
                      {number}
                    </th>
                    <td>{place ? `${place.node}, device ${place.deviceIndex ?? 0}` : ""}</td>
                    <td class="num">{lag?.step ?? ""}</td>
                    <td class="num">{lag ? (lag.steps === 0 ? "–" : `${lag.steps} steps`) : ""}</td>
                    <td class="num">
                      {times[number] ? seconds(times[number].busySeconds ?? 0) : ""}
                    </td>
                    <td class="num">
                      {times[number] ? seconds(times[number].waitSeconds ?? 0) : ""}
                    </td>
                    <td class="num">
                      {lag
                        ? lag.silentSeconds < 1
                          ? "latest"
                          : `${duration(lag.silentSeconds)} before`
                        : ""}
                    </td>
                    <td class="num">{last ? bytes(last.currentBytes) : ""}</td>
                    <td class="peak">
                      {last && (
                        <>
                          <Progress
                            share={Number(last.peakBytes ?? 0) / most}
                            label={`Peak of rank ${number}`}
                          />
                          <small>{bytes(last.peakBytes)}</small>
                        </>
                      )}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
        <p class="meta">
          A rank tells its step with its memory, at most once a second, so a step behind is nothing.
          Busy and waiting are of a step, by the last step event.
        </p>
      </Section>
    </>
  );
}
