// What is around the fleet: the gateways in front of the same engines, and the sources that find
// engines. Most fleets have neither, and then nothing is shown.

import type { Discovered, Fleet, Gateway, Peers } from "../api.ts";
import { el, put } from "../dom.ts";
import * as f from "../format.ts";
import { poll } from "../poll.ts";
import { badge, type View } from "../view.ts";

/** What a card has: a state, whose it is, and words on it. */
interface Card {
  state: string;
  name: string;
  note: string;
  why: string;
}

function gateway(g: Gateway): Card {
  const heard = g.state === "followed" && g.instance;
  const state = g.state === "followed" && !heard ? "not heard yet" : g.state === "self" ? "this gateway" : g.state;
  return { state, name: g.address, note: heard ? ((g.seconds_since_heard ?? 0) < 1 ? "heard now" : `heard ${f.since(g.seconds_since_heard)} ago`) : "", why: g.error ?? "" };
}

function source(d: Discovered): Card {
  const state = d.error ? "failing" : d.complete ? "current" : "being read";
  return { state, name: d.source, note: `${f.count(d.engines)} ${d.engines === 1 ? "engine" : "engines"} found` + (d.error && (d.for_seconds ?? 0) >= 1 ? ` · failing for ${f.since(d.for_seconds)}` : ""), why: [d.error, ...(d.notes ?? [])].filter(Boolean).join("; ") };
}

function card(c: Card): HTMLElement {
  return el("article", { class: "card" }, el("h3", {}, badge(c.state), " ", c.name),
    c.note !== "" && el("p", { class: "note" }, c.note), c.why !== "" && el("p", { class: "why" }, el("b", {}, "Why: "), c.why));
}

/** A part of the page. It is hidden while it has no cards, and stays as it is under the reader's
 * eyes while none changes. */
function part(title: string): { root: HTMLElement; show: (cards: Card[]) => void } {
  const body = el("div", { class: "cards" });
  const root = el("section", { hidden: true, "aria-label": title }, el("h2", {}, title), body);
  let shown = "";
  return { root, show: (cards) => {
    root.hidden = cards.length === 0;
    const now = JSON.stringify(cards);
    if (now !== shown) put(body, ...cards.map(card));
    shown = now;
  } };
}

export function around(): View {
  const gateways = part("Gateways");
  const sources = part("Where engines come from");
  const peers = poll<Peers>({
    path: () => "peers", every: 2000,
    got: (p) => gateways.show(p.peers.map(gateway)),
    failed: () => gateways.show([]),
  });
  const found = poll<Fleet>({
    path: () => "admin/fleet", every: 5000,
    got: (v) => sources.show((v.discovery ?? []).map(source)),
    failed: () => sources.show([]), // weir frontend's fleet does not change
  });
  return { root: el("div", {}, gateways.root, sources.root), stop: () => { peers.stop(); found.stop(); } };
}
