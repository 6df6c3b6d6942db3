// The last minute, put together from the server's documents, each of which brings a few intervals.

const LENGTH = 240; // intervals of a quarter of a second
const SMOOTH = 4; // intervals that a shown value averages over

export class History {
  constructor() {
    this.#forget();
  }

  #forget() {
    this.intervals = new Map(); // by index
    this.uptime = -1;
  }

  /** True for the first document of a server, also after it was started again. */
  isNew(document) {
    const isNew = this.uptime < 0 || document.server.uptime_s < this.uptime;
    if (isNew) this.#forget();
    this.uptime = document.server.uptime_s;
    return isNew;
  }

  /** Take a document; gives series of equal length, oldest first. */
  add({ index, interval_s, intervals, first_tokens }) {
    const columns = Object.entries(intervals);
    intervals.index.forEach((at, i) => {
      this.intervals.set(at, Object.fromEntries(columns.map(([name, values]) => [name, values[i]])));
    });
    for (const at of this.intervals.keys()) if (at < index - LENGTH) this.intervals.delete(at);
    const sums = this.#sums(index);
    const firstToken = Array(LENGTH).fill(null);
    for (const [at, value] of first_tokens) {
      const place = at - index + LENGTH;
      if (place >= 0 && place < LENGTH) firstToken[place] = Math.max(firstToken[place] ?? 0, value);
    }
    const all = [...this.intervals.values()];
    const total = (name) => all.reduce((sum, one) => sum + one[name], 0);
    const perStep = (name) => sums.map((one) => (one.steps ? one[name] / one.steps : 0));
    return {
      tokensPerSecond: sums.map((one) => one.tokens / (SMOOTH * interval_s)),
      rowsPerStep: [perStep("decoding_rows"), perStep("draft_rows"), perStep("prompt_rows")],
      lastRows: sums.slice(-1).map((one) => (one.decoding_rows + one.draft_rows + one.prompt_rows) / (one.steps || 1))[0],
      acceptance: sums.map((one) => (one.draft_rows ? (100 * one.accepted) / one.draft_rows : null)),
      firstToken,
      medianFirstToken: median(first_tokens.map(([, value]) => value)),
      accepted: total("accepted"),
      drafted: total("draft_rows"),
      stepSeconds: total("steps") ? total("busy_s") / total("steps") : null,
      busy: sums.at(-1).busy_s / (SMOOTH * interval_s),
    };
  }

  /** For each of the last LENGTH whole intervals the sums over it and those just before it. */
  #sums(index) {
    const names = ["steps", "tokens", "decoding_rows", "draft_rows", "prompt_rows", "accepted", "busy_s"];
    return Array.from({ length: LENGTH }, (_, i) => {
      const end = index - LENGTH + i;
      const sum = Object.fromEntries(names.map((name) => [name, 0]));
      for (let at = end - SMOOTH + 1; at <= end; at += 1) {
        const one = this.intervals.get(at);
        if (one) for (const name of names) sum[name] += one[name];
      }
      return sum;
    });
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : null;
}
