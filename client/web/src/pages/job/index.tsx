// One job: what it does now, and everything it told.
import { useState } from "preact/hooks";

import type { FeedState } from "../../api/feed";
import type { Job } from "../../api/types";
import { adviceFor } from "../../data/advice";
import { ago, bytes, count, dateTime, duration, epoch, value as number } from "../../data/format";
import { isOver, type JobView, methodOf, progressOf } from "../../data/job";
import { finite } from "../../data/thin";
import { useNow } from "../../poll";
import { Link } from "../../router";
import { Badge, Empty, Progress, Stat, Tabs, Trouble } from "../../ui/parts";
import { Curves } from "./curves";
import { Data } from "./data";
import { Events } from "./events";
import { useLiveJob } from "./live";
import { Log } from "./log";
import { Memory } from "./memory";
import { Plan } from "./plan";
import { Ranks } from "./ranks";
import { Spec } from "./spec";
import { Time } from "./time";

const TABS = [
  { id: "curves", title: "Curves" },
  { id: "memory", title: "Memory" },
  { id: "time", title: "Time" },
  { id: "ranks", title: "Ranks" },
  { id: "events", title: "Events" },
  { id: "plan", title: "Plan" },
  { id: "data", title: "Data" },
  { id: "log", title: "Log" },
  { id: "spec", title: "Job file" },
];

function Connection({ feed, retry }: { feed: FeedState; retry: () => void }) {
  switch (feed.kind) {
    case "live":
      return <span class="feed live">live</span>;
    case "ended":
      return null;
    case "lost":
      return (
        <span class="feed lost" role="status">
          Connection lost. It is made again by itself, and goes on where it was.{" "}
          <button type="button" class="link" onClick={retry}>
            Now
          </button>
        </span>
      );
    case "refused":
      return (
        <span class="feed lost" role="alert">
          No more is shown of this job: {feed.why}.{" "}
          <button type="button" class="link" onClick={retry}>
            Try again
          </button>
        </span>
      );
    default:
      return <span class="feed">{feed.kind === "paused" ? "paused" : "connecting…"}</span>;
  }
}

function FailurePanel({ job }: { job: Job }) {
  if (job.failure === undefined) return null;
  const advice = adviceFor(job.failure, job.id);
  return (
    <section class="trouble failure" aria-label="Why it failed">
      <h2>{advice.meaning}</h2>
      <p class="message">{job.failure.message}</p>
      <p class="meta">
        {job.failure.kind}
        {job.failure.field && ` · ${job.failure.field}`}
        {job.failure.rank !== undefined && job.failure.rank >= 0 && ` · rank ${job.failure.rank}`}
        {advice.isRetried
          ? " · tried again until resources.max_restarts"
          : " · not tried again: it would end the same way"}
      </p>
      {advice.steps.length > 0 && (
        <>
          <h3>What to do</h3>
          <ul>
            {advice.steps.map((step) => (
              <li key={step}>{step}</li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function Head({
  view,
  feed,
  retry,
  now,
}: {
  view: JobView;
  feed: FeedState;
  retry: () => void;
  now: number;
}) {
  const { job } = view;
  const progress = progressOf(job, view.steps);
  const start = epoch(job.startTime);
  const ranks = job.spec?.parallelism?.numProcesses ?? 1;
  return (
    <>
      <p class="crumbs">
        <Link to="/">Jobs</Link> / {job.spec?.name ?? job.id}
      </p>
      <div class="title">
        <h1>{job.id}</h1>
        <Badge state={job.state} />
        {view.straggler && (
          <span class="badge wait" title={`rank ${view.straggler.rank ?? 0} on ${view.straggler.node}`}>
            straggler: rank {view.straggler.rank ?? 0}
          </span>
        )}
        <Connection feed={feed} retry={retry} />
      </div>
      {job.reason && !job.failure && job.reason.toUpperCase() !== job.state && (
        <p class="why">{job.reason}</p>
      )}
      <p class="meta">
        {methodOf(job).toUpperCase().replace("_", " ")} of{" "}
        {job.spec?.model?.path?.split("/").at(-1) ?? "?"} on {ranks}{" "}
        {ranks === 1 ? "rank" : "ranks"} · submitted{" "}
        <time title={dateTime(job.createTime)}>{ago(job.createTime, now)}</time>
        {start !== null &&
          ` · ${isOver(job.state) ? "ran" : "running"} for ${duration((epoch(job.endTime) ?? now / 1000) - start)}`}
        {(job.attempt ?? 0) > 1 && ` · attempt ${job.attempt}`} ·{" "}
        <Link to={`/compare?jobs=${job.id}`}>compare</Link>
      </p>
      <FailurePanel job={job} />
      {progress && (
        <div class="advance">
          <Progress
            share={progress.share}
            label="Steps"
            tone={job.state === "FAILED" ? "bad" : ""}
          />
          <span>
            step <b>{progress.step}</b> of {progress.total}
            {progress.secondsLeft !== null && ` · ${duration(progress.secondsLeft)} left`}
          </span>
        </div>
      )}
    </>
  );
}

function Numbers({ view }: { view: JobView }) {
  const step = view.job.step;
  const peak = Math.max(
    0,
    ...[...view.ranks.values()].map((rank) => Number(rank.last.peakBytes ?? 0)),
  );
  const rehearsed = Number(view.job.rehearsal?.peakBytes ?? 0);
  const evalLoss = view.evals.last("loss");
  const reward = finite(step?.metrics?.["reward"]);
  return (
    <dl class="stats">
      <Stat label="Loss" hint={evalLoss !== null && `eval ${number(evalLoss)}`}>
        {number(finite(step?.loss ?? (step && 0)))}
      </Stat>
      {reward !== null && <Stat label="Reward">{number(reward)}</Stat>}
      <Stat label="Tokens a second" hint={step?.numTokens && `${count(step.numTokens)} seen`}>
        {count(finite(step?.tokensPerSecond) ?? Number.NaN)}
      </Stat>
      <Stat label="Gradient norm">{number(finite(step?.gradNorm ?? (step && 0)))}</Stat>
      <Stat label="Learning rate">{number(finite(step?.learningRate ?? (step && 0)))}</Stat>
      <Stat label="Peak memory of a rank" hint={rehearsed > 0 && `rehearsed ${bytes(rehearsed)}`}>
        {peak > 0 ? bytes(peak) : "–"}
      </Stat>
    </dl>
  );
}

function Body(props: { tab: string; view: JobView; rank: number; onRank: (rank: number) => void }) {
  const { view } = props;
  switch (props.tab) {
    case "memory":
      return <Memory view={view} rank={props.rank} onRank={props.onRank} />;
    case "time":
      return <Time view={view} />;
    case "ranks":
      return <Ranks view={view} />;
    case "events":
      return <Events view={view} />;
    case "plan":
      return <Plan view={view} />;
    case "data":
      return <Data id={view.job.id} />;
    case "log":
      return <Log view={view} />;
    case "spec":
      return <Spec job={view.job} />;
    default:
      return <Curves view={view} />;
  }
}

export function JobPage({ id }: { id: string }) {
  const [rank, setRank] = useState(0);
  const live = useLiveJob(id, rank);
  const now = useNow();
  const [tab, setTab] = useState(() => {
    const wanted = location.hash.slice(1);
    return TABS.some((known) => known.id === wanted) ? wanted : "curves";
  });
  const choose = (chosen: string) => {
    setTab(chosen);
    history.replaceState(null, "", `#${chosen}`);
  };
  const { view, error } = live;
  if (view === null) {
    if (error?.status === 404) {
      return (
        <Empty title={`There is no job ${id}.`}>
          <Link to="/">All jobs</Link>
        </Empty>
      );
    }
    if (error) return <Trouble message={`${error.message} Trying again.`} />;
    return (
      <p class="loading">
        {live.readUpTo === null ? "Loading…" : `Reading a long history: step ${live.readUpTo}…`}
      </p>
    );
  }
  return (
    <>
      <Head view={view} feed={live.feed} retry={live.retry} now={now} />
      <Numbers view={view} />
      <Tabs tabs={TABS} chosen={tab} onChoose={choose} label="Parts of the job" />
      <div id="tabpanel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        <Body tab={tab} view={view} rank={rank} onRank={setRank} />
      </div>
    </>
  );
}
