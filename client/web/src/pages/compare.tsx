// Curves of several jobs on top of each other.
import { useState } from "preact/hooks";

import { fetchHistory, fetchJob, fetchJobs } from "../api/client";
import type { Job } from "../api/types";
import { count, duration, epoch, title, value as number } from "../data/format";
import { isOver, methodOf } from "../data/job";
import { align, smooth } from "../data/stack";
import { type Axis, Thin } from "../data/thin";
import { usePoll } from "../poll";
import { go, Link } from "../router";
import { Chart, type Curve, Key } from "../ui/chart";
import { Badge, Choice, Empty, PALETTE, Trouble } from "../ui/parts";
import { namesOf } from "./job/curves";

const MAX_JOBS = 8;
const POINTS = 400;
const SHOWN_FIRST = [
  "loss",
  "eval loss",
  "reward",
  "grad_norm",
  "learning_rate",
  "tokens_per_second",
];

interface Run {
  job: Job;
  steps: Thin;
  evals: Thin;
}

// What has ended is asked for once.
const done = new Map<string, Run>();

async function fetchRun(id: string, signal: AbortSignal): Promise<Run> {
  const known = done.get(id);
  if (known) return known;
  const job = await fetchJob(id, signal);
  const history = await fetchHistory(id, { points: POINTS }, signal);
  const run = { job, steps: Thin.from(history.steps), evals: Thin.from(history.evals) };
  if (isOver(job.state)) done.set(id, run);
  return run;
}

const colorOf = (index: number) => PALETTE[index % PALETTE.length]!;

function curvesOf(
  runs: readonly Run[],
  name: string,
  axis: Axis,
  keep: number,
): { xs: number[]; curves: Curve[] } {
  const isEval = name.startsWith("eval ");
  const metric = isEval ? name.slice(5) : name;
  const series = runs.map((run) => {
    const thin = isEval ? run.evals : run.steps;
    // Across time, each from its own start.
    const begin = epoch(run.job.startTime) ?? 0;
    const xs = axis === "step" ? thin.xs("step") : thin.xs("time").map((time) => time - begin);
    const line = thin.line(metric).mean;
    return { xs, ys: keep > 0 && !isEval ? smooth(line, keep) : line };
  });
  const [xs, ...rows] = align(series);
  const curves = rows.map((values, i): Curve => ({
    label: runs[i]!.job.id,
    color: colorOf(i),
    values,
  }));
  return { xs, curves: curves.filter((curve) => curve.values.some((value) => value !== null)) };
}

function Chosen({ runs, drop }: { runs: readonly Run[]; drop: (id: string) => void }) {
  return (
    <div class="panel flush scroll">
      <table class="plain compared">
        <thead>
          <tr>
            <th>Job</th>
            <th>State</th>
            <th>Method</th>
            <th class="num">Steps</th>
            <th class="num">Loss</th>
            <th class="num">Eval loss</th>
            <th class="num">Tokens</th>
            <th class="num">Ran for</th>
            <th>
              <span class="unseen">Leave out</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run, i) => (
            <tr key={run.job.id}>
              <th scope="row">
                <Key color={colorOf(i)} />
                <Link to={`/jobs/${run.job.id}`}>{run.job.id}</Link>
              </th>
              <td>
                <Badge state={run.job.state} />
              </td>
              <td>{methodOf(run.job)}</td>
              <td class="num">{run.job.step?.step ?? 0}</td>
              <td class="num">{number(run.steps.last("loss"))}</td>
              <td class="num">{number(run.evals.last("loss"))}</td>
              <td class="num">{count(run.job.step?.numTokens)}</td>
              <td class="num">
                {duration(
                  (epoch(run.job.endTime) ?? Date.now() / 1000) -
                    (epoch(run.job.startTime) ?? Number.NaN),
                )}
              </td>
              <td>
                <button
                  type="button"
                  class="link"
                  aria-label={`Leave out ${run.job.id}`}
                  onClick={() => drop(run.job.id)}
                >
                  ✕
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Picker({ ids, add }: { ids: readonly string[]; add: (id: string) => void }) {
  const { value, error } = usePoll("recent", 5000, (signal) => fetchJobs({ pageSize: 50 }, signal));
  const others = (value?.jobs ?? []).filter((job) => !ids.includes(job.id) && job.step);
  if (error) return null;
  return (
    <label>
      Add{" "}
      <select
        value=""
        disabled={ids.length >= MAX_JOBS || others.length === 0}
        onChange={(event) => {
          const id = event.currentTarget.value;
          event.currentTarget.value = "";
          if (id) add(id);
        }}
      >
        <option value="">{others.length === 0 ? "no other job has made a step" : "a job…"}</option>
        {others.map((job) => (
          <option key={job.id} value={job.id}>
            {job.id} ({(job.state ?? "").toLowerCase()}, step {job.step?.step})
          </option>
        ))}
      </select>
    </label>
  );
}

export function Compare({ query }: { query: URLSearchParams }) {
  const ids = [...new Set((query.get("jobs") ?? "").split(",").filter(Boolean))].slice(0, MAX_JOBS);
  const [axis, setAxis] = useState<Axis>("step");
  const [keep, setKeep] = useState<"0" | "0.9">("0");
  const { value, error } = usePoll(ids.join(), 4000, (signal) =>
    Promise.all(ids.map((id) => fetchRun(id, signal))),
  );
  const show = (wanted: readonly string[]) =>
    go(wanted.length ? `/compare?jobs=${wanted.join(",")}` : "/compare", true);
  // Of the jobs asked for now: an answer may still be of those before.
  const runs = (value ?? []).filter((run) => ids.includes(run.job.id));
  const all = new Set(runs.flatMap((run) => namesOf(run.steps.names())));
  if (runs.some((run) => run.evals.has("loss"))) all.add("eval loss");
  const names = [
    ...SHOWN_FIRST.filter((name) => all.has(name)),
    ...[...all].filter((name) => !SHOWN_FIRST.includes(name)),
  ];
  return (
    <>
      <h1>Compare</h1>
      <div class="controls">
        <Picker ids={ids} add={(id) => show([...ids, id])} />
        {runs.length > 0 && (
          <>
            <Choice
              label="Across"
              options={[
                ["step", "Steps"],
                ["time", "Seconds"],
              ]}
              chosen={axis}
              onChoose={setAxis}
            />
            <Choice
              label="Smoothing"
              options={[
                ["0", "As is"],
                ["0.9", "Smooth"],
              ]}
              chosen={keep}
              onChoose={setKeep}
            />
          </>
        )}
      </div>
      {error && <Trouble message={`${error.message} Trying again.`} />}
      {ids.length === 0 && (
        <Empty title="Choose jobs to compare.">
          <p>Add them here, or tick them in the list of jobs.</p>
        </Empty>
      )}
      {ids.length > 0 && value === null && !error && <p class="loading">Loading…</p>}
      {runs.length > 0 && (
        <Chosen runs={runs} drop={(id) => show(ids.filter((other) => other !== id))} />
      )}
      <div class="charts">
        {names.map((name) => {
          const { xs, curves } = curvesOf(runs, name, axis, Number(keep));
          return (
            <div
              key={name}
              class={name === "loss" ? "panel chart-panel first" : "panel chart-panel"}
            >
              <Chart
                title={name === "eval loss" ? "Evaluation loss" : title(name)}
                xs={xs}
                axis={axis === "step" ? "step" : "seconds"}
                curves={curves}
                format={
                  name === "tokens_per_second" ? (v) => (v === null ? "–" : count(v)) : number
                }
                height={name === "loss" ? 260 : 170}
                group={`compare-${axis}`}
              />
            </div>
          );
        })}
      </div>
    </>
  );
}
