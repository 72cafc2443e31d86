// The page: a header that says how weir is, a view for each hash, and one question a second.

import "uplot/dist/uPlot.min.css";
import "./page.css";
import { onKeyWanted, type Live } from "./api.ts";
import { el, put, say } from "./dom.ts";
import { focusFilter } from "./fields.ts";
import * as f from "./format.ts";
import { History } from "./history.ts";
import * as key from "./key.ts";
import { poll, type Poll } from "./poll.ts";
import { toggle } from "./theme.ts";
import type { Context, Make, View } from "./view.ts";
import { fleet } from "./views/fleet.ts";
import { flight } from "./views/flight.ts";
import { keyForm, type Form } from "./views/key.ts";
import { live } from "./views/live.ts";
import { queue } from "./views/queue.ts";
import { records } from "./views/records.ts";
import { request } from "./views/request.ts";
import { settings } from "./views/settings.ts";
import { stalls } from "./views/stalls.ts";
import { time } from "./views/time.ts";

const views: { name: string; title: string; make: Make; tab: boolean }[] = [
  { name: "fleet", title: "Fleet", make: fleet, tab: true },
  { name: "live", title: "Live", make: live, tab: true },
  { name: "flight", title: "In flight", make: flight, tab: true },
  { name: "records", title: "Records", make: records, tab: true },
  { name: "time", title: "Where the time goes", make: time, tab: true },
  { name: "stalls", title: "Stalls", make: stalls, tab: true },
  { name: "queue", title: "Queue", make: queue, tab: true },
  { name: "settings", title: "Settings", make: settings, tab: true },
  { name: "request", title: "Request", make: request, tab: false },
];

const history_ = new History();
const told = new Set<(l: Live) => void>();
const state = el("p", { class: "alive", role: "status" }, "○ asking weir");
const main = el("main", { id: "main", tabindex: "-1" });
const heading = el("h1", {}, "");
const links = views.filter((v) => v.tab).map((v) => el("a", { href: "#" + v.name, "data-view": v.name }, v.title));
// Loading again leaves nothing in memory of what the key has shown.
const forget = el("button", { type: "button", class: "quiet", hidden: true, on: { click: () => { key.forget(); location.reload(); } } }, "Forget key");
let current: View | null = null;
let pulse: Poll | null = null;
/** The form in the place of a view, as long as weir wants a key. */
let form: Form | null = null;

/** Where the hash leads: a view, one word, and words by name. */
function parse(): { name: string; rest: string; params: URLSearchParams } {
  const [path = "", query = ""] = location.hash.slice(1).split("?", 2);
  const [name = "", rest = ""] = path.split("/", 2);
  let word = rest;
  try {
    word = decodeURIComponent(rest);
  } catch {
    // an address that somebody has cut: the word as it stands
  }
  return { name: name || "fleet", rest: word, params: new URLSearchParams(query) };
}

function show(): void {
  if (form) return;
  const { name, rest, params } = parse();
  const view = views.find((v) => v.name === name) ?? views[0];
  if (!view) return;
  current?.stop();
  const context: Context = {
    history: history_, rest, params,
    onLive: (back) => {
      told.add(back);
      return () => told.delete(back);
    },
    remember: (p) => history.replaceState(null, "", "#" + view.name + (rest ? "/" + encodeURIComponent(rest) : "") + (p.size ? "?" + p.toString() : "")),
  };
  current = view.make(context);
  say(heading, view.title);
  document.title = "weir: " + view.title.toLowerCase();
  for (const a of links) {
    if (a.dataset["view"] === view.name) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  put(main, heading, current.root);
}

document.addEventListener("keydown", (e) => {
  const typing = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement || e.target instanceof HTMLTextAreaElement;
  if (e.key === "/" && !typing && !e.ctrlKey && !e.metaKey && !e.altKey && focusFilter()) e.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden && !form) say(state, "‖ not asking while the page is hidden");
});
addEventListener("hashchange", () => {
  if (form) return;
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

document.body.replaceChildren(
  el("a", { class: "skip", href: "#main", on: { click: (e) => { e.preventDefault(); main.focus(); } } }, "Skip to the content"),
  el("header", {}, el("a", { class: "brand", href: "#fleet" }, "weir"), state, forget, toggle()),
  el("nav", { "aria-label": "Views" }, ...links),
  main,
);

/** Asks how weir is, and shows the view that the address names. */
function begin(): void {
  forget.hidden = key.current() === "";
  show();
  pulse = poll<Live>({
    path: () => "live", every: 1000,
    got: (l) => {
      // A clock that goes on evenly, whatever the wall clock is set to meanwhile.
      history_.add(l, (performance.timeOrigin + performance.now()) / 1000);
      say(state, `● live · ${l.version} · up ${f.since(l.uptime_seconds)}`);
      state.classList.remove("bad");
      for (const back of told) back(l);
    },
    failed: (e, wait) => {
      say(state, `✕ weir does not answer (${e.message}); asking again in ${Math.ceil(wait / 1000)} s`);
      state.classList.add("bad");
    },
  });
}

onKeyWanted(() => {
  if (form) return;
  const had = key.current() !== "";
  key.forget();
  forget.hidden = true;
  pulse?.stop();
  current?.stop();
  current = null;
  form = keyForm(had ? "weir no longer knows the key that this tab had. Give another one." : "weir shows this page's data to operators with a key (--admin-keys).", () => {
    form = null;
    begin();
    main.focus({ preventScroll: true });
  });
  say(heading, "Key");
  document.title = "weir: key";
  say(state, "○ weir wants an operator's key");
  state.classList.remove("bad");
  for (const a of links) a.removeAttribute("aria-current");
  put(main, heading, form.root);
  form.focus();
});
begin();
