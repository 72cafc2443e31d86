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

/** A table of few rows: heads, and rows of cells. The first column is text, and so are those
 * of the heads that words names. */
export function table(caption: string, heads: string[], rows: Child[][], words: string[] = []): HTMLElement {
  const kind = (i: number) => (words.includes(heads[i] ?? "") ? { class: "words" } : {});
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("thead", {}, el("tr", {}, ...heads.map((h, i) => el("th", { scope: "col", ...kind(i) }, h)))),
      el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((c, i) => el("td", kind(i), c)))))));
}
