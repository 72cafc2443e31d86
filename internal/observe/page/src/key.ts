// The operator's key, where the admin listener wants one. It goes into the head of requests
// and is never a cookie, which a browser would send for other sites' pages too. The tab keeps
// it over a reload, and no other tab and no other origin reads it.

const item = "weir.key";
let held = stored();

function stored(): string {
  try {
    return sessionStorage.getItem(item) ?? "";
  } catch {
    return ""; // a browser that keeps nothing
  }
}

/** The key of this tab, empty without one. */
export function current(): string {
  return held;
}

export function keep(key: string): void {
  held = key;
  try {
    sessionStorage.setItem(item, key);
  } catch {
    // then it holds until the page is loaded again
  }
}

export function forget(): void {
  held = "";
  try {
    sessionStorage.removeItem(item);
  } catch {
    // nothing was kept
  }
}
