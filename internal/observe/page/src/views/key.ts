// The form that asks for an operator's key. A key is kept once weir has accepted it.

import { answerTo, Refused } from "../api.ts";
import { el, say } from "../dom.ts";
import { keep } from "../key.ts";

export interface Form {
  root: HTMLElement;
  focus(): void;
}

/** A form that says why there is one, and calls back when the tab has a key that weir knows. */
export function keyForm(why: string, known: () => void): Form {
  const input = el("input", { id: "key", type: "password", required: true, autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-describedby": "key-why key-error" });
  const error = el("p", { id: "key-error", class: "why", role: "alert" });
  const refuse = (text: string) => {
    say(error, text);
    input.setAttribute("aria-invalid", "true");
    input.select();
    input.focus();
  };
  let last: AbortController | null = null;
  const submit = async () => {
    const key = input.value.trim();
    // A header takes no other characters, and no key has any.
    if (!/^[!-~]+$/.test(key)) return refuse("A key has letters, digits and signs only, without spaces.");
    last?.abort();
    const mine = (last = new AbortController());
    say(error, "");
    input.removeAttribute("aria-invalid");
    try {
      await answerTo("live", key, AbortSignal.any([mine.signal, AbortSignal.timeout(10_000)]));
    } catch (e) {
      if (mine.signal.aborted) return;
      if (!(e instanceof Refused)) return refuse(`weir does not answer (${e instanceof Error ? e.message : String(e)}).`);
      return refuse(e.status === 401 ? "weir does not know this key. It must be one of the file that --admin-keys names." : e.message);
    }
    if (mine.signal.aborted) return;
    keep(key);
    input.value = "";
    known();
  };
  const root = el("form", { class: "card key-form", on: { submit: (e) => { e.preventDefault(); void submit(); } } },
    el("p", { id: "key-why" }, why, " This tab keeps it until it is closed or you forget it."),
    el("div", { class: "fields" }, el("label", { for: "key" }, "Operator's key", input), el("button", { type: "submit" }, "Use this key")), error);
  return { root, focus: () => input.focus() };
}
