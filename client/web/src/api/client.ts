// Requests to the API.
import type { DataProfile, Job, JobHistory, JobPage, Node, Sparkline } from "./types";

export class ApiError extends Error {
  constructor(
    message: string,
    // 0: there was no answer.
    readonly status: number,
  ) {
    super(message);
  }
}

async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, signal ? { signal } : {});
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new ApiError("The coordinator does not answer.", 0);
  }
  const body = (await response.json().catch(() => null)) as
    (T & { error?: { message?: string } }) | null;
  if (response.ok && body !== null) return body;
  throw new ApiError(
    body?.error?.message ?? `The coordinator answered ${response.status}.`,
    response.status,
  );
}

function query(parameters: Record<string, string | number | undefined>): string {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== undefined && value !== "",
  );
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}

const path = (id: string) => `/api/v1/jobs/${encodeURIComponent(id)}`;

export interface JobsQuery {
  states?: readonly string[];
  pageToken?: string;
  pageSize?: number;
}

export function fetchJobs(wanted: JobsQuery, signal?: AbortSignal): Promise<JobPage> {
  return get(
    `/api/v1/jobs${query({
      view: "summary",
      states: wanted.states?.join(","),
      page_token: wanted.pageToken,
      page_size: wanted.pageSize,
    })}`,
    signal,
  );
}

export async function fetchJob(id: string, signal?: AbortSignal): Promise<Job> {
  const answer = await get<{ job?: Job }>(path(id), signal);
  if (!answer.job) throw new ApiError("The answer holds no job.", 500);
  return answer.job;
}

export async function fetchNodes(signal?: AbortSignal): Promise<Node[]> {
  return (await get<{ nodes?: Node[] }>("/api/v1/nodes", signal)).nodes ?? [];
}

export async function fetchSparklines(ids: readonly string[]): Promise<Record<string, Sparkline>> {
  const answer = await get<{ jobs?: Record<string, Sparkline> }>(
    `/api/v1/sparklines${query({ ids: ids.join(",") })}`,
  );
  return answer.jobs ?? {};
}

// All of it: a long job is read in several turns, and onPart is told how far.
export async function fetchHistory(
  id: string,
  options: { points: number; rank?: number },
  signal?: AbortSignal,
  onPart?: (part: JobHistory) => void,
): Promise<JobHistory> {
  for (;;) {
    const part = await get<JobHistory>(`${path(id)}/history${query(options)}`, signal);
    if (!part.isPartial) return part;
    onPart?.(part);
  }
}

export function fetchLengths(
  id: string,
  documents: number,
  signal?: AbortSignal,
): Promise<DataProfile> {
  return get(`${path(id)}/lengths${query({ documents })}`, signal);
}

export function eventsPath(id: string, after: string): string {
  return `${path(id)}/events?after=${after}`;
}
