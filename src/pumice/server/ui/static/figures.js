// What an answer cost, in words.

/** Times an answer. */
export class Clock {
  constructor() {
    this.start = performance.now();
    this.first = null;
    this.last = null;
    this.pieces = 0;
    this.usage = null;
  }

  /** A piece of text has come. */
  piece() {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
  }

  /** Tokens per second between the first piece and the last, or null. */
  get rate() {
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const seconds = (this.last - this.first) / 1000;
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
  }

  /** A line for people. */
  line(reason, context) {
    const parts = [];
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    parts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
    if (this.rate !== null) parts.push(`${this.rate.toFixed(1)} tokens/s`);
    if (this.first !== null) parts.push(`first after ${((this.first - this.start) / 1000).toFixed(2)} s`);
    if (this.usage && context) parts.push(`context ${this.usage.total_tokens} of ${context}`);
    if (reason === "length") parts.push("cut at the longest answer");
    if (reason === "stopped") parts.push("stopped");
    return parts.join(" · ");
  }
}
