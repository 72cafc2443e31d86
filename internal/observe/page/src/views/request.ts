// One request: where its time went, its attempts and their legs, and the decisions behind
// them.

import { get, getText, Refused, type Attempt, type Band, type Choice, type Lasted, type Leg, type Option, type Reason, type Record_, type Records, type Stages } from "../api.ts";
import { el, put, requestLink, table, type Child } from "../dom.ts";
import * as f from "../format.ts";
import { colours, end, lastLeg, meaning } from "../stages.ts";
import { glyph, type Context, type View } from "../view.ts";

const ns = (v: number | undefined): string => f.ms(v === undefined ? undefined : v / 1e6);

/** A bar of parts that follow one another, over so many milliseconds. */
function bar(parts: Lasted[], whole: number): HTMLElement {
  return el("div", { class: "bar", "aria-hidden": "true" }, ...parts.map((p) =>
    el("span", { title: `${p.stage}: ${f.ms(p.ms)}, from ${f.ms(p.start_ms)}`, style: { left: (100 * p.start_ms) / whole + "%", width: (100 * p.ms) / whole + "%", background: colours[p.stage] ?? "var(--soft)" } },
      p.ms / whole > 0.12 ? el("em", {}, p.stage) : null)));
}

/** Stages one under the other, each at its place in time. */
function waterfall(parts: Lasted[], whole: number): HTMLElement {
  return el("ol", { class: "waterfall" }, ...parts.map((p) => el("li", { title: meaning(p.stage) || undefined },
    el("span", { class: "name" }, p.stage), el("span", { class: "lane", "aria-hidden": "true" },
      el("i", { style: { left: (100 * p.start_ms) / whole + "%", width: `max(2px, ${(100 * p.ms) / whole}%)`, background: colours[p.stage] ?? "var(--soft)" } })),
    el("span", { class: "n" }, f.ms(p.ms)), el("span", { class: "n lo" }, f.percent(p.ms / whole)))));
}

/** Why it took so long, in a sentence, beside what is usual. */
function sentence(why: Reason | undefined, bands: Band[] | null): Child[] {
  if (!why) return [];
  const median = bands?.find((b) => b.metric === "ttft" && b.from_percentile > 40 && b.to_percentile < 60) ?? bands?.find((b) => b.metric === "ttft" && b.from_percentile === 0);
  const usual = median?.stages?.find((s) => s.stage === why.stage);
  return [el("b", {}, why.sentence), usual ? ` In the middle of the last 15 minutes' requests ${why.stage} took ${f.ms(usual.mean_ms)}, and the first output ${f.ms(median?.mean_ms)}.` : ""];
}

function count(n: number, what: string): string {
  return `${f.count(n)} ${what}${n === 1 ? "" : "s"}`;
}

/** The moments of a leg, in their order, each as milliseconds since the arrival. */
function moments(leg: Leg, arrival: number): Child[][] {
  return Object.entries(leg)
    .filter((e): e is [string, number] => typeof e[1] === "number" && /_time(_start|_end)?$/.test(e[0]) && e[1] > 0)
    .sort((a, b) => a[1] - b[1])
    .map(([name, at]) => [name, ns(at - arrival)]);
}

function options(c: Choice): HTMLElement {
  return table("What the choice saw", ["engine", "first output", "of that wait", "prefill", "delays others", "of the prompt there", "decoding there"],
    c.best.map((o: Option) => [el("span", {}, o.engine === c.engine ? el("b", {}, "▸ " + o.engine + " (chosen)") : o.engine, o.cold ? " (cold)" : ""), ns(o.predicted_ttft), ns(o.predicted_wait), ns(o.predicted_prefill), ns(o.predicted_others),
      `${f.count(o.predicted_cached_tokens)} of ${f.count(c.prompt_tokens)}`, f.count(o.decoders)]));
}

function decision(c: Choice, title: string): HTMLElement {
  return el("div", { class: "decision" }, el("h4", {}, title),
    el("p", {}, el("b", {}, c.engine), ` of ${count(c.engines, "engine")}, because: `, el("b", {}, c.why), ". First output predicted after ", ns(c.predicted_ttft),
      c.delivered_ttft !== undefined ? `, delivered after ${ns(c.delivered_ttft)}` : "", c.predicted_regret ? `; ${ns(c.predicted_regret)} dearer than the best` : "", "."),
    options(c));
}

function attempt(a: Attempt, i: number, n: number, r: Record_): HTMLElement {
  const total = end(r) - r.arrival_time || 1;
  const legs = a.legs ?? [];
  const share = (at: number | undefined) => (100 * Math.min(Math.max((at ?? r.arrival_time) - r.arrival_time, 0), total)) / total;
  return el("section", { class: "card" },
    el("h3", {}, n > 1 ? `Attempt ${i + 1} of ${n}` : "The attempt", a.repeated ? " (repeated elsewhere" + (a.may_have_run ? ", although it may have run here)" : ")") : ""),
    ...legs.map((leg) => {
      const from = leg["handed_time"] as number | undefined;
      // A leg ends where the next attempt's begins, or with the request.
      const next = r.attempts?.[i + 1]?.legs?.[0]?.["handed_time"] as number | undefined;
      const to = (leg["answered_time"] as number | undefined) ?? next ?? r.finish_time;
      const left = share(from);
      return el("div", { class: "leg" },
        el("p", {}, el("b", {}, `${leg.role === "full" ? "whole request" : leg.role} on ${leg.engine}`), leg.dp_rank !== undefined ? ` rank ${leg.dp_rank}` : "", leg.outcome ? `: ${leg.outcome}` : "",
          leg.engine_request_id ? el("span", { class: "note" }, " · there it is ", el("code", {}, leg.engine_request_id)) : null),
        el("div", { class: "bar thin", "aria-hidden": "true" }, el("span", { style: { left: left + "%", width: Math.max(0.3, share(to) - left) + "%", background: "#5a6fb0" } })),
        el("details", {}, el("summary", {}, "Moments, since the arrival"), table("Moments of the leg", ["moment", "after"], moments(leg, r.arrival_time))));
    }),
    legs.length === 0 && el("p", { class: "note" }, "It was handed to no engine."),
    a.choice && decision(a.choice, "The decision"), a.choice?.prefill && decision(a.choice.prefill, "The prefill engine's"));
}

/** A path, which breaks before a slash where it is too long for its place. */
function paths(path: string): Child {
  return el("span", {}, ...path.split(/(?=\/)/).flatMap((p): Child[] => [el("wbr"), p]));
}

function facts(r: Record_): HTMLElement {
  const leg = lastLeg(r);
  const d = (name: string, value: Child) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
  return el("dl", { class: "figures" },
    d("outcome", el("span", {}, el("span", { "aria-hidden": "true" }, glyph(r.outcome) + " "), r.outcome + (r.status ? ` (${r.status})` : ""))), d("began", f.clock(new Date(r.wall_time))), d("first output", r.stream ? ns(r.ttft) : "not streamed"), d("whole", ns(end(r) - r.arrival_time)),
    d("output delay", ns(r.output_delay)), d("hop", ns(r.output_hop)), d("longest gap", r.gap ? `${ns(r.gap.duration)}, before token ${f.count(r.gap.token)}` : f.unknown), d("model", r.model || f.unknown), d("engine", leg?.engine ?? f.unknown), d("tokens in / out", `${f.count(r.prompt_tokens)} / ${f.count(r.completion_tokens)}`),
    d("cached", f.count(r.cached_tokens)), d("in flight at arrival", f.count(r.live_at_arrival)), d("pending then", f.count(r.pending_at_arrival)), d("endpoint", paths(r.endpoint)), d("client", r.client ?? f.unknown));
}

function whole(r: Record_, why: Reason | undefined): Child[] {
  const total = Math.max((end(r) - r.arrival_time) / 1e6, 1e-6);
  const parts = why?.stages ?? [];
  const own = Object.entries(r.stages).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]);
  return [
    el("p", { class: "verdict", id: "reason" }, ...sentence(why, null)),
    facts(r),
    el("h2", {}, "Where its time went"), bar(parts, total), waterfall(parts, total),
    ...(r.stalls?.length ? [el("h2", {}, "Stalls that it lived through"), table("Stalls", ["after", "for", "held by"], r.stalls.map((s) => [ns(s.start_time - r.arrival_time), ns(s.duration), s.why || "not known"]), ["held by"]), el("p", {}, el("a", { href: "#stalls" }, "All stalls"))] : []),
    el("h2", {}, "Attempts"), ...(r.attempts ?? []).map((a, i, all) => attempt(a, i, all.length, r)),
    (r.attempts ?? []).length === 0 && el("p", { class: "note" }, "There was none."),
    el("details", {}, el("summary", {}, `weir's own stages (residual ${ns(r.residual)})`),
      el("p", { class: "note" }, "weir is in one of these at any moment, so that they add up to the whole: engine is the time in which it waited for the engine's output."),
      table("weir's own stages", ["stage", "time", "share"], own.map(([name, v]) => [name, ns(v), f.percent(v / 1e6 / total)]))),
    el("details", {}, el("summary", {}, "The record as JSON"), el("pre", { tabindex: "0" }, JSON.stringify(r, null, 1))),
  ];
}

export function request(c: Context): View {
  const body = el("div", {}, el("p", { class: "note" }, "Asking for it."));
  const stop = new AbortController();
  let timer = 0;
  const ask = async () => {
    try {
      const named = encodeURIComponent(c.rest);
      const [text, short] = await Promise.all([getText("timeline/" + named, stop.signal), get<Records>(`records?id=${named}&reason=1&limit=1`, stop.signal)]);
      const all = text.trim().split("\n").map((l) => JSON.parse(l) as Record_);
      const chosen = all[0];
      if (!chosen) return;
      const why = short.records?.[0]?.reason;
      put(body, ...(all.length > 1 ? [el("p", { class: "note" }, `${all.length} requests had this id; this is the latest.`)] : []), ...whole(chosen, why));
      const bands = (await get<Stages>("stages?since=15m", stop.signal).catch(() => null))?.bands ?? null;
      const at = document.getElementById("reason");
      if (bands && at && !stop.signal.aborted) put(at, ...sentence(why, bands));
    } catch (e) {
      if (stop.signal.aborted) return;
      const gone = e instanceof Refused && e.status === 404;
      put(body, el("p", { class: "verdict bad" }, gone ? "It has not ended yet, or it is no longer kept: " : "", e instanceof Error ? e.message : String(e)));
      if (gone) timer = window.setTimeout(() => void ask(), 2000);
    }
  };
  void ask();
  return {
    root: el("section", {}, el("p", { class: "crumb" }, requestLink(c.rest)), body),
    stop: () => {
      clearTimeout(timer);
      stop.abort();
    },
  };
}
