// Series over time, drawn by uPlot. The latest figures stand beside the names in words, so
// that nothing is in colour or in pixels alone.

import uPlot from "uplot";
import { el, put, say } from "./dom.ts";
import { changed, colour } from "./theme.ts";

/** Steps of an axis of whole numbers. */
const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000];

/** The least time that a chart shows, in seconds. */
const least = 60;

export interface Series {
  name: string;
  colour: string;
  dash?: number[];
}

const height = 150;

export class Chart {
  readonly root: HTMLElement;
  private readonly box = el("div", { class: "chart" });
  private readonly figures: HTMLElement[] = [];
  private plot: uPlot | null = null;
  private data: uPlot.AlignedData = [[]];
  private readonly watch: ResizeObserver;
  private readonly redraw = () => this.make();

  constructor(title: string, private readonly series: Series[], private readonly format: (v: number | null | undefined) => string, private readonly counts = false) {
    const key = el("p", { class: "key" });
    for (const s of series) {
      const figure = el("b", {}, "–");
      this.figures.push(figure);
      key.append(el("span", {}, el("i", { class: s.dash ? "dash" : "line", style: { "--c": s.colour }, "aria-hidden": "true" }), s.name, " ", figure));
    }
    this.root = el("figure", {}, el("figcaption", {}, title), key, this.box);
    this.watch = new ResizeObserver(() => this.fit());
    this.watch.observe(this.box);
    changed.addEventListener("change", this.redraw);
  }

  /** Draws columns: times in seconds since 1970, and a value for each of them. */
  draw(times: number[], ...columns: (number | null)[][]): void {
    this.data = [times, ...columns];
    columns.forEach((c, i) => {
      const f = this.figures[i];
      if (f) say(f, this.format(c.at(-1)));
    });
    if (this.plot) this.plot.setData(this.data);
    else this.make();
  }

  private fit(): void {
    const width = Math.floor(this.box.clientWidth);
    if (width > 0 && this.plot && this.plot.width !== width) this.plot.setSize({ width, height });
    else if (!this.plot) this.make();
  }

  private make(): void {
    const width = Math.floor(this.box.clientWidth);
    if (width <= 0 || (this.data[0]?.length ?? 0) === 0) return;
    this.plot?.destroy();
    put(this.box);
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: colour("soft"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    this.plot = new uPlot({
      width, height, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { range: (_u, from, to) => [Math.min(from, to - least), to] }, y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.1 : this.counts ? 4 : 1] } },
      axes: [{ ...axis, values: (_u, at) => at.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB")), space: 90 },
        { ...axis, size: 66, ...(this.counts ? { incrs: whole } : {}), values: (_u, at) => at.map((v) => this.format(v)) }],
      series: [{}, ...this.series.map((s) => ({ label: s.name, stroke: s.colour, width: 2, points: { show: false }, spanGaps: false, ...(s.dash ? { dash: s.dash } : {}) }))],
    }, this.data, this.box);
  }

  stop(): void {
    this.watch.disconnect();
    changed.removeEventListener("change", this.redraw);
    this.plot?.destroy();
    this.plot = null;
  }
}
