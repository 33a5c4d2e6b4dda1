// Markdown, the part of it that models write, → elements. See inline.js for what a line may hold.

import { appendInline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Cuts a text into blocks: {kind, lines, …}. */
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let i = 0;
  while (i < lines.length) {
    const fence = FENCE.exec(lines[i]);
    if (lines[i].trim() === "") {
      i += 1;
    } else if (fence) {
      const end = lines.findIndex(
        (line, j) => j > i && line.trim().startsWith(fence[1]) && /^[`~]+$/.test(line.trim()),
      );
      const last = end < 0 ? lines.length : end;
      found.push({ kind: "code", language: fence[2], lines: lines.slice(i + 1, last) });
      i = last + 1;
    } else if (HEADING.test(lines[i])) {
      found.push({ kind: "heading", lines: [lines[i]] });
      i += 1;
    } else if (RULE.test(lines[i])) {
      found.push({ kind: "rule", lines: [lines[i]] });
      i += 1;
    } else if (lines[i].includes("|") && TABLE_LINE.test(lines[i + 1] ?? "") && lines[i + 1].includes("-")) {
      const start = i;
      while (i < lines.length && lines[i].includes("|")) i += 1;
      found.push({ kind: "table", lines: lines.slice(start, i) });
    } else {
      const kind = QUOTE.test(lines[i]) ? "quote" : ITEM.test(lines[i]) ? "list" : "paragraph";
      const start = i;
      i += 1;
      while (i < lines.length && continues(kind, lines, i)) i += 1;
      found.push({ kind, lines: lines.slice(start, i) });
    }
  }
  return found;
}

function continues(kind, lines, i) {
  const line = lines[i];
  if (line.trim() === "") {
    // A list goes on after an empty line when another item follows.
    return kind === "list" && ITEM.test(lines[i + 1] ?? "");
  }
  if (FENCE.test(line) && !(kind === "list" && /^\s/.test(line))) return false;
  if (HEADING.test(line) || RULE.test(line)) return false;
  if (kind === "quote") return QUOTE.test(line);
  if (kind === "paragraph") return !QUOTE.test(line) && !ITEM.test(line);
  return ITEM.test(line) || /^\s/.test(line);
}

/** Makes an element of a block. */
export function render(block, depth = 0) {
  switch (block.kind) {
    case "code":
      return code(block);
    case "heading": {
      const [, marks, title] = HEADING.exec(block.lines[0]);
      return inline(`h${Math.min(6, marks.length + 2)}`, title);
    }
    case "rule":
      return document.createElement("hr");
    case "table":
      return table(block.lines);
    case "quote": {
      const quote = document.createElement("blockquote");
      const inner = block.lines.map((line) => line.replace(QUOTE, "")).join("\n");
      if (depth < 4) quote.append(...blocks(inner).map((b) => render(b, depth + 1)));
      else quote.textContent = inner;
      return quote;
    }
    case "list":
      return list(block.lines);
    default:
      return inline("p", block.lines.join("\n"));
  }
}

function inline(name, text) {
  const made = document.createElement(name);
  appendInline(made, text);
  return made;
}

function code(block) {
  const box = document.createElement("div");
  box.className = "code";
  const head = document.createElement("div");
  head.className = "code-head";
  const language = document.createElement("span");
  language.textContent = block.language;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet";
  copy.dataset.action = "copy-code";
  copy.textContent = "Copy";
  head.append(language, copy);
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  const inner = document.createElement("code");
  inner.textContent = block.lines.join("\n");
  pre.append(inner);
  box.append(head, pre);
  return box;
}

function list(lines) {
  const top = { indent: -1, element: document.createElement("div"), item: null };
  const open = [top];
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match === null) {
      const last = open.at(-1).item;
      if (line.trim() !== "" && last) {
        last.append(document.createElement("br"));
        appendInline(last, line.trim());
      }
      continue;
    }
    const indent = match[1].replaceAll("\t", "    ").length;
    const ordered = /\d/.test(match[2]);
    while (open.length > 1 && indent < open.at(-1).indent) open.pop();
    let level = open.at(-1);
    const name = ordered ? "OL" : "UL";
    const deeper = level === top || indent > level.indent + 1;
    if (deeper || level.element.tagName !== name) {
      if (!deeper) open.pop();
      const parent = open.at(-1).item ?? open.at(-1).element;
      const element = document.createElement(name);
      if (ordered) element.start = Number.parseInt(match[2], 10);
      parent.append(element);
      level = { indent, element, item: null };
      open.push(level);
    }
    level.item = inline("li", match[3]);
    level.element.append(level.item);
  }
  return top.element;
}

function table(lines) {
  const cells = (line) =>
    line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const made = document.createElement("table");
  lines.forEach((line, i) => {
    if (i === 1) return;
    const row = document.createElement("tr");
    row.append(...cells(line).map((cell) => inline(i === 0 ? "th" : "td", cell)));
    made.append(row);
  });
  const box = document.createElement("div");
  box.className = "table";
  box.append(made);
  return box;
}

/** Shows a growing text in an element: blocks that did not change keep their elements. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.shown = [];
  }

  show(text) {
    const found = blocks(text).map((block) => ({ block, source: JSON.stringify(block) }));
    let same = 0;
    while (same < found.length && found[same].source === this.shown[same]) same += 1;
    while (this.element.childElementCount > same) this.element.lastElementChild.remove();
    this.element.append(...found.slice(same).map(({ block }) => render(block)));
    this.shown = found.map(({ source }) => source);
  }
}
