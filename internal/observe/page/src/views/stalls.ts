// Stalls of weir itself and what held it, and the profiles that were kept.

import { getBlob, Refused, type Profiles, type Stall, type Stalls } from "../api.ts";
import { el, put, requestLink, say, table, type Child } from "../dom.ts";
import * as f from "../format.ts";
import { current } from "../key.ts";
import { poll } from "../poll.ts";
import type { Context, View } from "../view.ts";

const rest: [keyof Stall, string][] = [["cpu_ms", "CPU"], ["gc_pause_ms", "GC paused"], ["run_delay_ms", "waited for a core"], ["steal_ms", "stolen by the hypervisor"], ["throttled_ms", "throttled"]];

function held(s: Stall): Child {
  const operations = (s.operations ?? []).flatMap((o): Child[] => [el("li", {}, `${o.operation} ${f.ms(o.ms)}`,
    ...(o.request_ids ?? []).slice(0, 5).flatMap((id): Child[] => [" ", requestLink(id)]))]);
  const by = s.held_by || "nobody of ours";
  const why = s.why?.startsWith(by) ? s.why.slice(by.length) : s.why ? ": " + s.why : "";
  return el("div", {}, el("b", {}, by), why, operations.length > 0 && el("ul", {}, ...operations));
}

/** A link to a profile. A browser that follows a link sends no key, so with one the file is
 * fetched, and handed over from memory. */
function profile(name: string, failed: (e: Error) => void): HTMLElement {
  const path = "profiles/" + encodeURIComponent(name);
  const save = async () => {
    const url = URL.createObjectURL(await getBlob(path));
    el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser has read it by then
  };
  return el("a", { href: path, download: name, on: { click: (e) => {
    if (current() === "") return;
    e.preventDefault();
    save().catch((e: unknown) => failed(e instanceof Error ? e : new Error(String(e))));
  } } }, name);
}

// few is how many are shown before all are asked for, so that the profiles below are found.
const few = 20;

export function stalls(_: Context): View {
  const status = el("p", { class: "note", role: "status" }, "Asking.");
  const list = el("div");
  const more = el("button", { type: "button", "aria-expanded": "false", hidden: true });
  let whole = false;
  more.addEventListener("click", () => {
    whole = !whole;
    more.setAttribute("aria-expanded", String(whole));
    asked.now();
  });
  const kept = el("div");
  const asked = poll<Stalls>({
    path: () => "stalls", every: 2000,
    got: (s) => {
      const all = s.stalls ?? [];
      say(status, `${f.count(s.total)} ${s.total === 1 ? "stall" : "stalls"} of at least ${f.ms(s.threshold_ms)} since weir was started` + (all.length < s.total ? `; the latest ${f.count(all.length)} are shown.` : "."));
      more.hidden = all.length <= few;
      say(more, whole ? `Show the latest ${few}` : `Show all ${f.count(all.length)}`);
      if (list.contains(document.activeElement)) return;
      put(list, all.length === 0 ? el("p", {}, "None.") :
        table("Stalls, the latest first", ["when", "for", "held by", "meanwhile", "streams", "pending"], (whole ? all : all.slice(0, few)).map((x) => [
          f.clock(new Date(x.start)), f.ms(x.ms), held(x), rest.filter(([k]) => typeof x[k] === "number" && (x[k] as number) > 0).map(([k, words]) => `${words} ${f.ms(x[k] as number)}`).join(", "), f.count(x.streams), f.count(x.pending),
        ]), ["held by", "meanwhile"], true));
    },
    failed: (e) => say(status, e.message),
  });
  const deny = (e: Error) => put(kept, el("p", { class: "note" },
    e instanceof Refused && e.status === 403 && current() !== "" ? `Profiles are not shown with this key: ${e.message}. Forget it, and give one with the role operate.` : e.message));
  const profiles = poll<Profiles>({
    path: () => "profiles", every: 5000,
    got: (p) => {
      if (kept.contains(document.activeElement)) return;
      const all = p.profiles ?? [];
      put(kept, all.length === 0 ? el("p", {}, p.on ? "None was triggered yet." : "They are off.") :
        table("Profiles", ["file", "kind", "why", "taken", "size"], all.map((x) => [profile(x.name, deny), x.kind, x.trigger, f.clock(new Date(x.time)), f.bytes(x.bytes)]), ["why"], true));
    },
    failed: deny,
  });
  return {
    root: el("section", {}, el("p", { class: "note" }, "A stall is a time in which weir had work and nothing of it went on. What it did meanwhile says whose it was."), status, list, more, el("h2", {}, "Profiles that were kept"), kept),
    stop: () => {
      asked.stop();
      profiles.stop();
    },
  };
}
