// One message on the page.

import { MarkdownView } from "./markdown.js";

/** Shows a message {role, content, reasoning?, note?} and follows it while it grows. */
export class MessageView {
  constructor(message) {
    this.message = message;
    this.root = document.createElement("article");
    this.root.className = `message ${message.role}`;
    this.root.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
    this.body = document.createElement("div");
    this.body.className = "body";
    this.foot = document.createElement("div");
    this.foot.className = "foot";
    this.root.append(this.body, this.foot);
    if (message.role === "assistant") {
      this.reasoning = document.createElement("details");
      this.reasoning.className = "reasoning";
      const summary = document.createElement("summary");
      summary.textContent = "Reasoning";
      this.thoughts = document.createElement("div");
      this.reasoning.append(summary, this.thoughts);
      this.reasoning.hidden = true;
      this.root.prepend(this.reasoning);
      this.markdown = new MarkdownView(this.body);
    }
    this.update();
    this.finish();
  }

  /** Marks that its text is on its way. */
  wait() {
    this.root.classList.add("waiting");
    this.root.setAttribute("aria-busy", "true"); // read out when it is whole
    this.foot.replaceChildren();
  }

  /** Shows the text there is now. */
  update() {
    const { role, content, reasoning } = this.message;
    if (role === "user") {
      this.body.textContent = content;
      return;
    }
    this.root.classList.toggle("waiting", this.root.classList.contains("waiting") && !content);
    this.markdown.show(content);
    if (reasoning) {
      this.reasoning.hidden = false;
      this.thoughts.textContent = reasoning;
    }
  }

  /** Shows what can be done with the whole message, and its figures. */
  finish() {
    this.root.classList.remove("waiting");
    this.root.removeAttribute("aria-busy");
    const line = document.createElement("span");
    line.className = "figures-line";
    line.textContent = this.message.note ?? "";
    if (this.message.failed) line.classList.add("fault");
    const actions = this.message.role === "user" ? ["Edit", "Copy"] : ["Copy", "Regenerate"];
    this.foot.replaceChildren(
      line,
      ...actions.map((name) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "quiet";
        button.dataset.action = name.toLowerCase();
        button.textContent = name;
        return button;
      }),
    );
  }
}
