// Dark and light: as the system has it, or as it was chosen here.

import { el } from "./dom.ts";

type Scheme = "auto" | "light" | "dark";
const key = "weir.scheme";
const next: Record<Scheme, Scheme> = { auto: "light", light: "dark", dark: "auto" };
const words: Record<Scheme, string> = { auto: "◐ system", light: "○ light", dark: "● dark" };

function stored(): Scheme {
  try {
    const s = localStorage.getItem(key);
    return s === "light" || s === "dark" ? s : "auto";
  } catch {
    return "auto"; // a browser that keeps nothing
  }
}

/** Told when the colours have changed. */
export const changed = new EventTarget();

export function toggle(): HTMLElement {
  let scheme = stored();
  const button = el("button", { type: "button", class: "quiet" });
  const show = () => {
    if (scheme === "auto") delete document.documentElement.dataset["scheme"];
    else document.documentElement.dataset["scheme"] = scheme;
    button.textContent = words[scheme];
    button.setAttribute("aria-label", "Colours: " + (scheme === "auto" ? "as the system has them" : scheme));
    changed.dispatchEvent(new Event("change"));
  };
  button.addEventListener("click", () => {
    scheme = next[scheme];
    try {
      localStorage.setItem(key, scheme);
    } catch {
      // then it holds for this visit
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed.dispatchEvent(new Event("change")));
  show();
  return button;
}

/** A colour of the style sheet, as it is now. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
