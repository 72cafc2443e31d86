// Where the time goes: the stages' shares of the slowest 1 % beside those of the middle,
// and the output delay against how many streams were live.

import type { Band, Delay, Stages } from "../api.ts";
import { el, put, requestHref, requestLink, say, svg, table, type Child } from "../dom.ts";
import { choice, text } from "../fields.ts";
import * as f from "../format.ts";
import { poll } from "../poll.ts";
import { colours, meaning } from "../stages.ts";
import type { Context, View } from "../view.ts";

function bandName(b: Band): string {
  if (b.from_percentile > 40 && b.to_percentile < 60) return "the middle";
  if (b.from_percentile === 0) return "faster half";
  if (b.to_percentile === 100) return "slowest 1 %";
  return `p${b.from_percentile} to p${b.to_percentile}`;
}

/** The bands of one metric: the slowest beside the middle, and a table of all. */
function shares(title: string, bands: Band[]): Child[] {
  if (bands.length === 0) return [];
  const middle = bands.find((b) => bandName(b) === "the middle");
  const rest = bands.filter((b) => b !== middle);
  const slow = rest.at(-1);
  const beside = [...new Set([middle ?? rest[0], slow])].filter((b): b is Band => b !== undefined);
  const stages = [...new Set(bands.flatMap((b) => (b.stages ?? []).map((s) => s.stage)))];
  const bar = (b: Band) => {
    const total = (b.stages ?? []).reduce((n, s) => n + s.mean_ms, 0) || 1;
    let left = 0;
    return el("div", {}, el("span", {}, el("b", {}, bandName(b)), ` ${f.ms(b.mean_ms)}`),
      el("div", { class: "bar", "aria-hidden": "true" }, ...(b.stages ?? []).map((s) => {
        const part = el("span", { title: `${s.stage}: ${f.ms(s.mean_ms)}, ${f.percent(s.share)}`, style: { left: left + "%", width: (100 * s.mean_ms) / total + "%", background: colours[s.stage] ?? "var(--soft)" } },
          s.mean_ms / total > 0.12 ? el("em", {}, s.stage) : null);
        left += (100 * s.mean_ms) / total;
        return part;
      })));
  };
  return [
    el("h2", {}, title), el("div", { class: "shares" }, ...beside.map(bar)),
    el("p", { class: "key" }, ...stages.map((s) => el("span", { title: meaning(s) || undefined }, el("i", { class: "box", style: { "--c": colours[s] ?? "var(--soft)" }, "aria-hidden": "true" }), s))),
    ...rest.slice(-1).map((b) => el("p", { class: "verdict" }, b.sentence + ".")),
    el("details", {}, el("summary", {}, "All bands"),
      table(title, ["stage", ...bands.map(bandName)], [
        ...stages.map((s) => [s, ...bands.map((b) => { const p = b.stages?.find((x) => x.stage === s); return p ? `${f.ms(p.mean_ms)} (${f.percent(p.share)})` : f.unknown; })]),
        ["requests", ...bands.map((b) => f.count(b.requests))], ["mean", ...bands.map((b) => f.ms(b.mean_ms))], ["residual", ...bands.map((b) => f.ms(b.residual_ms))],
      ]), ...rest.map((b) => el("p", {}, b.sentence + "."))),
  ];
}

const width = 640, height = 280, left = 64, bottom = 34;

/** Output delay, on a logarithmic axis, against live streams. */
export function scatter(delays: Delay[]): SVGSVGElement {
  const most = Math.max(1, ...delays.map((d) => d.live));
  const positive = delays.map((d) => Math.max(d.delay_ms, 0.001));
  const low = Math.floor(Math.log10(Math.min(...positive, 0.1)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...positive, 1))));
  const x = (live: number) => left + ((width - left - 10) * live) / most;
  const y = (d: number) => height - bottom - ((height - bottom - 10) * (Math.log10(Math.max(d, 0.001)) - low)) / (high - low);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Output delay of ${delays.length} requests against live streams` });
  for (let p = low; p <= high; p++) {
    const at = y(10 ** p);
    root.append(svg("line", { class: "axis", x1: left, x2: width - 10, y1: at, y2: at }), svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, 10 ** p < 1000 ? 10 ** p + " ms" : 10 ** (p - 3) + " s"));
  }
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const live = Math.round(most * share);
    root.append(svg("text", { x: x(live), y: height - bottom + 18, "text-anchor": share === 1 ? "end" : "middle" }, live));
  }
  root.append(svg("text", { x: (left + width) / 2, y: height - 2, "text-anchor": "middle" }, "requests in flight at the first output"));
  for (const d of delays) {
    const dot = svg("circle", { cx: x(d.live).toFixed(1), cy: y(d.delay_ms).toFixed(1), r: 3 }, svg("title", {}, `${d.request_id}: ${f.ms(d.delay_ms)} at ${d.live} live, ${d.pending} pending`));
    dot.addEventListener("click", () => { location.hash = requestHref(d.request_id); });
    root.append(dot);
  }
  return root;
}

function delaysOf(delays: Delay[]): Child[] {
  if (delays.length === 0) return [el("p", { class: "note" }, "No stream has ended.")];
  const unknown = delays.filter((d) => d.hop_ms === undefined).length;
  const longest = [...delays].sort((a, b) => b.delay_ms - a.delay_ms).slice(0, 8);
  return [
    el("figure", { class: "scatter" }, el("figcaption", {}, `${f.count(delays.length)} requests`), scatter(delays)),
    el("p", { class: "note" }, "From the reading of the first output until weir wrote it. The hop is the time before that, from the engine's stamp on."),
    unknown > 0 && el("p", { class: "note" }, `The hop of ${f.count(unknown)} is not known: the engine does not stamp its output.`),
    el("h3", {}, "The longest"),
    table("The longest output delays", ["request", "delay", "hop", "live", "pending"], longest.map((d) => [requestLink(d.request_id), f.ms(d.delay_ms), f.ms(d.hop_ms), f.count(d.live), f.count(d.pending)])),
  ];
}

export function time(c: Context): View {
  const filters = new URLSearchParams();
  for (const k of ["since", "model", "engine"]) {
    const v = c.params.get(k);
    if (v) filters.set(k, v);
  }
  const status = el("p", { class: "note", role: "status" }, "Asking.");
  const body = el("div");
  const set = (k: string, v: string) => {
    if (v) filters.set(k, v);
    else filters.delete(k);
    c.remember(filters);
    asked.now();
  };
  const asked = poll<Stages>({
    path: () => "stages?" + filters.toString(), every: 5000,
    got: (s) => {
      const bands = s.bands ?? [];
      say(status, `${f.count(s.requests)} requests with output.`);
      // What is open or has the keyboard stays as it is.
      if (body.contains(document.activeElement) || body.querySelector("details[open]")) return;
      put(body,
        ...shares("Time to first output", bands.filter((b) => b.metric === "ttft")),
        ...shares("Time of whole requests", bands.filter((b) => b.metric === "e2e")),
        bands.length === 0 && el("p", { class: "note" }, "Too few requests to say more."),
        el("h2", {}, "Output delay against requests in flight"),
        el("p", { class: "note" }, "From the engine's first output until weir wrote it. A delay that grows with them is weir's; one that does not is the engine's or the network's."),
        ...delaysOf(s.delays ?? []));
    },
    failed: (e) => say(status, e.message),
  });
  return {
    root: el("section", {},
      el("div", { class: "fields" },
        choice("Ended in the last", "since", filters.get("since") ?? "", [["", "15 minutes"], ["1m", "minute"], ["5m", "5 minutes"]], (v) => set("since", v)),
        text("Model (/)", "model", filters.get("model") ?? "", (v) => set("model", v), { "data-filter": true }), text("Engine", "engine", filters.get("engine") ?? "", (v) => set("engine", v))),
      status, body),
    stop: () => asked.stop(),
  };
}
