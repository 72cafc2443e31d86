// Requests in flight: the stage in which each is now, and since when. The oldest first.

import type { InFlight, Requests } from "../api.ts";
import { el, put, requestHref, requestLink, say } from "../dom.ts";
import { text } from "../fields.ts";
import * as f from "../format.ts";
import { Grid } from "../grid.ts";
import { poll } from "../poll.ts";
import type { Context, View } from "../view.ts";

const limit = 1000;

export function flight(c: Context): View {
  const filters = new URLSearchParams();
  for (const k of ["engine", "model", "stage"]) {
    const v = c.params.get(k);
    if (v) filters.set(k, v);
  }
  const status = el("p", { class: "note", role: "status" }, "Asking.");
  const stages = el("p", { class: "chips" });
  const grid = new Grid<InFlight>("Requests in flight", [
    { head: "age", width: "5.5em", number: true, cell: (r) => f.seconds(r.age_seconds) },
    { head: "stage", width: "minmax(6em, 1fr)", cell: (r) => r.stage },
    { head: "for", width: "5.5em", number: true, cell: (r) => f.seconds(r.stage_seconds) },
    { head: "request", width: "minmax(6em, 2fr)", cell: (r) => requestLink(r.request_id, { tabindex: "-1" }) },
    { head: "engine", width: "minmax(5em, 1.2fr)", wide: true, cell: (r) => (r.prefill_engine ? r.prefill_engine + " → " : "") + (r.engine ?? f.unknown) + ((r.attempt ?? 1) > 1 ? ` (attempt ${r.attempt})` : "") },
    { head: "model", width: "minmax(5em, 1.2fr)", wide: true, cell: (r) => r.model ?? f.unknown },
    { head: "prompt", width: "5em", wide: true, number: true, cell: (r) => f.count(r.prompt_tokens) },
    { head: "tokens", width: "5em", wide: true, number: true, cell: (r) => f.count(r.tokens) },
    { head: "client", width: "minmax(5em, 1fr)", wide: true, cell: (r) => r.client ?? f.unknown },
  ], (r) => r.request_id, (r) => { location.hash = requestHref(r.request_id); });
  const set = (k: string, v: string) => {
    if (v) filters.set(k, v);
    else filters.delete(k);
    c.remember(filters);
    asked.now();
  };
  const asked = poll<Requests>({
    path: () => "requests?" + new URLSearchParams([["limit", String(limit)], ...filters]).toString(), every: 1000,
    got: (r) => {
      const rows = r.requests ?? [];
      say(status, `${f.count(r.total)} in flight` + (r.matched < r.total || filters.size ? `, ${f.count(r.matched)} match` : "") + (rows.length < r.matched ? `; the ${f.count(rows.length)} oldest are shown` : ""));
      if (!stages.contains(document.activeElement))
        put(stages, ...(r.stages ?? []).map((s) => {
          const on = filters.get("stage") === s.stage;
          return el("button", { type: "button", class: "chip", "aria-pressed": String(on), on: { click: (e) => { set("stage", on ? "" : s.stage); (e.currentTarget as HTMLElement).blur(); } } }, `${s.stage} ${f.count(s.requests)}`);
        }));
      if (rows.length) grid.show(rows);
      else grid.empty("Nothing is in flight" + (filters.size ? " that matches." : "."));
    },
    failed: (e) => say(status, e.message),
  });
  return {
    root: el("section", {},
      el("div", { class: "fields" },
        text("Engine (/)", "engine", filters.get("engine") ?? "", (v) => set("engine", v), { "data-filter": true }),
        text("Model", "model", filters.get("model") ?? "", (v) => set("model", v))),
      stages, status, grid.root),
    stop: () => asked.stop(),
  };
}
