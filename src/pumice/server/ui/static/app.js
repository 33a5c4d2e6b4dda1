// The page: what the parts are, and which key does what.

import { models } from "./api.js";
import { Conversation } from "./conversation.js";
import { start as startLive } from "./live.js";
import { Settings } from "./settings.js";
import { recall, remember } from "./storage.js";
import { start as startTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);
const prompt = $("prompt");
const wide = window.matchMedia("(min-width: 960px)");

startTheme($("theme"));

const settings = new Settings($("settings"), (name) => {
  if (name === "key") loadSoon();
  else showModel();
});
const conversation = new Conversation($("log"), $("empty"), settings, {
  changed: showBusy,
  failed(error) {
    notice(error.status === 401 ? `${error.message}. Give it in the settings.` : error.message);
    if (error.status === 401) panel(true, "key");
  },
});
conversation.edit = (text) => {
  prompt.value = text;
  grow();
  prompt.focus();
};

// The models

let offered = [];
let soon = 0;

function loadSoon() {
  clearTimeout(soon);
  soon = setTimeout(load, 300);
}

async function load() {
  try {
    offered = await models(settings.key, AbortSignal.timeout(10000));
    settings.offer(offered);
    notice("");
  } catch (error) {
    if (error.status === 401) panel(true, settings.key ? null : "key");
    notice(error.status ? error.message : "The server does not answer.");
  }
  showModel();
}

function showModel() {
  const model = offered.find(({ id }) => id === settings.model);
  conversation.context = model?.max_model_len ?? null;
  $("model-shown").textContent = settings.model;
  $("model-shown").title = settings.model;
}

// Sending and stopping

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", () => conversation.stop());
$("new").addEventListener("click", clear);
prompt.addEventListener("input", grow);
prompt.addEventListener("keydown", (event) => {
  // While an input method composes a character, Enter is its own.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});

async function send() {
  const text = prompt.value.trim();
  if (text === "" || conversation.busy) return;
  if (!settings.form.checkValidity()) {
    panel(true);
    settings.check();
    return;
  }
  notice("");
  prompt.value = "";
  grow();
  const answered = await conversation.send(text);
  if (!answered && prompt.value === "") conversation.edit(text); // nothing typed is lost
}

function clear() {
  conversation.clear();
  notice("");
  prompt.focus();
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function showBusy() {
  $("send").hidden = conversation.busy;
  $("stop").hidden = !conversation.busy;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

// The panel

function panel(open, field = null) {
  document.body.classList.toggle("panel", open);
  document.body.classList.toggle("no-panel", !open);
  $("panel-switch").setAttribute("aria-expanded", String(open));
  if (field) settings.fields[field].focus();
}

function panelIsOpen() {
  return document.body.classList.contains("panel");
}

$("panel-switch").addEventListener("click", () => {
  panel(!panelIsOpen());
  if (wide.matches) remember("panel", panelIsOpen());
});
wide.addEventListener("change", () => panel(wide.matches && recall("panel") !== false));
panel(wide.matches && recall("panel") !== false);

// Keys

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select") !== null;
  if (event.key === "Escape") {
    if (conversation.busy) conversation.stop();
    else if (panelIsOpen() && !wide.matches) panel(false);
    prompt.focus();
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    prompt.focus();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey) {
    const actions = { KeyN: clear, KeyS: () => $("panel-switch").click(), KeyR: () => conversation.regenerate() };
    const action = actions[event.code];
    if (action) {
      event.preventDefault();
      action();
    }
  }
});

startLive(() => settings.key);
load();
// On a touch screen the keyboard would cover half of the page.
if (window.matchMedia("(hover: hover)").matches) prompt.focus();
