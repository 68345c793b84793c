// Small things that pages share.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

import { toneOf } from "../data/job";
import type { Float } from "../api/types";
import { finite } from "../data/thin";

export function Badge({ state }: { state: string | undefined }) {
  return <span class={`badge ${toneOf(state)}`}>{(state ?? "UNKNOWN").toLowerCase()}</span>;
}

export function Progress(props: { share: number; label: string; tone?: string }) {
  const percent = Math.round(props.share * 1000) / 10;
  return (
    <div
      class={`progress ${props.tone ?? ""}`}
      role="progressbar"
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(percent)}
    >
      <i style={{ width: `${percent}%` }} />
    </div>
  );
}

export function Stat(props: {
  label: string;
  children: ComponentChildren;
  hint?: ComponentChildren;
}) {
  return (
    <div class="stat">
      <dt>{props.label}</dt>
      <dd>
        {props.children}
        {props.hint && <small>{props.hint}</small>}
      </dd>
    </div>
  );
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="nothing">
      <p>
        <strong>{props.title}</strong>
      </p>
      {props.children}
    </div>
  );
}

export function Trouble(props: { message: string; children?: ComponentChildren }) {
  return (
    <div class="trouble" role="alert">
      <p>{props.message}</p>
      {props.children}
    </div>
  );
}

export function Section(props: {
  title: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
}) {
  const id = useId();
  return (
    <section class="panel" aria-labelledby={id}>
      <header>
        <h2 id={id}>{props.title}</h2>
        {props.aside}
      </header>
      {props.children}
    </section>
  );
}

// A line without axes; it says nothing that the number beside it does not.
export function Spark({ values }: { values: readonly Float[] }) {
  const points = values.map(finite).filter((value): value is number => value !== null);
  if (points.length < 2) return null;
  const low = Math.min(...points);
  const range = Math.max(...points) - low || 1;
  const path = points
    .map(
      (value, i) =>
        `${((i / (points.length - 1)) * 88 + 1).toFixed(1)},${(21 - ((value - low) / range) * 18).toFixed(1)}`,
    )
    .join(" ");
  return (
    <svg class="spark" viewBox="0 0 90 24" aria-hidden="true">
      <polyline points={path} />
    </svg>
  );
}

export interface Tab {
  id: string;
  title: string;
}

// Arrow keys go from tab to tab.
export function Tabs(props: {
  tabs: Tab[];
  chosen: string;
  onChoose: (id: string) => void;
  label: string;
}) {
  const list = useRef<HTMLDivElement>(null);
  // On a phone not all of them are in sight.
  useEffect(() => {
    const chosen = list.current?.querySelector<HTMLElement>("[aria-selected=true]");
    if (list.current && chosen) {
      list.current.scrollLeft =
        chosen.offsetLeft - (list.current.clientWidth - chosen.clientWidth) / 2;
    }
  }, [props.chosen]);
  const onKey = (event: KeyboardEvent) => {
    const index = props.tabs.findIndex((tab) => tab.id === props.chosen);
    const last = props.tabs.length - 1;
    const next = {
      ArrowLeft: index === 0 ? last : index - 1,
      ArrowRight: index === last ? 0 : index + 1,
      Home: 0,
      End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    props.onChoose(props.tabs[next]!.id);
    list.current?.querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} ref={list} onKeyDown={onKey}>
      {props.tabs.map((tab) => (
        <button
          key={tab.id}
          id={`tab-${tab.id}`}
          role="tab"
          type="button"
          aria-selected={tab.id === props.chosen}
          aria-controls="tabpanel"
          tabIndex={tab.id === props.chosen ? 0 : -1}
          onClick={() => props.onChoose(tab.id)}
        >
          {tab.title}
        </button>
      ))}
    </div>
  );
}

// Buttons of which one is pressed.
export function Choice<T extends string>(props: {
  label: string;
  options: readonly (readonly [T, string])[];
  chosen: T;
  onChoose: (value: T) => void;
}) {
  return (
    <div class="choice" role="group" aria-label={props.label}>
      {props.options.map(([value, text]) => (
        <button
          key={value}
          type="button"
          aria-pressed={value === props.chosen}
          onClick={() => props.onChoose(value)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

// Colours of categories, in order.
export const PALETTE = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "c10", "c11"];

const OWNER_COLORS: Record<string, string> = {
  parameters: "c1",
  gradients: "c2",
  optimizer: "c3",
  activations: "c4",
  head: "c5",
  kv_cache: "c6",
  communication: "c7",
  reference: "c8",
  data: "c9",
  checkpoint: "c10",
  other: "c11",
};

export function colorOfOwner(owner: string): string {
  return OWNER_COLORS[owner] ?? "c11";
}
