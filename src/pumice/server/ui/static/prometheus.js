// Prometheus' text format, as far as a page needs it: the sum over a name's labels.

/** A text → Map of name → value, summed over labels. */
export function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    // name{label="…"} value [time]; a label's text may hold any escaped character.
    const match = /^([A-Za-z_:][\w:]*)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)/.exec(line);
    if (match === null) continue;
    const value = Number(match[2].replace("Inf", "Infinity"));
    values.set(match[1], (values.get(match[1]) ?? 0) + value);
  }
  return values;
}

/** A histogram's mean over what came between two readings, or null. */
export function meanSince(before, now, name) {
  const count = now.get(`${name}_count`) - (before.get(`${name}_count`) ?? 0);
  const sum = now.get(`${name}_sum`) - (before.get(`${name}_sum`) ?? 0);
  return count > 0 ? sum / count : null;
}
