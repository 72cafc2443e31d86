// The configuration in force. What may hold a secret is not among what weir answers.

import type { Settings } from "../api.ts";
import { get } from "../api.ts";
import { el, put, say, type Child } from "../dom.ts";
import { text } from "../fields.ts";
import type { Context, View } from "../view.ts";

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
  const box = el("input", { type: "checkbox" });
  box.checked = only;
  box.addEventListener("change", () => { only = box.checked; remember(); });
  return {
    root: el("section", {}, el("div", { class: "fields" },
      text("Filter flags (/)", "q", words, (v) => { words = v; remember(); }, { "data-filter": true, placeholder: "name or value" }),
      el("label", { class: "check" }, box, " only what was given")), status, body),
    stop: () => stop.abort(),
  };
}
