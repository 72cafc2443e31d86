// Rates and percentiles since the page was opened.

import { Chart } from "../chart.ts";
import { el } from "../dom.ts";
import * as f from "../format.ts";
import { span, type History } from "../history.ts";
import type { Context, View } from "../view.ts";

const blue = "#3b7dd8", orange = "#d9920a", green = "#2f9e5b", red = "#d04437", violet = "#8a63c9";
const dash = [6, 4];

export function live(c: Context): View {
  const requests = new Chart("Requests a second", [{ name: "received", colour: blue }, { name: "finished", colour: green, dash }, { name: "not finished", colour: red, dash: [2, 3] }], f.rate);
  const tokens = new Chart("Tokens a second", [{ name: "output", colour: blue }, { name: "prompt", colour: orange, dash }], f.rate);
  const first = new Chart("Time to first output", [{ name: "p50", colour: blue }, { name: "p99", colour: orange, dash }], f.ms);
  const whole = new Chart("Time of whole requests", [{ name: "p50", colour: blue }, { name: "p99", colour: orange, dash }], f.ms);
  const flight = new Chart("Requests", [{ name: "in flight", colour: violet }, { name: "waiting for an engine", colour: red, dash }], f.count, true);
  const delay = new Chart("Output delay: the engine's first output until weir wrote it", [{ name: "p50", colour: blue }, { name: "p99", colour: orange, dash }], f.ms);
  const pending = new Chart("Streams whose output waits to be taken", [{ name: "pending", colour: violet }], f.count, true);
  const charts = [requests, tokens, first, whole, flight, delay, pending];

  const draw = (h: History) => {
    const at = h.times();
    requests.draw(at, h.rates((l) => l.received), h.rates((l) => l.ended["finished"] ?? 0),
      h.rates((l) => Object.entries(l.ended).reduce((n, [outcome, v]) => (outcome === "finished" ? n : n + v), 0)));
    tokens.draw(at, h.rates((l) => l.output_tokens), h.rates((l) => l.prompt_tokens));
    first.draw(at, h.percentiles((l) => l.ttft, 0.5), h.percentiles((l) => l.ttft, 0.99));
    whole.draw(at, h.percentiles((l) => l.total, 0.5), h.percentiles((l) => l.total, 0.99));
    flight.draw(at, h.gauge((l) => l.in_flight), h.gauge((l) => Object.values(l.queue).reduce((n, q) => n + q.waiting, 0)));
    delay.draw(at, h.percentiles((l) => l.output_delay, 0.5), h.percentiles((l) => l.output_delay, 0.99));
    pending.draw(at, h.gauge((l) => l.pending));
  };
  draw(c.history);
  const ended = c.onLive(() => draw(c.history));
  return {
    root: el("section", {},
      el("p", { class: "note" }, `Since this page was opened, at most ten minutes. Percentiles are of what came in the ${span} seconds before, on straight lines within the buckets of weir's histograms; tokens count when their request ends.`),
      el("div", { class: "charts" }, ...charts.map((x) => x.root))),
    stop: () => {
      ended();
      charts.forEach((x) => x.stop());
    },
  };
}
