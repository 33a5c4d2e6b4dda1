// What the browser keeps for this page. It may refuse (private windows, full): then nothing is kept.

const PREFIX = "pumice.";

/** A value that was kept, or null. */
export function recall(name, store = "localStorage") {
  try {
    return JSON.parse(window[store].getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** Keeps a value. */
export function remember(name, value, store = "localStorage") {
  try {
    window[store].setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // It is a convenience.
  }
}
