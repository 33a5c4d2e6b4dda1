// The server's routes, as this page uses them.

import { events } from "./sse.js";

/** What a server said when it refused. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(key, more = {}) {
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function check(response) {
  if (response.ok) return response;
  const text = await response.text();
  let message = text.slice(0, 300);
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not OpenAI's shape: a proxy's page, say.
  }
  throw new ApiError(response.status, message || `the server answered ${response.status}`);
}

/** The models' entries. */
export async function models(key, signal) {
  const response = await check(await fetch("/v1/models", { headers: headers(key), signal }));
  return (await response.json()).data;
}

/** The figures' text. */
export async function metricsText(key, signal) {
  const response = await check(await fetch("/metrics", { headers: headers(key), signal }));
  return response.text();
}

/** Yields the chunks of an answer. */
export async function* chat(request, key, signal) {
  const response = await check(
    await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(key, { "Content-Type": "application/json" }),
      body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
      signal,
    }),
  );
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error.message ?? "the answer failed");
    yield chunk;
  }
  throw new ApiError(response.status, "the answer broke off");
}
