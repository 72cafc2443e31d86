// Labelled inputs for filters. What they hold stands in the hash.

import { el } from "./dom.ts";

export function text(label: string, name: string, value: string, changed: (v: string) => void, props: Record<string, unknown> = {}): HTMLElement {
  const input = el("input", { type: "search", name, autocomplete: "off", spellcheck: "false", ...props });
  input.value = value;
  input.addEventListener("input", () => changed(input.value.trim()));
  input.addEventListener("keydown", (e) => {
    if (e.key !== "Escape") return;
    if (input.value === "") input.blur();
    else {
      input.value = "";
      changed("");
    }
    e.preventDefault();
  });
  return el("label", {}, el("span", {}, label), input);
}

export function choice(label: string, name: string, value: string, options: [value: string, words: string][], changed: (v: string) => void): HTMLElement {
  const select = el("select", { name }, ...options.map(([v, words]) => el("option", { value: v }, words)));
  select.value = options.some(([v]) => v === value) ? value : (options[0]?.[0] ?? "");
  select.addEventListener("change", () => changed(select.value));
  return el("label", {}, el("span", {}, label), select);
}

/** Puts the keyboard into the view's filter, if it has one. */
export function focusFilter(): boolean {
  const input = document.querySelector<HTMLInputElement>("input[data-filter]");
  input?.focus();
  input?.select();
  return input !== null;
}
