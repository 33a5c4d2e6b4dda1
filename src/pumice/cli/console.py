"""Output for people: errors and notes on standard error, tables on standard output."""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from pumice.errors import PumiceError
from pumice.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console


@functools.cache
def settings() -> Settings:
    """The environment's settings, read once."""
    return Settings.from_environment()


def use_color(stream: TextIO) -> bool:
    """Whether a stream gets colours."""
    try:
        wanted = settings().color
    except PumiceError:  # an error about the settings themselves must be printable
        wanted = None
    return stream.isatty() if wanted is None else wanted


def _paint(text: str, code: str, stream: TextIO) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if use_color(stream) else text


def print_error(error: PumiceError) -> None:
    """The message in red and the next step, on standard error."""
    sys.stdout.flush()
    print(_paint("error: ", "1;31", sys.stderr) + error.message, file=sys.stderr)
    if error.hint:
        print(_paint("hint: ", "1;36", sys.stderr) + error.hint, file=sys.stderr)


def note(text: str) -> None:
    """A line on standard error, dimmed."""
    print(_paint(text, "2", sys.stderr), file=sys.stderr, flush=True)


def stdout() -> Console:
    """A rich console on standard output; without a terminal its lines are long."""
    from rich.console import Console

    color = use_color(sys.stdout)
    width = None if sys.stdout.isatty() else 160
    return Console(
        no_color=not color, force_terminal=True if color else None, width=width, highlight=False
    )


def print_json(data: Any) -> None:
    """One JSON object, on one line."""
    print(json.dumps(data, default=str), flush=True)
