// A list of many rows, of which only those that are seen exist. Arrow keys move in it,
// Enter opens a row, Escape leaves it.

import { el, put, type Child } from "./dom.ts";

export interface Column<T> {
  head: string;
  width: string; // as CSS grid has it
  cell: (row: T) => Child;
  /** Left out where the page is narrow. */
  wide?: boolean;
  number?: boolean;
}

const rowHeight = 32;

export class Grid<T> {
  readonly root: HTMLElement;
  private rows: T[] = [];
  private selected = ""; // the key of the chosen row
  private readonly body = el("div", { role: "rowgroup", class: "rows" });
  private readonly made = new Map<number, HTMLElement>();
  private static serial = 0;
  private readonly id = "grid" + ++Grid.serial;
  private queued = 0;

  constructor(label: string, private readonly columns: Column<T>[], private readonly key: (row: T) => string, private readonly open: (row: T) => void) {
    const head = el("div", { role: "row", class: "row head", "aria-rowindex": "1" }, ...columns.map((c) => el("div", { role: "columnheader", class: this.kind(c) }, c.head)));
    this.root = el("div", { role: "grid", class: "grid", tabindex: "0", "aria-label": label }, head, this.body);
    this.root.style.setProperty("--columns", columns.map((c) => c.width).join(" "));
    this.root.style.setProperty("--few", columns.filter((c) => !c.wide).map((c) => c.width).join(" "));
    this.root.addEventListener("scroll", () => this.soon(), { passive: true });
    this.root.addEventListener("keydown", (e) => this.press(e));
    this.body.addEventListener("click", (e) => this.click(e));
    new ResizeObserver(() => this.soon()).observe(this.root);
  }

  private kind(c: Column<T>): string {
    return (c.wide ? "lo" : "") + (c.number ? " n" : "");
  }

  show(rows: T[]): void {
    this.rows = rows;
    this.root.setAttribute("aria-rowcount", String(rows.length + 1));
    this.body.style.height = rows.length * rowHeight + "px";
    put(this.body);
    this.made.clear();
    this.paint();
  }

  private soon(): void {
    if (!this.queued) this.queued = requestAnimationFrame(() => this.paint());
  }

  private paint(): void {
    this.queued = 0;
    const first = Math.max(0, Math.floor(this.root.scrollTop / rowHeight) - 8);
    const last = Math.min(this.rows.length, Math.ceil((this.root.scrollTop + this.root.clientHeight) / rowHeight) + 8);
    for (const [i, node] of this.made)
      if (i < first || i >= last) {
        node.remove();
        this.made.delete(i);
      }
    const fresh = document.createDocumentFragment();
    for (let i = first; i < last; i++) {
      const row = this.rows[i];
      if (row === undefined || this.made.has(i)) continue;
      const node = el("div", { role: "row", class: "row", id: `${this.id}-${i}`, "aria-rowindex": String(i + 2), style: { top: i * rowHeight + "px" } },
        ...this.columns.map((c) => el("div", { role: "gridcell", class: this.kind(c) }, c.cell(row))));
      node.dataset["i"] = String(i);
      this.made.set(i, node);
      fresh.append(node);
    }
    this.body.append(fresh);
    this.mark();
  }

  private at(): number {
    return this.selected === "" ? -1 : this.rows.findIndex((r) => this.key(r) === this.selected);
  }

  private mark(): void {
    const at = this.at();
    for (const [i, node] of this.made) node.setAttribute("aria-selected", String(i === at));
    if (this.made.has(at)) this.root.setAttribute("aria-activedescendant", `${this.id}-${at}`);
    else this.root.removeAttribute("aria-activedescendant");
  }

  private select(i: number): void {
    const row = this.rows[i];
    if (row === undefined) return;
    this.selected = this.key(row);
    const top = i * rowHeight;
    const room = this.root.clientHeight - rowHeight; // under the heads
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (top + rowHeight > this.root.scrollTop + room) this.root.scrollTop = top + rowHeight - room;
    this.paint();
  }

  private press(e: KeyboardEvent): void {
    const at = this.at();
    const page = Math.max(1, Math.floor(this.root.clientHeight / rowHeight) - 2);
    const to: Record<string, number> = {
      ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), PageDown: Math.min(this.rows.length - 1, at + page), PageUp: Math.max(0, at - page), Home: 0, End: this.rows.length - 1,
    };
    const target = to[e.key];
    const row = this.rows[at];
    if (target !== undefined) this.select(Math.min(target, this.rows.length - 1));
    else if (e.key === "Enter" && row !== undefined) this.open(row);
    else if (e.key === "Escape") {
      this.selected = "";
      this.mark();
      this.root.blur();
    } else return;
    e.preventDefault();
  }

  private click(e: MouseEvent): void {
    if (!(e.target instanceof Element) || e.target.closest("a")) return;
    const node = e.target.closest<HTMLElement>("[data-i]");
    const row = this.rows[Number(node?.dataset["i"] ?? -1)];
    if (row !== undefined) this.open(row);
  }

  /** What stands in place of rows where there are none. */
  empty(words: string): void {
    this.show([]);
    this.body.style.height = "auto";
    put(this.body, el("div", { role: "row", class: "none" }, el("div", { role: "gridcell" }, words)));
  }
}
