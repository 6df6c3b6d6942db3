// Numbers as people read them.

const DASH = "–";

/** Three significant digits. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(Math.abs(value) >= 10 || value === 0 ? (value === 0 ? 0 : 1) : 2);
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  return value < 1 ? `${number(value * 1000)} ms` : `${number(value)} s`;
}

export function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part === whole || part === 0 ? 0 : 1)} %` : DASH;
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value)} ${units[unit]}`;
}

export const count = (value, one, many = `${one}s`) => `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
