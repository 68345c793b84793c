// Which ranks lag behind, and which keep the others waiting.
import type { Collective, CollectiveRecord, RankTime } from "../api/types";
import type { RankView } from "./job";

export interface RankBusy {
  min: number;
  // The lower one of two in the middle, as the service has it.
  median: number;
  max: number;
}

export function rankBusy(times: readonly RankTime[]): RankBusy | null {
  const busy = times.map((time) => time.busySeconds ?? 0).sort((a, b) => a - b);
  if (busy.length === 0) return null;
  return { min: busy[0]!, median: busy[(busy.length - 1) >> 1]!, max: busy.at(-1)! };
}

// What the rank does nothing else than to wait for.
export function waitedFor(record: CollectiveRecord): Collective | null {
  return (record.collectives ?? []).findLast((c) => c.isWaitedFor && !c.done) ?? null;
}

export function exchangeName(exchange: Collective): string {
  return `${exchange.kind} ${exchange.sequence} of ${exchange.group}`;
}

export interface RankLag {
  rank: number;
  step: number;
  // Behind the rank that is furthest.
  steps: number;
  // Since it reported last, counted at the latest report of any rank.
  silentSeconds: number;
  isStraggler: boolean;
}

// Ranks report at most once a second, so that much silence says nothing.
const QUIET_SECONDS = 5;

// A rank is a straggler if it is steps behind, or has been silent for long while others were not. A
// step that takes long keeps all of them silent.
export function lags(ranks: readonly RankView[]): RankLag[] {
  const furthest = Math.max(0, ...ranks.map((rank) => rank.last.step ?? 0));
  const latest = Math.max(0, ...ranks.map((rank) => rank.time));
  return ranks
    .map((view) => {
      const step = view.last.step ?? 0;
      const silentSeconds = Math.max(0, latest - view.time);
      return {
        rank: view.rank,
        step,
        steps: furthest - step,
        silentSeconds,
        isStraggler: furthest - step > 1 && silentSeconds > QUIET_SECONDS,
      };
    })
    .sort((a, b) => a.rank - b.rank);
}
