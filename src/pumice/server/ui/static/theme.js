// Dark, light, or as the system is.

import { recall, remember } from "./storage.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };
const NAMES = { auto: "automatic", light: "light", dark: "dark" };

/** Makes a button switch the theme. */
export function start(button) {
  let theme = recall("theme") ?? "auto";
  if (!(theme in NEXT)) theme = "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = SIGNS[theme];
    button.title = `Theme: ${NAMES[theme]}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    remember("theme", theme);
    apply();
  });
  apply();
}
