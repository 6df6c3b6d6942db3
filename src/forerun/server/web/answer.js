// An answer: text with the tokens it came from, growing while it streams.

/** A run of text with the tokens that made it. Tokens without a place in the text are counted, not shown. */
export class Section {
  constructor(saved = {}) {
    this.text = saved.text ?? "";
    this.places = saved.places ?? []; // [start, end, index of the token]
    this.waiting = []; // [token text, index]: not in the text yet
    this.end = this.places.at(-1)?.[1] ?? 0;
  }

  add(text, tokens) {
    this.text += text;
    this.waiting.push(...tokens);
    while (this.waiting.length) {
      const [piece, index] = this.waiting[0];
      const at = this.text.indexOf(piece, this.end);
      if (piece && (at < 0 || at > this.end + 64)) {
        const rest = this.text.slice(this.end);
        if (rest.length < piece.length && piece.startsWith(rest)) return; // the parser holds the rest back
      } else if (piece) {
        this.places.push([at, at + piece.length, index]);
        this.end = at + piece.length;
      }
      this.waiting.shift();
    }
  }
}

export class Answer {
  constructor(saved = {}) {
    this.content = new Section(saved.content);
    this.reasoning = new Section(saved.reasoning);
    this.tokens = saved.tokens ?? []; // [text, drafter or "", logprob or null, id]
    this.finish = saved.finish ?? null; // the server's finish_reason, "stopped" by the user, or "error"
    this.problem = saved.problem ?? "";
    this.cached = saved.cached ?? 0;
    this.time = saved.time ?? { start: 0, first: 0, last: 0, before: 0 }; // ms; tokens that came with the first chunk
  }

  get text() {
    return this.content.text;
  }

  /** Take one chunk of the stream. */
  add(chunk) {
    if (chunk.usage) this.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    for (const choice of chunk.choices) {
      const details = choice.token_details ?? [];
      if (details.length) this.#clock(details.length);
      const placed = details.map((token, offset) => [token.text, this.tokens.length + offset]);
      this.tokens.push(...details.map((token) => [token.text, token.drafter ?? "", token.logprob, token.id]));
      const reasoning = choice.delta.reasoning_content ?? "";
      if (reasoning) this.reasoning.add(reasoning, choice.delta.content ? [] : placed);
      if (choice.delta.content || !reasoning) this.content.add(choice.delta.content ?? "", placed);
      if (choice.finish_reason) this.finish = choice.finish_reason;
    }
  }

  #clock(count) {
    const now = performance.now();
    if (!this.time.first) Object.assign(this.time, { first: now, before: count });
    this.time.last = now;
  }

  /** Tokens per second after the first ones; null while there is too little to tell. */
  get speed() {
    const { first, last, before } = this.time;
    return last - first >= 1 ? (1000 * (this.tokens.length - before)) / (last - first) : null;
  }

  get firstTokenSeconds() {
    return this.time.first ? (this.time.first - this.time.start) / 1000 : null;
  }

  /** How many tokens came from each source; "" is the model itself. */
  get sources() {
    const counts = new Map();
    for (const [, drafter] of this.tokens) counts.set(drafter, (counts.get(drafter) ?? 0) + 1);
    return counts;
  }

  toJSON() {
    const { content, reasoning, tokens, finish, problem, cached, time } = this;
    const section = ({ text, places }) => ({ text, places });
    return { content: section(content), reasoning: section(reasoning), tokens, finish, problem, cached, time };
  }
}
