// The admin listener's answers, as far as the page reads them, and asking for them.
// docs/operating.md has their shapes. A field that is not known is absent.

import { current } from "./key.ts";

export interface Health {
  state: string;
  for_seconds: number;
  why?: string;
  cause?: string;
  takes: string;
  requests: number;
  silence_seconds: number;
}

export interface Books {
  in_flight: number;
  inflight_prefills?: number;
  running_decodes?: number;
  booked_wait_ms: number;
  unseen_wait_ms: number;
  booked_prefill_tokens: number;
  learned: boolean;
  cached_share_predicted?: number;
  cached_share_reported?: number;
}

export interface Rank {
  rank: number;
  ready: boolean;
  books?: Books;
  health?: Health;
}

export interface Engine {
  name: string;
  kind: string;
  role?: string;
  ready: boolean;
  error?: string;
  note?: string;
  models: string[] | null;
  software?: string;
  running?: number;
  waiting?: number;
  kv_usage?: number;
  kv_tokens?: number;
  books?: Books;
  health?: Health;
  ranks?: Rank[];
}

/** A histogram: for each of the bounds how many were at most that, and all of them. */
export interface Histogram {
  counts: number[];
  count: number;
  sum: number;
}

export interface QueueOf {
  waiting: number;
  bytes: number;
  oldest_seconds: number;
  drain_seconds: number;
  released: number;
  held: number;
  refused: Record<string, number>;
}

export interface Live {
  version: string;
  wall_time: string;
  uptime_seconds: number;
  received: number;
  ended: Record<string, number>;
  in_flight: number;
  pending: number;
  retries: number;
  prompt_tokens: number;
  output_tokens: number;
  output_bytes: number;
  pool_running: number;
  pool_waiting: number;
  bounds_seconds: number[];
  ttft: Histogram;
  total: Histogram;
  output_delay: Histogram;
  queue: Record<string, QueueOf>;
  tenants: TenantOf[] | null;
}

/** What waits of a tenant, and what it has had of the engines. */
export interface TenantOf {
  band: string;
  tenant: string;
  waiting: number;
  waiting_seconds: number;
  served_seconds: number;
  refused: number;
}

export interface InFlight {
  request_id: string;
  model?: string;
  endpoint?: string;
  dialect?: string;
  stream?: boolean;
  client?: string;
  engine?: string;
  prefill_engine?: string;
  attempt?: number;
  stage: string;
  stage_seconds?: number;
  age_seconds: number;
  prompt_tokens?: number;
  tokens?: number;
}

export interface Requests {
  total: number;
  matched: number;
  stages: { stage: string; requests: number }[] | null;
  requests: InFlight[] | null;
}

/** A stage of a request; start_ms is since its arrival. */
export interface Lasted {
  stage: string;
  start_ms: number;
  ms: number;
}

/** Why a request took as long as it did. */
export interface Reason {
  stage: string;
  ms: number;
  sentence: string;
  stages: Lasted[] | null;
}

export interface Summary {
  request_id: string;
  wall_time: string;
  age_seconds: number;
  endpoint?: string;
  model?: string;
  stream?: boolean;
  client?: string;
  outcome: string;
  code?: string;
  error?: string;
  status?: number;
  engine?: string;
  prefill_engine?: string;
  attempts?: number;
  prompt_tokens?: number;
  completion_tokens?: number;
  cached_tokens?: number;
  ttft_ms?: number;
  total_ms: number;
  output_delay_ms?: number;
  live?: number;
  pending?: number;
  slowest_stage?: string;
  slowest_stage_ms?: number;
  sampled?: boolean;
  stalls?: unknown;
  /** Where it was asked for. */
  reason?: Reason;
}

export interface Records {
  window_seconds: number;
  ended: number;
  kept: number;
  passed_over: number;
  matched: number;
  records: Summary[] | null;
}

export interface Part {
  stage: string;
  mean_ms: number;
  share: number;
  excess_ms: number;
}

export interface Band {
  metric: string;
  from_percentile: number;
  to_percentile: number;
  requests: number;
  mean_ms: number;
  stages: Part[] | null;
  residual_ms: number;
  sentence: string;
}

export interface Delay {
  live: number;
  pending: number;
  delay_ms: number;
  hop_ms?: number;
  request_id: string;
}

export interface Stages {
  requests: number;
  bands: Band[] | null;
  delays: Delay[] | null;
}

export interface Stall {
  start: string;
  ms: number;
  held_by?: string;
  why?: string;
  operations?: { operation: string; ms: number; request_ids?: string[] | null }[] | null;
  cpu_ms?: number;
  gc_pause_ms?: number;
  run_delay_ms?: number;
  steal_ms?: number;
  throttled_ms?: number;
  streams?: number;
  pending?: number;
}

export interface Stalls {
  threshold_ms: number;
  total: number;
  stalls: Stall[] | null;
}

export interface Profiles {
  on: boolean;
  profiles: { name: string; kind: string; trigger: string; time: string; bytes: number }[] | null;
}

export interface Flag {
  name: string;
  group?: string;
  value: string;
  given: boolean;
  hidden?: boolean;
  help?: string;
}

export interface Settings {
  version: string;
  command: string;
  flags: Flag[];
}

/** What is wanted and not in force. */
export interface Pending {
  generation: number;
  reading?: { at: string; result: string; error?: string };
  restart: { name: string; in_force: string; wanted: string; hidden?: boolean }[];
  engines: Wanted[];
  names: string[];
  keys: { flag: string; since: string; error: string }[];
}

/** An engine as the fleet wants it and as it is. */
export interface Wanted {
  name: string;
  state: string;
  origin?: string;
  in_flight: number;
  error?: string;
}

/** Another gateway in front of the same engines, or this one. */
export interface Gateway {
  address: string;
  instance?: string;
  state: string;
  error?: string;
  seconds_since_heard?: number;
}

export interface Peers {
  peers: Gateway[];
}

/** A source that finds engines. */
export interface Discovered {
  source: string;
  engines: number;
  complete: boolean;
  error?: string;
  for_seconds?: number;
  notes?: string[];
}

export interface Fleet {
  discovery?: Discovered[];
}

export interface Leg {
  role: string;
  engine: string;
  engine_request_id?: string;
  dp_rank?: number;
  outcome: string;
  [moment: string]: string | number | undefined;
}

export interface Option {
  engine: string;
  predicted_cached_tokens: number;
  predicted_wait: number;
  predicted_ttft: number;
  predicted_prefill: number;
  predicted_others: number;
  decoders: number;
  cold?: boolean;
}

export interface Choice extends Option {
  why: string;
  engines: number;
  prompt_tokens: number;
  available_cached_tokens?: number;
  predicted_regret?: number;
  delivered_ttft?: number;
  cached_tokens?: number;
  best: Option[];
  prefill?: Choice;
}

export interface Attempt {
  legs: Leg[] | null;
  repeated?: boolean;
  may_have_run?: boolean;
  choice?: Choice;
}

/** A whole record. Stamps and durations are nanoseconds of one clock. */
export interface Record_ {
  request_id: string;
  wall_time: string;
  endpoint: string;
  client?: string;
  model: string;
  stream: boolean;
  outcome: string;
  code?: string;
  error?: string;
  status: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  live_at_arrival: number;
  pending_at_arrival: number;
  live_at_first_token: number;
  pending_at_first_token: number;
  arrival_time: number;
  first_received_time?: number;
  first_flushed_time?: number;
  finish_time?: number;
  ttft?: number;
  total_latency?: number;
  output_delay?: number;
  output_hop?: number;
  last_received_time?: number;
  gap?: { duration: number; token: number; tokens?: number; engine?: string; before_weir: number; in_weir: number; client: number };
  stages: Record<string, number>;
  residual: number;
  stalls?: { start_time: number; duration: number; why?: string }[];
  stalled?: number;
  attempts: Attempt[] | null;
}

/** An answer other than 200. */
export class Refused extends Error {
  constructor(readonly status: number, text: string) {
    super(text.trim() || `status ${status}`);
  }
}

const patience = 10_000;

/** Asks with a key, none where it is empty. An answer other than 200 is thrown as Refused. */
export async function answerTo(path: string, key: string, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = key === "" ? {} : { Authorization: "Bearer " + key };
  const answer = await fetch(path, { headers, signal: signal ?? null, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).slice(0, 500));
  return answer;
}

let wanted = () => {};

/** Calls back whenever the key of this tab, or its lack, is refused. */
export function onKeyWanted(back: () => void): void {
  wanted = back;
}

async function ask(path: string, signal?: AbortSignal): Promise<Response> {
  const key = current();
  try {
    return await answerTo(path, key, signal);
  } catch (e) {
    // An answer to an older key says nothing about the one that took its place.
    if (e instanceof Refused && e.status === 401 && key === current()) wanted();
    throw e;
  }
}

/** A whole file, however long it takes. */
export async function getBlob(path: string): Promise<Blob> {
  return (await ask(path)).blob();
}

export async function getText(path: string, stop?: AbortSignal): Promise<string> {
  const late = AbortSignal.timeout(patience);
  return (await ask(path, stop ? AbortSignal.any([stop, late]) : late)).text();
}

export async function get<T>(path: string, stop?: AbortSignal): Promise<T> {
  return JSON.parse(await getText(path, stop)) as T;
}
