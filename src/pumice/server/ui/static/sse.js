// Server-sent events out of a fetch response's bytes, however they were cut.

/** Yields each event's data. `body` is a ReadableStream of bytes. */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      text += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A carriage return at the end may be half of a line's end.
      const lines = text.split(/\r\n|\n|\r(?!$)/);
      text = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
