// The fleet: each engine, and each of its ranks where it has any, with what weir thinks of
// it and why, and what it has to do.

import type { Books, Engine, Health, Rank, Records, Summary } from "../api.ts";
import { el, put, requestLink, say } from "../dom.ts";
import * as f from "../format.ts";
import { text } from "../fields.ts";
import { poll } from "../poll.ts";
import { badge, type Context, type View } from "../view.ts";
import { around } from "./around.ts";

/** A figure with its name. */
function figure(name: string, value: string, title = ""): HTMLElement {
  return el("div", { title: title || undefined }, el("dt", {}, name), el("dd", {}, value));
}

function stateOf(ready: boolean, h: Health | undefined): string {
  return h?.state ?? (ready ? "up" : "not ready");
}

function hit(b: Books | undefined): string {
  return f.percent(b?.cached_share_reported ?? b?.cached_share_predicted);
}

function kv(e: Engine): string {
  return e.kv_usage === undefined ? f.unknown : f.percent(e.kv_usage) + (e.kv_tokens ? ` of ${f.count(e.kv_tokens)}` : "");
}

const titles = {
  booked: "The work that weir has given it and that has not begun, in milliseconds of its time",
  kv: "The share of its KV cache that is taken, and the tokens that fit",
  hit: "The share of the prompts' tokens that were in its KV cache",
};

/** Some names of many. */
function named(all: string[]): string {
  const some = 8;
  return all.slice(0, some).join(", ") + (all.length > some ? ` and ${f.count(all.length - some)} more` : "");
}

function rankRow(r: Rank): HTMLElement {
  const state = stateOf(r.ready, r.health);
  return el("tr", {}, el("th", { scope: "row" }, "rank " + r.rank), el("td", {}, badge(state)), el("td", {}, f.since(r.health?.for_seconds)),
    el("td", {}, f.ms(r.books?.booked_wait_ms)), el("td", {}, f.count(r.books?.in_flight)), el("td", {}, `${r.books?.inflight_prefills ?? 0} / ${r.books?.running_decodes ?? 0}`),
    el("td", {}, hit(r.books)), el("td", { class: "text" }, r.health?.why ?? ""));
}

function card(e: Engine): HTMLElement {
  const state = stateOf(e.ready, e.health);
  const why = e.error ?? e.health?.why ?? (state === "up" ? "" : e.note) ?? "";
  const b = e.books;
  const node = el("article", { class: "card engine", "data-engine": e.name },
    el("h3", {}, badge(state), " ", e.name),
    el("p", { class: "note" }, [e.kind, e.software, e.role, named(e.models ?? [])].filter(Boolean).join(" · "), e.health ? ` · ${state} for ${f.since(e.health.for_seconds)}` : ""),
    why !== "" && el("p", { class: "why" }, el("b", {}, "Why: "), why),
    el("dl", { class: "figures" },
      figure("booked", f.ms(b?.booked_wait_ms), titles.booked),
      figure("KV", kv(e), titles.kv),
      figure("hit rate", hit(b), titles.hit),
      figure("running / waiting", `${f.count(e.running)} / ${f.count(e.waiting)}`, "As the engine last said"),
      figure("in flight from here", f.count(b?.in_flight)),
      figure("prefills / decodes", b ? `${b.inflight_prefills ?? 0} / ${b.running_decodes ?? 0}` : f.unknown, "Of weir's requests: those whose prompt it computes, and those that it decodes")));
  if (e.ranks?.length)
    node.append(el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Ranks of " + e.name },
      el("table", {}, el("thead", {}, el("tr", {}, ...["rank", "state", "since", "booked", "in flight", "prefills / decodes", "hit rate", "why"].map((h) => el("th", { scope: "col" }, h)))),
        el("tbody", {}, ...e.ranks.map(rankRow)))));
  return node;
}

function matches(e: Engine, words: string): boolean {
  return [e.name, e.kind, e.role ?? "", e.software ?? "", stateOf(e.ready, e.health), ...(e.models ?? [])].join(" ").toLowerCase().includes(words.toLowerCase());
}

function slow(s: Summary): HTMLElement {
  return el("li", {}, el("b", {}, f.ms(s.total_ms)), " ", requestLink(s.request_id), " ",
    el("span", { class: "note" }, s.reason?.sentence ?? [s.engine, s.outcome === "finished" ? "" : s.code || s.outcome].filter(Boolean).join(" · ")));
}

export function fleet(c: Context): View {
  let engines: Engine[] = [];
  let words = c.params.get("q") ?? "";
  const strip = el("dl", { class: "figures strip" });
  const list = el("div", { class: "cards" });
  const counted = el("p", { class: "note", role: "status" });
  const slowest = el("ol", { class: "slowest" });
  const slowestToo = el("div", { hidden: true }, el("h2", {}, "Slowest in the last minute"), slowest);
  const show = () => {
    const seen = engines.filter((e) => matches(e, words));
    const up = engines.filter((e) => e.ready && stateOf(true, e.health) === "up").length;
    say(counted, engines.length === 0 ? "No engine." : `${up} of ${engines.length} engines up` + (seen.length < engines.length ? `, ${seen.length} shown` : ""));
    put(list, ...seen.map(card));
  };
  const filter = text("Filter engines (/)", "q", words, (v) => {
    words = v;
    const p = new URLSearchParams();
    if (v) p.set("q", v);
    c.remember(p);
    show();
  }, { "data-filter": true, placeholder: "name, model, state" });

  const last = (column: (number | null)[]) => column.at(-1) ?? undefined;
  const figures = () => {
    const l = c.history.last;
    if (!l) return;
    const h = c.history;
    const waiting = Object.values(l.queue).reduce((n, q) => n + q.waiting, 0);
    put(strip,
      figure("in flight", f.count(l.in_flight)), figure("waiting for an engine", f.count(waiting)),
      figure("requests/s", f.rate(last(h.rates((x) => x.received)))), figure("tokens/s", f.rate(last(h.rates((x) => x.output_tokens)))),
      figure("first output p50", f.ms(last(h.percentiles((x) => x.ttft, 0.5)))), figure("p99", f.ms(last(h.percentiles((x) => x.ttft, 0.99)))));
  };
  figures();
  const ended = c.onLive(figures);
  const asked = poll<Engine[]>({ path: () => "engines", every: 1000, got: (all) => { engines = all; show(); } });
  const records = poll<Records>({
    path: () => "records?order=total&since=1m&limit=5&reason=1", every: 2000,
    got: (r) => {
      slowestToo.hidden = false;
      if (slowest.contains(document.activeElement)) return; // a link that is about to be opened stays
      put(slowest, ...((r.records ?? []).length ? (r.records ?? []).map(slow) : [el("li", { class: "note" }, "No request has ended in the last minute.")]));
    },
    failed: () => { slowestToo.hidden = true; },
  });
  const others = around();
  return {
    root: el("section", {}, strip,
      slowestToo,
      el("h2", {}, "Engines"), el("div", { class: "fields" }, filter), counted, list, others.root),
    stop: () => { ended(); asked.stop(); records.stop(); others.stop(); },
  };
}
