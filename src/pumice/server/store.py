"""Answers of `/v1/responses` that a later call may go on from: in memory, bounded, oldest out."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from pumice.server.core.job import Message


@dataclass(frozen=True)
class Stored:
    """body: the response. items: its input. messages: the conversation with its answer, without
    instructions. salt: whose it is.
    """

    body: dict[str, Any]
    items: list[dict[str, Any]]
    messages: tuple[Message, ...]
    salt: bytes


class ResponseStore:
    """At most `most` answers of `most_bytes` together; 0 keeps none."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._stored: OrderedDict[str, tuple[int, Stored]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, name: str, stored: Stored) -> None:
        """Keeps an answer; the oldest make room."""
        size = len(json.dumps([stored.body, stored.items, stored.messages], default=str))
        if size > self._most_bytes or self._most == 0:
            return
        self._stored[name] = (size, stored)
        self._bytes += size
        while len(self._stored) > self._most or self._bytes > self._most_bytes:
            _, (size, _) = self._stored.popitem(last=False)
            self._bytes -= size

    def get(self, name: str, salt: bytes) -> Stored | None:
        """None for an unknown one, and for another key's."""
        entry = self._stored.get(name)
        return entry[1] if entry is not None and entry[1].salt == salt else None

    def remove(self, name: str, salt: bytes) -> bool:
        """Whether it was there."""
        if self.get(name, salt) is None:
            return False
        size, _ = self._stored.pop(name)
        self._bytes -= size
        return True
