// The conversation: its messages, the answer that is on its way, and what can be done with both.

import { chat } from "./api.js";
import { Clock } from "./figures.js";
import { MessageView } from "./message.js";
import { recall, remember } from "./storage.js";

/** Shows and continues a conversation in `log`. */
export class Conversation {
  /** `settings`: a Settings. `changed()`: busy or not. `failed(error)`: an answer failed. */
  constructor(log, empty, settings, { changed, failed }) {
    Object.assign(this, { log, empty, settings, changed, failed });
    this.context = null; // the model's longest context, in tokens
    this.views = [];
    this.abort = null;
    this.follows = true;
    log.addEventListener("scroll", () => {
      this.follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    });
    log.addEventListener("click", (event) => this.act(event.target.closest("[data-action]")));
    const kept = recall("messages");
    for (const message of Array.isArray(kept) ? kept : []) this.add(message);
    this.bottom();
  }

  get busy() {
    return this.abort !== null;
  }

  /** Sends a user's message. False when nothing was answered: then it is gone again. */
  async send(content) {
    const view = this.add({ role: "user", content });
    this.follows = true;
    const answered = await this.answer();
    if (!answered) this.remove(view);
    return answered;
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.cut(0);
  }

  /** Answers what was said last. False when nothing was answered. */
  async answer() {
    const messages = this.views.map(({ message: { role, content } }) => ({ role, content }));
    const message = { role: "assistant", content: "", reasoning: "" };
    const view = this.add(message);
    view.wait();
    const abort = new AbortController();
    this.abort = abort;
    this.changed();
    this.bottom();
    const clock = new Clock();
    let reason = null;
    try {
      for await (const chunk of chat(this.settings.request(messages), this.settings.key, abort.signal)) {
        clock.usage = chunk.usage ?? clock.usage;
        const choice = chunk.choices[0];
        if (choice === undefined) continue;
        reason = choice.finish_reason ?? reason;
        this.grow(view, choice.delta, clock);
      }
    } catch (error) {
      if (abort.signal.aborted) {
        reason = "stopped";
      } else {
        message.failed = true;
        message.note = error.message;
        this.failed(error);
      }
    }
    if (!message.failed) message.note = clock.line(reason, this.context);
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    view.update();
    view.finish();
    const answered = !message.failed || message.content !== "" || message.reasoning !== "";
    if (!answered) this.remove(view);
    this.keep();
    this.bottom();
    if (this.abort === abort) this.abort = null;
    this.changed();
    return answered;
  }

  grow(view, delta, clock) {
    if (!delta.content && !delta.reasoning_content) return;
    clock.piece();
    view.message.content += delta.content ?? "";
    view.message.reasoning += delta.reasoning_content ?? "";
    // Once a frame at most, however fast the pieces come.
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      view.update();
      this.bottom();
    });
  }

  /** What a button of a message does. */
  async act(button) {
    const view = this.views.find(({ root }) => root.contains(button));
    if (!button || !view) return;
    const index = this.views.indexOf(view);
    const action = button.dataset.action;
    if (action === "copy") await copy(button, view.message.content);
    if (action === "copy-code") {
      await copy(button, button.closest(".code").querySelector("code").textContent);
    }
    if (this.busy) return;
    if (action === "regenerate") {
      this.cut(index);
      await this.answer();
    }
    if (action === "edit") {
      this.cut(index);
      this.edit?.(view.message.content);
    }
  }

  /** Answers anew what was answered last. */
  async regenerate() {
    if (this.busy || this.views.length === 0) return;
    if (this.views.at(-1).message.role === "assistant") this.cut(this.views.length - 1);
    await this.answer();
  }

  add(message) {
    const view = new MessageView(message);
    this.views.push(view);
    this.log.append(view.root);
    this.empty.hidden = true;
    this.keep();
    return view;
  }

  cut(length) {
    for (const view of this.views.splice(length)) view.root.remove();
    this.empty.hidden = this.views.length > 0;
    this.keep();
  }

  /** Takes away a message and what follows it, if it is still there. */
  remove(view) {
    const index = this.views.indexOf(view);
    if (index >= 0) this.cut(index);
  }

  keep() {
    remember("messages", this.views.map(({ message }) => message));
  }

  bottom() {
    if (this.follows) this.log.scrollTop = this.log.scrollHeight;
  }
}

async function copy(button, text) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed"; // a page over plain HTTP from elsewhere
  }
  setTimeout(() => { button.textContent = name; }, 1200);
}
