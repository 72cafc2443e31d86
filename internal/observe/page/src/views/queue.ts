// What waits in weir until an engine has room, by model.

import type { Live } from "../api.ts";
import { el, put, table } from "../dom.ts";
import * as f from "../format.ts";
import type { Context, View } from "../view.ts";

/** How many models are shown. */
const most = 200;

export function queue(c: Context): View {
  const body = el("div");
  const show = (l: Live) => {
    // Those that wait come first: of thousands nobody looks for another.
    const all = Object.entries(l.queue).sort(([a, x], [b, y]) => y.waiting - x.waiting || (a < b ? -1 : 1));
    const models = all.slice(0, most);
    put(body,
      models.length === 0 ? el("p", { class: "note" }, "Nothing has waited yet, or weir runs with --queue off.") :
        table("The queue, by model", ["model", "waiting", "oldest", "left in", "held so far", "given an engine", "refused", "bytes"],
          models.map(([model, q]) => [model, f.count(q.waiting), f.seconds(q.oldest_seconds), q.waiting && q.drain_seconds ? f.seconds(q.drain_seconds) : f.unknown,
            f.count(q.held), f.count(q.released), Object.entries(q.refused).filter(([, n]) => n > 0).map(([why, n]) => `${why} ${f.count(n)}`).join(", ") || "0", f.bytes(q.bytes)])),
      all.length > models.length && el("p", { class: "note" }, `${f.count(all.length - models.length)} more models, of which fewer requests wait.`),
      l.tenants && l.tenants.length > 0 && table("Whose turn it is, by tenant", ["band", "tenant", "waiting", "which would take", "has had", "refused"],
        l.tenants.map((t) => [t.band, t.tenant, f.count(t.waiting), f.seconds(t.waiting_seconds), f.seconds(t.served_seconds), f.count(t.refused)])),
      el("h2", {}, "Tokenizing pool"),
      el("p", {}, `${f.count(l.pool_running)} jobs run, ${f.count(l.pool_waiting)} wait.`));
  };
  if (c.history.last) show(c.history.last);
  const ended = c.onLive(show);
  return {
    root: el("section", {}, el("p", { class: "note" }, "A request waits here while no engine has room for it (docs/queue.md). \"Left in\" is how long it takes until what waits now has left, by the rate at which requests leave."), body),
    stop: ended,
  };
}
