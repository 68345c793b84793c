// A chart over steps or time: lines, ranges around them, and stacked areas. uPlot draws; legend,
// words for screen readers and the keyboard are ours.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

import { count, duration } from "../data/format";
import { color, useTheme } from "../theme";

export interface Curve {
  label: string;
  // Name of a colour of the style sheet.
  color: string;
  values: readonly (number | null)[];
  // Drawn as a range around the values.
  min?: readonly (number | null)[];
  max?: readonly (number | null)[];
  dashed?: boolean;
  // Points alone.
  dots?: boolean;
  faint?: boolean;
  // What the legend shows in place of the values: of a stacked curve its own share.
  shown?: readonly (number | null)[];
}

export interface ChartProps {
  title: string;
  xs: readonly number[];
  // Steps, seconds since 1970, or seconds of something that began at 0.
  axis: "step" | "time" | "seconds";
  curves: Curve[];
  format: (value: number | null) => string;
  // Ticks at powers of two.
  binary?: boolean;
  height?: number;
  // Curves are areas on top of each other, given as sums, the lowest first; those that are dashed
  // are lines.
  stacked?: boolean;
  log?: boolean;
  // Highest value wanted in sight.
  top?: number | undefined;
  bottom?: number | undefined;
  actions?: ComponentChildren;
  note?: ComponentChildren;
  // Charts of one group show the same place.
  group?: string;
}

const POWERS_OF_TWO = Array.from({ length: 50 }, (_, i) => 2 ** i);
const AXIS_FONT = "11px system-ui, sans-serif";

function drawn(props: ChartProps): uPlot.AlignedData {
  const rows: (number | null)[][] = [];
  for (const curve of props.curves) {
    rows.push(curve.values as (number | null)[]);
    if (curve.min && curve.max)
      rows.push(curve.max as (number | null)[], curve.min as (number | null)[]);
  }
  return [props.xs as number[], ...rows];
}

function translucent(name: string, alpha: number): string {
  return `color-mix(in srgb, ${color(name)} ${Math.round(alpha * 100)}%, transparent)`;
}

// uPlot draws on a canvas, which knows no color-mix.
function resolve(css: string): string {
  const probe = document.createElement("span");
  probe.style.color = css;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

function options(
  props: ChartProps,
  width: number,
  height: number,
  onCursor: (i: number | null) => void,
): uPlot.Options {
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  let below: number | null = null;
  for (const curve of props.curves) {
    const stroke = resolve(color(curve.color));
    const index = series.length;
    const isArea = props.stacked === true && curve.dashed !== true;
    series.push({
      label: curve.label,
      stroke: curve.faint ? resolve(translucent(curve.color, 0.3)) : stroke,
      width: isArea ? 1 : 1.6,
      ...(curve.dashed ? { dash: [6, 4] } : {}),
      points: curve.dots ? { show: true, size: 7, fill: stroke } : { show: props.xs.length === 1 },
      ...(curve.dots ? { paths: () => null } : {}),
      ...(isArea && below === null ? { fill: resolve(translucent(curve.color, 0.5)) } : {}),
      spanGaps: curve.dots !== true,
    });
    if (isArea) {
      if (below !== null)
        bands.push({ series: [index, below], fill: resolve(translucent(curve.color, 0.5)) });
      below = index;
    }
    if (curve.min && curve.max) {
      const clear = { stroke: "transparent", width: 0, points: { show: false } };
      series.push({ ...clear, label: "max" }, { ...clear, label: "min" });
      bands.push({ series: [index + 1, index + 2], fill: resolve(translucent(curve.color, 0.18)) });
    }
  }
  const line = resolve(color("grid"));
  const text = resolve(color("muted"));
  const axis = {
    stroke: text,
    font: AXIS_FONT,
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height,
    series,
    bands,
    legend: { show: false },
    cursor: {
      points: { size: 7 },
      drag: { x: true, y: false },
      ...(props.group ? { sync: { key: props.group } } : {}),
    },
    scales: {
      x: { time: props.axis === "time" },
      y: {
        ...(props.log ? { distr: 3 as const } : {}),
        range: (_, low, high) => {
          if (props.log) return uPlot.rangeLog(low, high, 10, false);
          const floor = props.bottom ?? low;
          const roof = Math.max(high, props.top ?? high);
          const room = (roof - floor || Math.abs(roof) || 1) * 0.06;
          return [props.bottom ?? floor - room, roof + room];
        },
      },
    },
    axes: [
      {
        ...axis,
        space: 56,
        size: 28,
        ...(props.axis === "time"
          ? {}
          : { values: (_, ticks) => ticks.map((t) => xLabel(props.axis, t)) }),
      },
      {
        ...axis,
        size: 62,
        space: 34,
        ...(props.binary ? { incrs: POWERS_OF_TWO } : {}),
        values: (_, ticks) => ticks.map((t) => (t == null ? "" : props.format(t))),
      },
    ],
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)] },
  };
}

// What rebuilds the plot; all else is new data for the same one.
function shape(props: ChartProps, isDark: boolean): string {
  const curves = props.curves.map((c) => [c.label, c.color, c.dashed, c.dots, c.faint, !!c.min]);
  return JSON.stringify([
    curves,
    props.axis,
    props.log,
    props.stacked,
    props.top,
    props.bottom,
    props.group,
    isDark,
  ]);
}

function describe(props: ChartProps): string {
  const parts = props.curves.map((curve) => {
    const values = (curve.shown ?? curve.values).filter((value): value is number => value !== null);
    if (values.length === 0) return `${curve.label}: no values`;
    const [low, high] = values.reduce(
      ([a, b], v) => [Math.min(a, v), Math.max(b, v)],
      [Infinity, -Infinity],
    );
    return `${curve.label}: last ${props.format(values.at(-1)!)}, from ${props.format(low)} to ${props.format(high)}`;
  });
  return `${props.title}. ${parts.join(". ")}`;
}

export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [cursor, setCursor] = useState<number | null>(null);
  const { isDark } = useTheme();
  const height = props.height ?? 190;
  const isEmpty = props.xs.length === 0;

  useEffect(() => {
    const element = place.current;
    if (element === null || isEmpty) return;
    const made = new uPlot(
      options(latest.current, element.clientWidth, height, setCursor),
      drawn(latest.current),
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape(props, isDark), height, isEmpty]);

  useEffect(() => {
    const made = plot.current;
    if (made === null) return;
    // Who has zoomed in stays there.
    const xs = made.data[0];
    const { min, max } = made.scales.x!;
    const isWhole = min == null || xs.length === 0 || (min === xs[0] && max === xs.at(-1));
    made.setData(drawn(props), isWhole);
    if (!isWhole) made.redraw();
  }, [props.xs, props.curves]);

  const onKey = (event: KeyboardEvent) => {
    const made = plot.current;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (made === null || step === undefined) return;
    event.preventDefault();
    const index = Math.max(
      0,
      Math.min(props.xs.length - 1, (made.cursor.idx ?? props.xs.length) + step),
    );
    const left = made.valToPos(props.xs[index]!, "x");
    made.setCursor({ left, top: 10 });
  };

  const at = cursor !== null && cursor < props.xs.length ? cursor : null;
  return (
    <figure class="chart">
      <figcaption>
        <h3>{props.title}</h3>
        <span class="at" aria-hidden="true">
          {at === null ? "" : where(props, at)}
        </span>
        {props.actions}
      </figcaption>
      <ul class="legend">
        {props.curves.map((curve) =>
          curve.faint ? null : (
            <li key={curve.label}>
              <Key color={curve.color} dashed={curve.dashed === true} />
              {curve.label}
              <b>{props.format(valueAt(curve, at))}</b>
            </li>
          ),
        )}
      </ul>
      {isEmpty ? (
        <p class="empty">Nothing yet.</p>
      ) : (
        <div
          class="plot"
          ref={place}
          role="img"
          tabIndex={0}
          aria-label={describe(props)}
          onKeyDown={onKey}
        />
      )}
      {props.note && <p class="note">{props.note}</p>}
    </figure>
  );
}

export function Key(props: { color: string; dashed?: boolean }) {
  return (
    <i class={props.dashed ? "key dashed" : "key"} style={{ "--key": `var(--${props.color})` }} />
  );
}

function valueAt(curve: Curve, at: number | null): number | null {
  const values = curve.shown ?? curve.values;
  if (at !== null) return values[at] ?? null;
  return values.findLast((value) => value !== null) ?? null;
}

function xLabel(axis: ChartProps["axis"], x: number): string {
  if (axis === "seconds") return duration(x);
  return Number.isInteger(x) ? count(x) : "";
}

function where(props: ChartProps, at: number): string {
  const x = props.xs[at]!;
  if (props.axis === "step") return `step ${x}`;
  return props.axis === "seconds"
    ? duration(x)
    : new Date(x * 1000).toLocaleTimeString(undefined, { hour12: false });
}
