// Who holds the memory of a rank, over time and at its peak, beside what was rehearsed.
import type { OwnerBytes, Rehearsal } from "../../api/types";
import { bytes, percent } from "../../data/format";
import type { JobView } from "../../data/job";
import { stack } from "../../data/stack";
import { Chart, type Curve, Key } from "../../ui/chart";
import { colorOfOwner, Empty, Section } from "../../ui/parts";

const OWNERS = [
  "parameters",
  "reference",
  "gradients",
  "optimizer",
  "activations",
  "head",
  "kv_cache",
  "communication",
  "data",
  "checkpoint",
  "other",
];
// A limit that is so many times what is used would press the rest flat.
const IN_SIGHT = 2;

function ordered(owners: readonly string[]): string[] {
  const place = (owner: string) => (OWNERS.includes(owner) ? OWNERS.indexOf(owner) : OWNERS.length);
  return [...owners].sort((a, b) => place(a) - place(b));
}

function OverTime({ view }: { view: JobView }) {
  const { memory, job } = view;
  const owners = ordered(
    memory
      .names()
      .filter(
        (name) =>
          name.startsWith("owner/") && memory.line(name).max.some((value) => (value ?? 0) > 0),
      )
      .map((name) => name.slice(6)),
  );
  const lines = owners.map((owner) => memory.line(`owner/${owner}`).mean);
  const sums = stack(lines);
  const curves: Curve[] = owners.map((owner, i) => ({
    label: owner,
    color: colorOfOwner(owner),
    values: sums[i]!,
    shown: lines[i]!,
  }));
  const flat = (value: number) => memory.xs("step").map(() => value);
  const peak = memory.line("peak").max;
  curves.push({ label: "peak so far", color: "text", values: peak, dashed: true });
  const rehearsed = Number(job.rehearsal?.peakBytes ?? 0);
  if (rehearsed > 0)
    curves.push({
      label: "rehearsed peak",
      color: "accent",
      values: flat(rehearsed),
      dashed: true,
    });
  const limit = Number(view.ranks.get(view.rank)?.last.deviceLimitBytes ?? 0);
  const used = Math.max(rehearsed, ...peak.map((value) => value ?? 0));
  const isNear = limit > 0 && limit <= used * IN_SIGHT;
  if (isNear) curves.push({ label: "limit", color: "bad", values: flat(limit), dashed: true });
  return (
    <Chart
      title={`Tensors on the device, rank ${view.rank}`}
      xs={memory.xs("step")}
      axis="step"
      curves={curves}
      format={(value) => (value === null ? "–" : bytes(value))}
      height={300}
      stacked
      binary
      bottom={0}
      note={
        limit > 0 && !isNear
          ? `The device's limit, ${bytes(limit)}, is far above: the peak takes ${percent(used / limit)} of it.`
          : "Areas are what is held between steps; the peak is reached within one."
      }
    />
  );
}

// One bar, cut by owner.
function Bar(props: { label: string; owners: readonly OwnerBytes[] | undefined; whole: number }) {
  const parts = (props.owners ?? []).filter((owner) => Number(owner.atPeakBytes ?? 0) > 0);
  const total = parts.reduce((sum, owner) => sum + Number(owner.atPeakBytes), 0);
  return (
    <div class="bar-row">
      <span>{props.label}</span>
      <div
        class="bar-parts"
        role="img"
        aria-label={`${props.label}: ${parts.map((o) => `${o.owner} ${bytes(o.atPeakBytes)}`).join(", ")}`}
      >
        {parts.map((owner) => (
          <i
            key={owner.owner}
            title={`${owner.owner}: ${bytes(owner.atPeakBytes)}`}
            style={{
              width: `${(Number(owner.atPeakBytes) / props.whole) * 100}%`,
              "--key": `var(--${colorOfOwner(owner.owner ?? "")})`,
            }}
          />
        ))}
      </div>
      <b>{bytes(total)}</b>
    </div>
  );
}

function Owners(props: {
  owners: readonly OwnerBytes[];
  rehearsed: readonly OwnerBytes[] | undefined;
  space: string;
}) {
  const foreseen = new Map(
    (props.rehearsed ?? []).map((owner) => [owner.owner, Number(owner.atPeakBytes ?? 0)]),
  );
  const rows = ordered(props.owners.map((owner) => owner.owner ?? ""))
    .map((name) => props.owners.find((owner) => owner.owner === name)!)
    .filter((owner) => Number(owner.peakBytes ?? 0) > 0 || (foreseen.get(owner.owner) ?? 0) > 0);
  if (rows.length === 0) return null;
  return (
    <table class="plain">
      <caption>{props.space}</caption>
      <thead>
        <tr>
          <th>Owner</th>
          <th class="num">Now</th>
          <th class="num">At the peak</th>
          <th class="num">Rehearsed</th>
          <th class="num">Own peak</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((owner) => (
          <tr key={owner.owner}>
            <th scope="row">
              <Key color={colorOfOwner(owner.owner ?? "")} />
              {owner.owner}
            </th>
            <td class="num">{bytes(owner.currentBytes)}</td>
            <td class="num">{bytes(owner.atPeakBytes)}</td>
            <td class="num">{foreseen.has(owner.owner) ? bytes(foreseen.get(owner.owner)) : ""}</td>
            <td class="num">{bytes(owner.peakBytes)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Largest({ view }: { view: JobView }) {
  const peak = view.memoryPeaks.get(view.rank)?.memoryPeak;
  const cells = (peak?.cells ?? []).slice(0, 12);
  if (cells.length === 0) return null;
  const whole = Number(peak?.peakBytes ?? 0);
  return (
    <Section title="The largest parts of the first peak">
      <p class="meta">
        {bytes(whole)}, reached in {peak?.reached?.phase}
        {peak?.reached?.block && ` at ${peak.reached.block}`}, by {peak?.reached?.owner}.
      </p>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th>Owner</th>
              <th>Part of the model</th>
              <th>Made in</th>
              <th class="num">Bytes</th>
              <th class="num">Share</th>
            </tr>
          </thead>
          <tbody>
            {cells.map((cell) => (
              <tr key={`${cell.owner} ${cell.block} ${cell.phase}`}>
                <th scope="row">
                  <Key color={colorOfOwner(cell.owner ?? "")} />
                  {cell.owner}
                </th>
                <td>{cell.block}</td>
                <td>{cell.phase}</td>
                <td class="num">{bytes(cell.bytes)}</td>
                <td class="num">{percent(Number(cell.bytes ?? 0) / whole)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

function Peaks(props: { view: JobView; rehearsal: Rehearsal | undefined }) {
  const last = props.view.ranks.get(props.view.rank)?.last;
  const measured = Number(last?.peakBytes ?? 0);
  const foreseen = Number(props.rehearsal?.peakBytes ?? 0);
  const whole = Math.max(measured, foreseen, 1);
  return (
    <Section title="At the peak">
      <div class="bars">
        <Bar label="measured" owners={last?.owners} whole={whole} />
        {props.rehearsal && <Bar label="rehearsed" owners={props.rehearsal.owners} whole={whole} />}
      </div>
      <div class="scroll">
        <Owners
          owners={last?.owners ?? []}
          rehearsed={props.rehearsal?.owners}
          space="On the device"
        />
        <Owners
          owners={last?.hostOwners ?? []}
          rehearsed={props.rehearsal?.hostOwners}
          space="In host memory"
        />
      </div>
      <p class="meta">
        The process holds {bytes(last?.rssBytes)} in all, {bytes(last?.peakRssBytes)} at most.
      </p>
    </Section>
  );
}

export function Memory({
  view,
  rank,
  onRank,
}: {
  view: JobView;
  rank: number;
  onRank: (rank: number) => void;
}) {
  const ranks = [...view.ranks.keys()].sort((a, b) => a - b);
  if (ranks.length === 0) return <Empty title="No rank has told its memory yet." />;
  return (
    <>
      {ranks.length > 1 && (
        <div class="controls">
          <label>
            Rank{" "}
            <select value={rank} onChange={(event) => onRank(Number(event.currentTarget.value))}>
              {ranks.map((known) => (
                <option key={known} value={known}>
                  {known}
                </option>
              ))}
            </select>
          </label>
        </div>
      )}
      <div class="panel chart-panel">
        <OverTime view={view} />
      </div>
      <Peaks view={view} rehearsal={view.job.rehearsal} />
      <Largest view={view} />
    </>
  );
}
