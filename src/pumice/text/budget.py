"""How much a chat template may do: steps, seconds, characters, and the size of one value."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

MAX_CHARACTERS = 16_000_000  # of one value, and of all that is written
MAX_STEPS = 1_000_000  # loop turns, calls and filters
MAX_SECONDS = 5.0
MAX_WIDTH = 10_000  # padding, indentation, digits
MAX_BITS = 4096  # of a number that is computed


class BudgetError(Exception):
    """A bound was reached. The message completes "the chat template …"."""


@dataclass
class Budget:
    """What one rendering may still use."""

    deadline: float
    steps: int
    characters: int

    def step(self) -> None:
        """Counts a loop turn or a call."""
        self.steps -= 1
        if self.steps < 0:
            raise BudgetError(f"takes more than {MAX_STEPS:,} steps: it may loop for ever")
        if time.monotonic() > self.deadline:
            raise BudgetError(f"takes more than {MAX_SECONDS:g} s")

    def write(self, count: int) -> None:
        """Counts characters that go to the output, a macro's result or a variable."""
        self.characters -= count
        if self.characters < 0:
            raise BudgetError(f"writes more than {MAX_CHARACTERS:,} characters")


_current: ContextVar[Budget] = ContextVar("budget")


def start() -> None:
    """Begins a fresh budget in this context."""
    _current.set(Budget(time.monotonic() + MAX_SECONDS, MAX_STEPS, MAX_CHARACTERS))


def current() -> Budget:
    """The budget of the rendering that runs in this context."""
    return _current.get()


def check_size(size: int) -> None:
    """Refuses to make a value of more than MAX_CHARACTERS characters or items."""
    if size > MAX_CHARACTERS:
        raise BudgetError(f"makes a value of {size:,} characters; {MAX_CHARACTERS:,} are allowed")


def size_of(value: Any) -> int:
    """Characters or items of a value, not looking inside of it."""
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def check_text(value: Any) -> None:
    """Refuses a value whose text would be too large: lists that hold one another grow fast when
    written out.
    """
    size = 0
    stack = [value]
    while stack:
        item = stack.pop()
        size += 1
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
        check_size(size + len(stack))


def check_widths(*values: Any) -> None:
    """Refuses padding, indentation and precision beyond MAX_WIDTH."""
    for value in values:
        width = len(value) if isinstance(value, str) else value
        if isinstance(width, int) and width > MAX_WIDTH:
            raise BudgetError(f"pads, indents or rounds by {width:,}; {MAX_WIDTH:,} is allowed")


_WIDE = re.compile(r"%[-+ #0-9.]*\*|\d{5,}")


def check_format(pattern: str) -> None:
    """Refuses format strings that ask for much padding: `%999999999s`, `{:>999999999}`, `%*d`."""
    found = _WIDE.search(pattern)
    if found:
        raise BudgetError(f"formats with {found.group()!r}; a width of {MAX_WIDTH:,} is allowed")


def check_replace(text: Any, old: Any, new: Any) -> None:
    """Refuses a replacement whose result would be too large."""
    text, old, new = str(text), str(old), str(new)
    places = text.count(old) if old else len(text) + 1
    check_size(len(text) + places * len(new))


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuses `+`, `*`, `**` and `%` whose result would be too large."""
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "+":
        check_size(size_of(left) + size_of(right))
    elif operator == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(count, int):
                check_size(size_of(value) * max(count, 0))
        if numbers:
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and numbers:
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        check_format(left)
        check_text(right)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise BudgetError(f"computes a number of more than {MAX_BITS} bits")


def check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuses calls of the methods of str, bytes and int whose result would be too large."""
    if isinstance(owner, int):
        if name == "to_bytes":
            check_widths(*args, *kwargs.values())
        return
    if not isinstance(owner, str | bytes):
        return
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        check_widths(*args, *kwargs.values())
    elif name == "replace" and len(args) >= 2:
        check_replace(owner, args[0], args[1])
    elif name == "join" and args and isinstance(args[0], list):
        check_text([*args[0], *[owner] * len(args[0])])
    elif name in ("format", "format_map"):
        check_format(str(owner))
        check_text([*args, kwargs])
    elif name == "translate":
        raise BudgetError("calls str.translate, which is not allowed")
