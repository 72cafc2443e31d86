// Requests that have ended: the latest, the slowest, the failed.

import type { Records, Summary } from "../api.ts";
import { el, requestHref, requestLink, say } from "../dom.ts";
import { choice, text } from "../fields.ts";
import * as f from "../format.ts";
import { Grid } from "../grid.ts";
import { poll } from "../poll.ts";
import { glyph, type Context, type View } from "../view.ts";

const known = ["id", "model", "engine", "outcome", "code", "order", "since", "limit"];
const many = 1000;

/** A list that may be longer than many shows so many rows first: ten thousand are megabytes. */
const few = 200;

export function records(c: Context): View {
  const filters = new URLSearchParams();
  for (const k of known) {
    const v = c.params.get(k);
    if (v) filters.set(k, v);
  }
  const status = el("p", { class: "note", role: "status" }, "Asking.");
  const hold = el("input", { type: "checkbox" });
  const grid = new Grid<Summary>("Requests that have ended", [
    { head: "ended", width: "4.5em", number: true, cell: (r) => f.since(r.age_seconds) },
    { head: "whole", width: "5.5em", number: true, cell: (r) => f.ms(r.total_ms) },
    { head: "first output", width: "6.5em", number: true, wide: true, cell: (r) => f.ms(r.ttft_ms) },
    { head: "request", width: "minmax(6em, 2fr)", cell: (r) => requestLink(r.request_id, { tabindex: "-1" }) },
    { head: "outcome", width: "minmax(5em, 1.2fr)", cell: (r) => el("span", { "data-outcome": r.outcome, title: r.error }, el("span", { "aria-hidden": "true" }, glyph(r.outcome) + " "), r.code || r.outcome) },
    { head: "longest stage", width: "minmax(7em, 1.4fr)", wide: true, cell: (r) => (r.slowest_stage ? `${r.slowest_stage} ${f.ms(r.slowest_stage_ms)}` : f.unknown) },
    { head: "engine", width: "minmax(5em, 1.2fr)", wide: true, cell: (r) => (r.prefill_engine ? r.prefill_engine + " → " : "") + (r.engine ?? f.unknown) + ((r.attempts ?? 1) > 1 ? ` (${r.attempts} attempts)` : "") },
    { head: "model", width: "minmax(5em, 1.2fr)", wide: true, cell: (r) => r.model ?? f.unknown },
    { head: "in / out", width: "7em", wide: true, number: true, cell: (r) => `${f.count(r.prompt_tokens)} / ${f.count(r.completion_tokens)}` },
    { head: "output delay", width: "8em", wide: true, number: true, cell: (r) => f.ms(r.output_delay_ms) },
  ], (r) => r.request_id, (r) => { location.hash = requestHref(r.request_id); });
  const long = () => Number(filters.get("limit") ?? many) > many;
  /** The next question is for a few rows of a long list, and there are more. */
  let brief = long();
  let more = false;
  const set = (k: string, v: string) => {
    if (v) filters.set(k, v);
    else filters.delete(k);
    c.remember(filters);
    hold.checked = false;
    brief = long();
    asked.now();
  };
  const asked = poll<Records>({
    path: () => {
      const ask = new URLSearchParams(filters);
      if (brief) ask.set("limit", String(few));
      else if (!ask.has("limit")) ask.set("limit", String(many));
      return "records?" + ask.toString();
    },
    // Many rows take weir and the browser tens of milliseconds each time.
    every: () => (more ? 0 : long() ? 10_000 : 2000),
    got: (r) => {
      const rows = r.records ?? [];
      more = brief && rows.length < r.matched;
      brief = false;
      if (hold.checked) return;
      say(status, `${f.count(r.ended)} ended in the last ${f.seconds(r.window_seconds)}; ${f.count(r.kept)} are kept${r.passed_over ? `, ${f.count(r.passed_over)} are not` : ""}. ` +
        `${f.count(r.matched)} match${rows.length < r.matched ? `, ${f.count(rows.length)} are shown` : ""}.`);
      if (rows.length) grid.show(rows);
      else grid.empty("No request matches.");
    },
    failed: (e) => say(status, e.message),
  });
  const field = (label: string, k: string, props = {}) => text(label, k, filters.get(k) ?? "", (v) => set(k, v), props);
  return {
    root: el("section", {},
      el("div", { class: "fields" },
        choice("Order", "order", filters.get("order") ?? "", [["", "latest"], ["total", "slowest"], ["ttft", "slowest first output"]], (v) => set("order", v)),
        choice("Ended in the last", "since", filters.get("since") ?? "", [["", "15 minutes"], ["1m", "minute"], ["5m", "5 minutes"]], (v) => set("since", v)),
        choice("Outcome", "outcome", filters.get("outcome") ?? "", [["", "any"], ["finished", "finished"], ["failed", "failed"], ["rejected", "rejected"], ["cancelled", "cancelled"]], (v) => set("outcome", v)),
        field("Request id (/)", "id", { "data-filter": true }), field("Model", "model"), field("Engine", "engine"),
        choice("At most", "limit", filters.get("limit") ?? "", [["", "1,000"], ["100", "100"], ["10000", "10,000"]], (v) => set("limit", v)),
        el("label", { class: "check" }, hold, " hold the list")),
      status, grid.root),
    stop: () => asked.stop(),
  };
}
