// Making elements. Whatever comes from outside gets in as text only.

export type Child = Node | string | number | null | undefined | false;

export interface Props {
  class?: string;
  /** Set through the style object, which the policy of the page allows. */
  style?: Record<string, string>;
  on?: { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
  /** Attributes; true is an empty one, false and undefined are none. */
  [attribute: string]: unknown;
}

function dress(node: HTMLElement | SVGElement, props: Props): void {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false || value === null) continue;
    switch (name) {
      case "style":
        for (const [k, v] of Object.entries(value as Record<string, string>)) node.style.setProperty(k, v);
        break;
      case "on":
        for (const [k, v] of Object.entries(value as Record<string, EventListener>)) node.addEventListener(k, v);
        break;
      default:
        node.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

function fill(node: Element, children: Child[]): void {
  for (const c of children) if (c !== null && c !== undefined && c !== false) node.append(c instanceof Node ? c : String(c));
}

export function el<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  dress(node, props);
  fill(node, children);
  return node;
}

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  dress(node, props);
  fill(node, children);
  return node;
}

/** Puts children in the place of all that a node has. */
export function put(node: Element, ...children: Child[]): void {
  node.replaceChildren();
  fill(node, children);
}

/** Sets a node's text where it differs, so that nothing that is read or selected moves. */
export function say(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** The address of a request within the page. */
export function requestHref(id: string): string {
  return "#request/" + encodeURIComponent(id);
}

export function requestLink(id: string, props: Props = {}): HTMLAnchorElement {
  return el("a", { class: "id", ...props, href: requestHref(id) }, id === "" ? "(no id)" : id);
}

/** A table of few rows: heads, and rows of cells. One that stacks has, on a phone, its cells one
 * below the other where it has too many words. The first column is text, and so are those
 * of the heads that words names. */
export function table(caption: string, heads: string[], rows: Child[][], words: string[] = [], stacks = false): HTMLElement {
  const kind = (i: number) => (words.includes(heads[i] ?? "") ? { class: "words" } : {});
  // Without their display as a table's, rows and cells are none to a reader of the screen.
  const role = (name: string) => (stacks ? { role: name } : {});
  const cell = (i: number) => (stacks ? { "data-head": heads[i] ?? "" } : {});
  return el("div", { class: stacks ? "wide stacks" : "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", role("table"),
      el("thead", role("rowgroup"), el("tr", role("row"), ...heads.map((h, i) => el("th", { scope: "col", ...kind(i), ...role("columnheader") }, h)))),
      el("tbody", role("rowgroup"), ...rows.map((cells) => el("tr", role("row"), ...cells.map((c, i) => el("td", { ...kind(i), ...role("cell"), ...cell(i) }, c)))))));
}
