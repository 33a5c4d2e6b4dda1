// The settings' form: kept in the browser, and made into a request's fields.

import { recall, remember } from "./storage.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];

/** The form. `changed(name)` is called when a setting was changed by hand. */
export class Settings {
  constructor(form, changed) {
    this.form = form;
    this.fields = form.elements;
    const kept = recall("settings") ?? {};
    for (const name of [...NUMBERS, "system", "stop"]) this.fields[name].value = kept[name] ?? "";
    this.wantedModel = kept.model ?? "";
    // A key is kept for this tab only.
    this.fields.key.value = recall("key", "sessionStorage") ?? "";
    form.addEventListener("input", (event) => {
      this.keep();
      changed(event.target.name);
    });
    form.addEventListener("reset", () => setTimeout(() => {
      this.keep();
      changed("all");
    }));
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  get key() {
    return this.fields.key.value.trim();
  }

  get model() {
    return this.fields.model.value;
  }

  /** Offers the server's models. */
  offer(models) {
    this.fields.model.replaceChildren(
      ...models.map(({ id }) => {
        const option = document.createElement("option");
        option.value = option.textContent = id;
        return option;
      }),
    );
    if (models.some(({ id }) => id === this.wantedModel)) this.fields.model.value = this.wantedModel;
  }

  keep() {
    const names = [...NUMBERS, "system", "stop", "model"];
    this.wantedModel = this.model || this.wantedModel;
    const values = Object.fromEntries(names.map((name) => [name, this.fields[name].value]));
    remember("settings", { ...values, model: this.wantedModel });
    remember("key", this.key, "sessionStorage");
  }

  /** Whether every field holds what it may; says so at the field if not. */
  check() {
    return this.form.reportValidity();
  }

  /** A request's fields: what is empty is the model's own. */
  request(messages) {
    const system = this.fields.system.value.trim();
    const request = {
      model: this.model,
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    };
    for (const name of NUMBERS) {
      if (this.fields[name].value !== "") request[name] = this.fields[name].valueAsNumber;
    }
    if (this.fields.stop.value !== "") request.stop = [this.fields.stop.value];
    return request;
  }
}
