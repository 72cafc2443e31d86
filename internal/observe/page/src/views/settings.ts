// The configuration in force, and what is wanted besides and not in force yet. What may hold a
// secret is not among what weir answers.

import type { Pending, Settings, Wanted } from "../api.ts";
import { get, Refused } from "../api.ts";
import { el, put, say, table, type Child } from "../dom.ts";
import { text } from "../fields.ts";
import * as f from "../format.ts";
import { poll } from "../poll.ts";
import type { Context, View } from "../view.ts";

/** Why an engine is not as it is wanted. */
function waitsFor(e: Wanted): string {
  const left = `${f.count(e.in_flight)} ${e.in_flight === 1 ? "request is" : "requests are"} left`;
  switch (e.state) {
    case "leaving":
      return "it was removed, " + left;
    case "draining":
      return "it gets no new requests, " + left;
    default:
      return e.error ?? "it is not ready";
  }
}

const unshown = () => el("i", {}, "not shown");

/** What is pending, the worst first. */
function pendingOf(p: Pending): Child[] {
  const failed: Child[] = [];
  if (p.reading?.result === "failed")
    failed.push(el("p", { class: "why" }, el("b", {}, `The configuration of ${f.clock(new Date(p.reading.at))} is not in force: `), p.reading.error ?? ""));
  for (const k of p.keys) failed.push(el("p", { class: "why" }, el("b", {}, `The file of ${k.flag} has an error since ${f.clock(new Date(k.since))}, its old keys stay: `), k.error));
  if (p.names.length > 0) failed.push(el("p", { class: "why" }, el("b", {}, "Names that cannot be looked up, whose engines stay: "), p.names.join(", ")));
  const rest: Child[] = [];
  if (p.restart.length > 0)
    rest.push(table("Flags that wait for a restart", ["flag", "in force", "after a restart"], p.restart.map((x) => ["--" + x.name, x.hidden ? unshown() : x.in_force || f.unknown, x.hidden ? unshown() : x.wanted || f.unknown]), ["in force", "after a restart"]));
  if (p.engines.length > 0)
    rest.push(table("Engines that are not as they are wanted", ["engine", "state", "because", "from"], p.engines.map((e) => [e.name, e.state, waitsFor(e), e.origin ?? f.unknown]), ["state", "because", "from"], true));
  if (failed.length + rest.length > 0) return [...failed, ...rest];
  return [el("p", { class: "note" }, "Nothing: what is wanted is in force" + (p.reading ? `, read again at ${f.clock(new Date(p.reading.at))}.` : "."))];
}

export function settings(c: Context): View {
  let words = c.params.get("q") ?? "";
  let only = c.params.get("given") === "1";
  let all: Settings | null = null;
  const body = el("div");
  const status = el("p", { class: "note", role: "status" });
  const stop = new AbortController();
  const remember = () => {
    const p = new URLSearchParams();
    if (words) p.set("q", words);
    if (only) p.set("given", "1");
    c.remember(p);
    show();
  };
  const show = () => {
    if (!all) return;
    const seen = all.flags.filter((x) => (!only || x.given) && `${x.name} ${x.value}`.toLowerCase().includes(words.toLowerCase()));
    say(status, `weir ${all.command}, ${all.version}: ${seen.length} of ${all.flags.length} flags`);
    const groups = new Map<string, Child[]>();
    for (const x of seen) {
      const group = x.group || "Other";
      const rows = groups.get(group) ?? [];
      rows.push(el("tr", { class: x.given ? "given" : "" }, el("th", { scope: "row", title: x.help }, "--" + x.name),
        el("td", { class: "value" }, x.hidden ? el("i", {}, "set, not shown") : x.value === "" ? "–" : x.value),
        el("td", { class: "note" }, x.given ? "given" : "default")));
      groups.set(group, rows);
    }
    put(body, ...[...groups].flatMap(([group, rows]) => [el("h2", {}, group), el("table", { class: "settings" }, el("tbody", {}, ...rows))]));
  };
  get<Settings>("config", stop.signal).then((s) => { all = s; show(); }, (e: unknown) => { if (!stop.signal.aborted) say(status, String(e)); });
  const waiting = el("div");
  const waitingToo = el("div", { hidden: true }, el("h2", {}, "Pending"), waiting);
  let shown = "";
  const asked = poll<Pending>({
    path: () => "admin/pending", every: 5000,
    got: (p) => {
      waitingToo.hidden = false;
      // What stays the same is not made anew under the reader's eyes.
      const now = JSON.stringify(p);
      if (now !== shown) put(waiting, ...pendingOf(p));
      shown = now;
    },
    // weir frontend changes nothing while it runs.
    failed: (e) => { waitingToo.hidden = e instanceof Refused && e.status === 404; if (!waitingToo.hidden) put(waiting, el("p", { class: "note" }, e.message)); shown = ""; },
  });
  const box = el("input", { type: "checkbox" });
  box.checked = only;
  box.addEventListener("change", () => { only = box.checked; remember(); });
  return {
    root: el("section", {}, el("div", { class: "fields" },
      text("Filter flags (/)", "q", words, (v) => { words = v; remember(); }, { "data-filter": true, placeholder: "name or value" }),
      el("label", { class: "check" }, box, " only what was given")), waitingToo, status, body),
    stop: () => { stop.abort(); asked.stop(); },
  };
}
