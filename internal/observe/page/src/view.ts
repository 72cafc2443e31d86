// What a view is: something of the page that is shown for a hash, as long as that holds.

import type { Live } from "./api.ts";
import { el } from "./dom.ts";
import type { History } from "./history.ts";

export interface View {
  root: HTMLElement;
  /** Called when another view takes its place. */
  stop(): void;
}

export interface Context {
  history: History;
  /** Calls back with each answer of /live; gives what ends that. */
  onLive(back: (live: Live) => void): () => void;
  /** What stands behind the view's name in the hash: one word behind a slash, and words
   * behind a question mark. */
  rest: string;
  params: URLSearchParams;
  /** Puts other words into the hash, without a step in the browser's history. */
  remember(params: URLSearchParams): void;
}

export type Make = (c: Context) => View;

/** Words on an engine's or a record's state that do not rely on colour. */
const glyphs: Record<string, string> = {
  up: "●", soft: "◐", suspect: "◔", probing: "◔", draining: "▽", down: "✕", "not ready": "○",
  finished: "●", failed: "✕", rejected: "◇", cancelled: "▽",
  followed: "●", current: "●", unreachable: "✕", failing: "✕", "this gateway": "◆",
};

export function glyph(state: string): string {
  return glyphs[state] ?? "○";
}

/** A state with its sign. */
export function badge(state: string): HTMLElement {
  return el("span", { class: "state", "data-state": state }, el("span", { "aria-hidden": "true" }, glyph(state) + " "), state);
}
