"""What `/v1/responses` answers: output items, made event by event.

Without streaming the events are not sent; the items are the same.
"""

from __future__ import annotations

from typing import Any

from pumice.engine.request import TokenLogprob
from pumice.server.context import ServerContext
from pumice.server.core.generate import End, Step
from pumice.server.core.job import Message
from pumice.server.core.result import Result
from pumice.server.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from pumice.server.protocols.fields import logprob_entry, new_id
from pumice.server.protocols.openai_messages import tool_call

Sent = list[dict[str, Any]]  # events, without their sequence numbers


class Output:
    """items: those that began, the last of them perhaps open. result: the same, added up."""

    def __init__(self, context: ServerContext, *, logprobs: bool) -> None:
        self._context = context
        self._logprobs = logprobs
        self.items: list[dict[str, Any]] = []
        self.result = Result()
        self._open = False
        self._untold: list[TokenLogprob] = []  # of tokens whose text has not come yet

    def add(self, step: Step) -> Sent:
        """The events of a step."""
        self.result.add(step)
        self._untold += step.logprobs
        sent: Sent = []
        for event in step.events:
            sent += self._event(event)
            self._untold = []  # told with a text, or of reasoning and calls, which have none
        return sent

    def close(self, end: End | None) -> Sent:
        """The end of the last item; an answer without any is an empty message."""
        sent: Sent = []
        if not self.items:
            sent += self._begin("message")
        if self._open and self.items[-1]["type"] == "message":
            self.items[-1]["content"][0]["logprobs"] += self._entries()
        return sent + self._finish("incomplete" if end is None or _cut(end) else "completed")

    def message(self) -> Message:
        """The answer in a conversation."""
        made: Message = {"role": "assistant", "content": self.result.content}
        if self.result.reasoning:
            made["reasoning_content"] = self.result.reasoning
        if self.result.calls:
            made["tool_calls"] = [
                tool_call(c.call_id, c.name, c.arguments) for c in self.result.calls
            ]
        return made

    def _event(self, event: Event) -> Sent:
        match event:
            case ContentDelta(text):
                sent = self._need("message")
                part = self.items[-1]["content"][0]
                part["text"] += text
                entries = self._entries()
                part["logprobs"] += entries
                return [*sent, self._told("output_text.delta", content_index=0, delta=text,
                                          logprobs=entries)]  # fmt: skip
            case ReasoningDelta(text):
                sent = self._need("reasoning")
                self.items[-1]["content"][0]["text"] += text
                return [*sent, self._told("reasoning_text.delta", content_index=0, delta=text)]
            case ToolCallStart(_, call_id, name):
                return self._finish("completed") + self._begin(
                    "function_call", call_id=call_id, name=name, arguments=""
                )
            case ToolCallArguments(_, fragment):
                self.items[-1]["arguments"] += fragment
                return [self._told("function_call_arguments.delta", delta=fragment)]

    def _entries(self) -> list[dict[str, Any]]:
        return [logprob_entry(self._context, e) for e in self._untold] if self._logprobs else []

    def _need(self, kind: str) -> Sent:
        if self._open and self.items[-1]["type"] == kind:
            return []
        return self._finish("completed") + self._begin(kind)

    def _begin(self, kind: str, **fields: Any) -> Sent:
        prefix = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[kind]
        item = {"id": new_id(prefix), "type": kind, "status": "in_progress", **fields}
        part: dict[str, Any] | None = None
        if kind == "message":
            item |= {"role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        self.items.append(item)
        self._open = True
        sent = [self._told("output_item.added", of_item=False, item=_copy(item))]
        if part is not None:
            sent.append(self._told("content_part.added", content_index=0, part=dict(part)))
            item["content"].append(part)
        return sent

    def _finish(self, status: str) -> Sent:
        if not self._open:
            return []
        self._open = False
        item = self.items[-1]
        item["status"] = status
        sent = []
        if item["type"] == "function_call":
            sent.append(self._told("function_call_arguments.done", arguments=item["arguments"],
                                   name=item["name"]))  # fmt: skip
        else:
            part = item["content"][0]
            done = {"content_index": 0, "text": part["text"]}
            if item["type"] == "message":
                sent.append(self._told("output_text.done", logprobs=part["logprobs"], **done))
            else:
                sent.append(self._told("reasoning_text.done", **done))
            sent.append(self._told("content_part.done", content_index=0, part=dict(part)))
        sent.append(self._told("output_item.done", of_item=False, item=_copy(item)))
        return sent

    def _told(self, kind: str, *, of_item: bool = True, **fields: Any) -> dict[str, Any]:
        event = {"type": f"response.{kind}", "output_index": len(self.items) - 1, **fields}
        if of_item:
            event["item_id"] = self.items[-1]["id"]
        return event


def _cut(end: End) -> bool:
    return end.reason in ("length", "deadline")


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """Later changes of an item are not changes of what was said of it."""
    if "content" not in item:
        return dict(item)
    return {**item, "content": [dict(part) for part in item["content"]]}
