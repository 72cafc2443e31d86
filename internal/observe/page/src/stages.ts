// The stages that a request passes, by the names that weir bench and weir report have too
// (docs/bench.md).

import type { Leg, Record_ } from "./api.ts";

/** Colours of the stages, as in weir's reports, in their order. A colour never stands
 * alone: the stage's name is beside it. */
export const colours: Record<string, string> = {
  client: "#98a0ab", transport: "#b9a27a", read: "#c7b3d9", template: "#b0483a", "tokenize wait": "#e0709a", tokenize: "#f0a35e", "router queue": "#d04437", retries: "#8f2d22", router: "#e58a4e",
  dispatch: "#d9c20a", "engine intake": "#a8b820", "engine queue": "#8a63c9", bootstrap: "#b05ac0", prefill: "#3b7dd8", transfer: "#c98d1a", "to running": "#6f8fc0", engine: "#5a6fb0",
  "engine output": "#4fb3c9", hop: "#2b6f8a", "output path": "#1f8f86", delivery: "#7fc4a0", decode: "#2f9e5b", gap: "#9a3b6a", flush: "#7a5c3e", end: "#667788",
};

const meanings: Record<string, string> = {
  read: "until weir had all of the request from its client",
  template: "rendering the model's chat template",
  "tokenize wait": "waiting for the tokenizing pool",
  tokenize: "making ids of the text",
  "router queue": "waiting in weir until an engine had room",
  retries: "earlier attempts at engines",
  router: "the rest of weir's own work before the engine: decoding the body, choosing",
  dispatch: "from weir to the engine",
  "engine intake": "until the engine had it in its queue",
  "engine queue": "waiting in the engine for a batch",
  prefill: "the engine computed the prompt",
  bootstrap: "until the two engines had met",
  transfer: "until the prompt's KV was at the decode engine",
  "to running": "until the decode engine ran it",
  engine: "the engine's time, which it does not tell apart",
  "engine output": "from the first token until the engine sent it",
  hop: "from the engine's sending of its output until weir had read it: the engine's server process, and the network",
  "output path": "weir had the output, and had not written it",
  delivery: "until the client had the first output",
  gap: "the engine sent nothing between two outputs",
  decode: "from the first output until the last one",
  flush: "writing to the client: long where it does not read",
  end: "what came after",
};

export function meaning(stage: string): string {
  return meanings[stage] ?? "";
}

/** The leg that served the client. */
export function lastLeg(r: Record_): Leg | undefined {
  return r.attempts?.at(-1)?.legs?.at(-1);
}

/** The end of a record: a request that never had one ended as it came. */
export function end(r: Record_): number {
  return r.finish_time ?? r.arrival_time + (r.total_latency ?? 0);
}
