// The queue: jobs that wait, run and have ended, newest first.
import { useEffect, useState } from "preact/hooks";

import { fetchJobs, fetchNodes, fetchSparklines } from "../api/client";
import type { Job, Sparkline } from "../api/types";
import { ago, count, duration, epoch, value as number } from "../data/format";
import { isOver, progressOf } from "../data/job";
import { finite } from "../data/thin";
import { useNow, usePoll } from "../poll";
import { go, Link } from "../router";
import { Badge, Choice, Empty, Progress, Spark, Stat, Trouble } from "../ui/parts";

const FILTERS = {
  all: [],
  running: ["STARTING", "RUNNING", "RESTARTING", "CANCELLING"],
  queued: ["QUEUED"],
  succeeded: ["SUCCEEDED"],
  failed: ["FAILED"],
  cancelled: ["CANCELLED"],
} as const;
type Filter = keyof typeof FILTERS;
const TITLES: readonly (readonly [Filter, string])[] = [
  ["all", "All"],
  ["running", "Running"],
  ["queued", "Queued"],
  ["succeeded", "Succeeded"],
  ["failed", "Failed"],
  ["cancelled", "Cancelled"],
];
const PAGE = 50;
const MAX_COMPARED = 8;

// Sparklines of the jobs in sight: once of those that have ended, now and then of the others.
function useSparklines(jobs: readonly Job[]): Record<string, Sparkline> {
  const [lines, set] = useState<Record<string, Sparkline>>({});
  const wanted = jobs.filter((job) => job.step && (!isOver(job.state) || !(job.id in lines)));
  const key = wanted
    .map((job) => `${job.id}:${isOver(job.state) ? "" : Math.floor((job.step?.step ?? 0) / 5)}`)
    .join();
  useEffect(() => {
    if (wanted.length === 0) return;
    fetchSparklines(wanted.map((job) => job.id)).then(
      (found) => set((before) => ({ ...before, ...found })),
      () => undefined, // the list itself says what is wrong
    );
  }, [key]);
  return lines;
}

function elapsed(job: Job, now: number): string {
  const start = epoch(job.startTime);
  if (start === null) return "";
  return duration((epoch(job.endTime) ?? now / 1000) - start);
}

interface RowProps {
  job: Job;
  line: Sparkline | undefined;
  now: number;
  isChosen: boolean;
  onChoose: (id: string, isChosen: boolean) => void;
}

function Row({ job, line, now, isChosen, onChoose }: RowProps) {
  const progress = progressOf(job);
  const loss = finite(job.step?.loss);
  const speed = finite(job.step?.tokensPerSecond);
  return (
    <tr>
      <td class="pick">
        <input
          type="checkbox"
          checked={isChosen}
          aria-label={`Compare ${job.id}`}
          onChange={(event) => onChoose(job.id, event.currentTarget.checked)}
        />
      </td>
      <th scope="row">
        <Link to={`/jobs/${job.id}`}>{job.id}</Link>
        <p class="reason" title={job.failure?.message ?? job.reason}>
          {job.failure?.message ?? job.reason}
        </p>
      </th>
      <td class="state">
        <Badge state={job.state} />
      </td>
      <td class="share">
        {progress && (
          <>
            <Progress
              share={progress.share}
              label={`Steps of ${job.id}`}
              tone={job.state === "FAILED" ? "bad" : ""}
            />
            <small>
              {progress.step} / {progress.total}
              {progress.secondsLeft !== null && ` · ${duration(progress.secondsLeft)} left`}
            </small>
          </>
        )}
      </td>
      <td class="loss">
        {loss !== null && job.step && (
          <>
            <Spark values={line?.loss ?? []} />
            <span>{number(loss)}</span>
          </>
        )}
      </td>
      <td class="num wide">{speed ? `${count(speed)}/s` : ""}</td>
      <td class="num wide">{elapsed(job, now)}</td>
      <td class="num age">{ago(job.createTime, now)}</td>
    </tr>
  );
}

function Counters({ jobs }: { jobs: readonly Job[] }) {
  const nodes = usePoll("nodes", 5000, fetchNodes);
  const devices = (nodes.value ?? [])
    .filter((node) => node.state !== "LOST")
    .flatMap((node) => node.devices ?? []);
  const is = (filter: Filter) =>
    jobs.filter((job) => (FILTERS[filter] as readonly string[]).includes(job.state ?? "")).length;
  const waiting = jobs.filter((job) => !isOver(job.state)).length - is("running");
  return (
    <dl class="stats">
      <Stat label="Running">{is("running")}</Stat>
      <Stat label="Waiting">{waiting}</Stat>
      <Stat label="Devices held">
        {devices.filter((device) => device.job).length} of {devices.length}
      </Stat>
      <Stat label="Machines">
        <Link to="/nodes">{nodes.value?.length ?? "–"}</Link>
      </Stat>
    </dl>
  );
}

function nothing(filter: Filter) {
  if (filter !== "all") return <Empty title={`No job is ${filter}.`} />;
  return (
    <Empty title="There are no jobs yet.">
      <p>
        Submit one from a terminal: <code>tessera submit job.yaml</code>. It appears here at once.
      </p>
    </Empty>
  );
}

export function Jobs({ query }: { query: URLSearchParams }) {
  const wanted = query.get("show");
  const filter: Filter = wanted !== null && wanted in FILTERS ? (wanted as Filter) : "all";
  const token = query.get("page") ?? "";
  const page = usePoll(`${filter} ${token}`, 2000, (signal) =>
    fetchJobs({ states: FILTERS[filter], pageToken: token, pageSize: PAGE }, signal),
  );
  const now = useNow();
  const jobs = page.value?.jobs ?? [];
  const lines = useSparklines(jobs);
  const [chosen, setChosen] = useState<string[]>([]);
  const choose = (id: string, isChosen: boolean) =>
    setChosen((before) =>
      isChosen ? [...before, id].slice(-MAX_COMPARED) : before.filter((other) => other !== id),
    );
  const address = (show: Filter, at: string) => {
    const parameters = new URLSearchParams({
      ...(show === "all" ? {} : { show }),
      ...(at ? { page: at } : {}),
    });
    return parameters.size === 0 ? "/" : `/?${parameters}`;
  };
  return (
    <>
      <h1>Jobs</h1>
      {page.error && <Trouble message={`${page.error.message} Trying again.`} />}
      <Counters jobs={jobs} />
      <div class="controls">
        <Choice
          label="Jobs shown"
          options={TITLES}
          chosen={filter}
          onChoose={(show) => go(address(show, ""))}
        />
        {chosen.length > 0 && (
          <button
            type="button"
            class="primary"
            disabled={chosen.length < 2}
            onClick={() => go(`/compare?jobs=${chosen.join(",")}`)}
          >
            Compare {chosen.length}
          </button>
        )}
      </div>
      {page.value === null && !page.error && <p class="loading">Loading…</p>}
      {page.value !== null && jobs.length === 0 && nothing(filter)}
      {jobs.length > 0 && (
        <div class="panel flush">
          <table class="jobs">
            <thead>
              <tr>
                <th class="pick">
                  <span class="unseen">Compare</span>
                </th>
                <th>Job</th>
                <th>State</th>
                <th>Steps</th>
                <th>Loss</th>
                <th class="num wide">Tokens</th>
                <th class="num wide">Ran for</th>
                <th class="num">Submitted</th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <Row
                  key={job.id}
                  job={job}
                  line={lines[job.id]}
                  now={now}
                  isChosen={chosen.includes(job.id)}
                  onChoose={choose}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <nav class="pager" aria-label="Pages of jobs">
        {token !== "" && <Link to={address(filter, "")}>Newest</Link>}
        {page.value?.nextPageToken && (
          <Link to={address(filter, page.value.nextPageToken)}>Older jobs</Link>
        )}
      </nav>
    </>
  );
}
