// Figures as people read them. What is not known is "–".

export const unknown = "–";

/** Milliseconds: 0.42 ms, 12.3 ms, 1.24 s, 2 min 3 s. */
export function ms(v: number | undefined | null): string {
  if (v === undefined || v === null || !Number.isFinite(v)) return unknown;
  const a = Math.abs(v);
  if (a < 10) return v.toFixed(2) + " ms";
  if (a < 100) return v.toFixed(1) + " ms";
  if (a < 1000) return v.toFixed(0) + " ms";
  return seconds(v / 1000);
}

export function seconds(v: number | undefined | null): string {
  if (v === undefined || v === null || !Number.isFinite(v)) return unknown;
  if (v < 1) return ms(v * 1000);
  if (v < 10) return v.toFixed(2) + " s";
  if (v < 60) return v.toFixed(1) + " s";
  if (v < 3600) return two(v, 60, "min", 1, "s");
  if (v < 86400) return two(v, 3600, "h", 60, "min");
  return two(v, 86400, "d", 3600, "h");
}

/** So many of one unit and of a smaller one, which is left out where there is none. */
function two(v: number, unit: number, name: string, smaller: number, its: string): string {
  const rest = Math.floor((v % unit) / smaller);
  return `${Math.floor(v / unit)} ${name}` + (rest ? ` ${rest} ${its}` : "");
}

/** A duration without its smaller half, for what counts on: 3 s, 4 min, 2 h. */
export function since(v: number | undefined): string {
  if (v === undefined) return unknown;
  if (v < 1) return "now";
  if (v < 60) return Math.floor(v) + " s";
  if (v < 3600) return Math.floor(v / 60) + " min";
  if (v < 86400) return Math.floor(v / 3600) + " h";
  return Math.floor(v / 86400) + " d";
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(v: number | undefined | null): string {
  return v === undefined || v === null || !Number.isFinite(v) ? unknown : grouped.format(v);
}

/** A rate: 0.4, 12.3, 1,234. */
export function rate(v: number | undefined | null): string {
  if (v === undefined || v === null || !Number.isFinite(v)) return unknown;
  return v < 100 ? v.toFixed(1) : grouped.format(v);
}

export function percent(v: number | undefined | null): string {
  if (v === undefined || v === null || !Number.isFinite(v)) return unknown;
  const p = 100 * v;
  return (p > 0 && p < 10 ? p.toFixed(1) : p.toFixed(0)) + " %";
}

export function bytes(v: number | undefined | null): string {
  if (v === undefined || v === null || !Number.isFinite(v)) return unknown;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (v < 1000) return (v < 10 && unit !== "B" ? v.toFixed(1) : v.toFixed(0)) + " " + unit;
    v /= 1000;
  }
  return v.toFixed(1) + " TB";
}

/** The time of day of a date. */
export function clock(at: Date): string {
  return Number.isNaN(at.getTime()) ? unknown : at.toLocaleTimeString("en-GB");
}
