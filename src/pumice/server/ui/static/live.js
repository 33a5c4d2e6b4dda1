// The live view: the server's figures, once a second while somebody looks.

import { metricsText } from "./api.js";
import { meanSince, parse } from "./prometheus.js";

const SAMPLES = 60;
const WIDTH = 240;
const HEIGHT = 48;
const element = (id) => document.getElementById(`live-${id}`);

/** Starts the view. `key` returns the API key. */
export function start(key) {
  const rates = [];
  let before = null;
  let beforeTime = 0;
  let timer = 0;

  async function read() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const now = parse(await metricsText(key(), AbortSignal.timeout(5000)));
      const time = performance.now();
      show(now, before, (time - beforeTime) / 1000, rates);
      before = now;
      beforeTime = time;
      state("on", "live");
    } catch (error) {
      before = null;
      state("off", error.status === 401 ? "needs a key" : "no figures");
    }
    clearTimeout(timer);
    timer = setTimeout(read, 1000);
  }
  document.addEventListener("visibilitychange", () => {
    before = null;
    read();
  });
  read();
}

function state(kind, text) {
  const target = element("state");
  target.className = kind;
  target.textContent = text;
}

function show(now, before, seconds, rates) {
  const value = (name) => now.get(`pumice_engine_${name}`);
  put("running", whole(value("running")));
  put("waiting", whole(value("waiting")));

  if (before !== null && seconds > 0) {
    const made = now.get("pumice_engine_decode_tokens_total") -
      before.get("pumice_engine_decode_tokens_total");
    const rate = Math.max(0, made / seconds);
    if (Number.isFinite(rate)) {
      rates.push(rate);
      rates.splice(0, Math.max(0, rates.length - SAMPLES));
      put("rate", rate < 10 ? rate.toFixed(1) : rate.toFixed(0));
      draw(rates);
    }
    latency("ttft", meanSince(before, now, "pumice_time_to_first_token_seconds"));
    latency("itl", meanSince(before, now, "pumice_inter_token_latency_seconds"));
  }

  const blocks = value("blocks");
  const used = value("blocks_in_use");
  if (blocks > 0 && used !== undefined) {
    const kept = Math.min(value("blocks_cached") ?? 0, blocks - used);
    const percent = (100 * used) / blocks;
    element("cache").setAttribute("aria-valuenow", percent.toFixed(0));
    element("cache-used").style.width = `${percent}%`;
    element("cache-kept").style.width = `${(100 * kept) / blocks}%`;
    put("cache-text", `${whole(used)} of ${whole(blocks)} blocks, ${whole(kept)} kept`);
  }
}

function latency(id, seconds) {
  // What was measured last stays, when nothing new was.
  if (seconds === null || !Number.isFinite(seconds)) return;
  put(id, seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.1 ? 1 : 0)} ms` : `${seconds.toFixed(2)} s`);
}

function draw(rates) {
  const top = Math.max(...rates, 1);
  const step = WIDTH / (SAMPLES - 1);
  const start = WIDTH - step * (rates.length - 1);
  const points = rates.map(
    (rate, i) => `${(start + i * step).toFixed(1)},${(HEIGHT - 3 - (HEIGHT - 8) * (rate / top)).toFixed(1)}`,
  );
  element("line").setAttribute("points", points.join(" "));
  element("area").setAttribute(
    "points", [`${start.toFixed(1)},${HEIGHT}`, ...points, `${WIDTH},${HEIGHT}`].join(" "),
  );
}

function put(id, text) {
  element(id).textContent = text;
}

function whole(value) {
  return value === undefined ? "–" : value.toLocaleString("en");
}
