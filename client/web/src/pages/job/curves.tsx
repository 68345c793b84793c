// What is measured at each step, and in evaluations.
import { useState } from "preact/hooks";

import { count, percent, title, value as number } from "../../data/format";
import type { JobView } from "../../data/job";
import { align, smooth } from "../../data/stack";
import type { Axis, Line } from "../../data/thin";
import { Chart, type Curve } from "../../ui/chart";
import { Choice, Empty } from "../../ui/parts";

const FIRST = ["loss", "reward", "grad_norm", "learning_rate", "tokens_per_second"];
// Shown elsewhere, or of no use as a curve.
const HIDDEN = new Set(["num_tokens", "epoch"]);
const SMOOTHING = [
  ["0", "As is"],
  ["0.8", "Smooth"],
  ["0.95", "Smoother"],
] as const;

function formatOf(name: string): (value: number | null) => string {
  if (name === "tokens_per_second") return (value) => (value === null ? "–" : count(value));
  if (/accurac/.test(name)) return (value) => percent(value);
  return number;
}

// Metrics of steps in the order of the page: the well-known ones, then the method's by name.
export function namesOf(names: readonly string[]): string[] {
  const others = names.filter(
    (name) => !FIRST.includes(name) && !HIDDEN.has(name) && !/^(time|busy)\//.test(name),
  );
  return [...FIRST.filter((name) => names.includes(name)), ...others.sort()];
}

function isRange(line: Line): boolean {
  return line.mean.some(
    (value, i) => value !== null && (line.min[i] !== value || line.max[i] !== value),
  );
}

interface Settings {
  axis: Axis;
  keep: number;
  log: boolean;
}

function curvesOf(
  view: JobView,
  name: string,
  settings: Settings,
): { xs: number[]; curves: Curve[] } {
  const line = view.steps.line(name);
  const range = isRange(line) ? { min: line.min, max: line.max } : {};
  const curves: Curve[] =
    settings.keep === 0
      ? [{ label: "train", color: "c1", values: line.mean, ...range }]
      : [
          { label: "raw", color: "c1", values: line.mean, faint: true },
          {
            label: "train",
            color: "c1",
            values: smooth(line.mean, settings.keep),
            shown: line.mean,
          },
        ];
  const xs = view.steps.xs(settings.axis);
  if (!view.evals.has(name)) return { xs, curves };
  const all: Curve[] = [
    ...curves,
    { label: "eval", color: "c4", values: view.evals.line(name).mean, dots: true },
  ];
  const rows = all.flatMap((curve) => [
    curve.values,
    ...(curve.min && curve.max ? [curve.min, curve.max] : []),
  ]);
  const evalXs = view.evals.xs(settings.axis);
  const [joint, ...values] = align(
    rows.map((ys, i) => ({ xs: i === rows.length - 1 ? evalXs : xs, ys })),
  );
  let next = 0;
  const aligned = all.map((curve): Curve => {
    const { shown: _, ...rest } = curve;
    const out: Curve = { ...rest, values: values[next++]! };
    if (curve.min && curve.max) {
      out.min = values[next++]!;
      out.max = values[next++]!;
    }
    return out;
  });
  return { xs: joint, curves: aligned };
}

export function Curves({ view }: { view: JobView }) {
  const [axis, setAxis] = useState<Axis>("step");
  const [keep, setKeep] = useState<(typeof SMOOTHING)[number][0]>("0");
  const [log, setLog] = useState<"lin" | "log">("lin");
  const names = namesOf(view.steps.names());
  if (names.length === 0) {
    return (
      <Empty title="No step yet.">
        <p>{view.job.reason}</p>
      </Empty>
    );
  }
  return (
    <>
      <div class="controls">
        <Choice
          label="Across"
          options={[
            ["step", "Steps"],
            ["time", "Time"],
          ]}
          chosen={axis}
          onChoose={setAxis}
        />
        <Choice
          label="Scale"
          options={[
            ["lin", "Linear"],
            ["log", "Log"],
          ]}
          chosen={log}
          onChoose={setLog}
        />
        <Choice label="Smoothing" options={SMOOTHING} chosen={keep} onChoose={setKeep} />
      </div>
      <div class="charts">
        {names.map((name) => {
          const { xs, curves } = curvesOf(view, name, {
            axis,
            keep: Number(keep),
            log: log === "log",
          });
          const isPositive = curves.every((curve) =>
            curve.values.every((value) => value === null || value > 0),
          );
          return (
            <div
              key={name}
              class={name === "loss" ? "panel chart-panel first" : "panel chart-panel"}
            >
              <Chart
                title={title(name)}
                xs={xs}
                axis={axis}
                curves={curves}
                format={formatOf(name)}
                height={name === "loss" ? 260 : 170}
                log={log === "log" && isPositive}
                group={`curves-${axis}`}
              />
            </div>
          );
        })}
      </div>
    </>
  );
}
