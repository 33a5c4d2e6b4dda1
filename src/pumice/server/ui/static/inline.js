// A line of Markdown → nodes. Text reaches the page as text nodes only: nothing in it is markup.

const PATTERN = new RegExp(
  [
    "(?<code>(?<ticks>`+)(?<inside>[^]*?[^`])\\k<ticks>(?!`))",
    "(?<strong>\\*\\*(?=\\S)(?<bold>[^]*?\\S)\\*\\*)",
    "(?<em>(?<![\\w*])(?<mark>[*_])(?=[^\\s*_])(?<slanted>[^]*?[^\\s*_])\\k<mark>(?![\\w*]))",
    "(?<gone>~~(?=\\S)(?<struck>[^]*?\\S)~~)",
    "(?<link>\\[(?<label>[^\\]\\n]{1,300})\\]\\((?<target>[^\\s()]{1,2000}(?:\\([^\\s()]*\\))?)\\))",
    "(?<bare>https?:\\/\\/[^\\s<>\"'`]*[^\\s<>\"'`.,;:!?)\\]*_])",
    "(?<escaped>\\\\[!-\\/:-@\\[-`{-~])",
  ].join("|"),
  "g",
);
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MAX_DEPTH = 6;

/** Appends a text's nodes to `parent`. */
export function appendInline(parent, text, depth = 0) {
  let end = 0;
  for (const match of depth < MAX_DEPTH ? text.matchAll(PATTERN) : []) {
    parent.append(text.slice(end, match.index));
    end = match.index + match[0].length;
    parent.append(node(match.groups, match[0], depth + 1));
  }
  parent.append(text.slice(end));
}

function node(groups, whole, depth) {
  if (groups.code) return plain("code", groups.inside.replace(/^ (.*) $/s, "$1"));
  if (groups.strong) return nested("strong", groups.bold, depth);
  if (groups.em) return nested("em", groups.slanted, depth);
  if (groups.gone) return nested("s", groups.struck, depth);
  if (groups.link) return link(groups.target, groups.label, depth) ?? whole;
  if (groups.bare) return link(groups.bare, groups.bare, MAX_DEPTH) ?? whole;
  return whole.slice(1); // an escaped character
}

function plain(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function nested(name, text, depth) {
  const made = document.createElement(name);
  appendInline(made, text, depth);
  return made;
}

function link(target, label, depth) {
  if (!URL.canParse(target)) return null;
  const url = new URL(target);
  if (!SCHEMES.has(url.protocol)) return null;
  const made = nested("a", label, depth);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.title = url.href;
  return made;
}
