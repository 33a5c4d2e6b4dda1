"""A conversation to token ids: the template's control tokens are tokens, the user's text is only
text.

A user who writes `<|im_end|>` must not end a turn. Before rendering, such text in the messages of
users and tools is marked with a character that no message holds; the rendered text is then cut at
the control tokens without a mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pumice.text.chat_template import ChatTemplate, Message
from pumice.text.tokenizer import Tokenizer

_UNTRUSTED = ("user", "tool", "ipython", "function")
_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))  # Unicode's noncharacters


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **kwargs: Any,
) -> list[int]:
    """Prompt ids of a conversation: BOS once, where the vocabulary has the habit, and never an
    EOS added at the end.

    Arguments and errors: `ChatTemplate.render`.
    """
    mark = next((m for m in _MARKS if not _holds(messages, m)), "")
    guarded = messages
    if mark and tokenizer.control_tokens:
        pattern = "|".join(re.escape(token) for token in tokenizer.control_tokens)
        starts = re.compile(f"(?=(?:{pattern}))(.)", re.DOTALL)
        guarded = [_guard(message, starts, mark) for message in messages]
    text = template.render(guarded, tools, add_generation_prompt, **kwargs)
    if mark and mark in text:
        ids = _encode_marked(tokenizer, text, mark)
    else:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
    return tokenizer.with_prefix(ids)


def _holds(value: Any, mark: str) -> bool:
    if isinstance(value, str):
        return mark in value
    if isinstance(value, Mapping):
        return any(_holds(item, mark) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(item, mark) for item in value)
    return False


def _guard(message: Message, starts: re.Pattern[str], mark: str) -> Message:
    """The message with a mark after the first character of every control token in its content."""
    if message.get("role") not in _UNTRUSTED:
        return message

    def marked(text: Any) -> Any:
        return starts.sub(rf"\1{mark}", text) if isinstance(text, str) else text

    content = message.get("content")
    if isinstance(content, list | tuple):  # parts: {"type": "text", "text": …}
        content = [
            {**part, "text": marked(part["text"])}
            if isinstance(part, Mapping) and "text" in part
            else marked(part)
            for part in content
        ]
    return {**message, "content": marked(content)}


def _encode_marked(tokenizer: Tokenizer, text: str, mark: str) -> list[int]:
    controls = tokenizer.control_tokens
    longest_first = sorted(controls, key=len, reverse=True)
    pattern = "|".join(re.escape(token) for token in longest_first)
    ids: list[int] = []
    for index, part in enumerate(re.split(f"({pattern})", text)):
        if index % 2:
            ids.append(controls[part])
        elif part:
            plain = part.replace(mark, "")
            ids += tokenizer.encode(plain, add_special=False, parse_special=False)
    return ids
