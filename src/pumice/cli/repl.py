"""The interactive conversation: reads lines and commands, shows answers as they come."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol, TextIO

from pumice.cli.console import note, print_error
from pumice.errors import PumiceError, UsageError

HELP = """\
/help    this text
/reset   forget the conversation
/stats   speed of the last answer
/set     show the settings; /set NAME VALUE changes one; /set NAME default undoes that
/exit    leave (as Ctrl-D does)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one; \"\"\" alone on a line
begins
and ends a text of several lines."""
_HISTORY_LENGTH = 1000
_FENCE = '"""'


class Conversation(Protocol):
    """What the loop needs of a model."""

    def ask(self, text: str) -> Generator[str, None, None]:
        """Pieces of the answer. Closing the generator early stops the generation."""

    def reset(self) -> None:
        """Forgets everything."""

    def stats(self) -> str:
        """Of the last answer."""

    def settings(self) -> dict[str, str]:
        """Names and values."""

    def set(self, name: str, value: str) -> None:
        """Changes a setting; UsageError says what is allowed."""


class Repl:
    """Reads with `read(prompt)`, which raises EOFError at the end and KeyboardInterrupt on
    Ctrl-C."""

    def __init__(
        self, conversation: Conversation, read: Callable[[str], str], out: TextIO | None = None
    ) -> None:
        self._conversation = conversation
        self._read = read
        self._out = out or sys.stdout
        self._running = True

    def run(self) -> None:
        """Until /exit or the end of the input."""
        while self._running:
            try:
                text = self._entry()
            except EOFError:
                self._say("")
                return
            except KeyboardInterrupt:
                self._say("")  # a line that was begun is dropped
                continue
            try:
                self._handle(text)
            except PumiceError as error:
                print_error(error)

    def _entry(self) -> str:
        """One message, which may span several lines."""
        line = self._read("> ")
        if line.strip() == _FENCE:
            lines: list[str] = []
            while (line := self._read(". ")).strip() != _FENCE:
                lines.append(line)
            return "\n".join(lines)
        lines = []
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = self._read(". ")
        return "\n".join([*lines, line])

    def _handle(self, text: str) -> None:
        stripped = text.strip()
        if not stripped:
            return
        if stripped.startswith("/"):
            self._command(*stripped.split())
        else:
            self._answer(text)

    def _answer(self, text: str) -> None:
        pieces = self._conversation.ask(text)
        try:
            for piece in pieces:
                self._out.write(piece)
                self._out.flush()
        except KeyboardInterrupt:
            self._say("\n[stopped]")
            return
        finally:
            pieces.close()
        self._say("")

    def _command(self, command: str, *arguments: str) -> None:
        match command, arguments:
            case "/help", ():
                self._say(HELP)
            case "/reset", ():
                self._conversation.reset()
                self._say("The conversation is empty.")
            case "/stats", ():
                self._say(self._conversation.stats())
            case "/set", ():
                for name, value in self._conversation.settings().items():
                    self._say(f"{name:<20} {value}")
            case "/set", (name, value):
                self._conversation.set(name, value)
            case (("/exit" | "/quit"), ()):
                self._running = False
            case (("/help" | "/reset" | "/stats" | "/exit" | "/quit" | "/set"), _):
                usage = "/set [NAME VALUE]" if command == "/set" else f"{command} without arguments"
                raise UsageError(f"{command} was given {' '.join(arguments)!r}; use {usage}")
            case _:
                raise UsageError(f"{command} is no command", hint="/help lists them.")

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


@contextlib.contextmanager
def line_reader(history: Path) -> Generator[Callable[[str], str], None, None]:
    """Yields a `read(prompt)` with editing, and with a history that is kept in a file."""
    try:
        import readline
    except ImportError:  # a Python built without it: no editing, no history
        yield input
        return
    readline.set_history_length(_HISTORY_LENGTH)
    with contextlib.suppress(OSError):  # none yet
        readline.read_history_file(history)
    try:
        yield input
    finally:
        try:
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)
            history.chmod(0o600)
        except OSError as error:
            note(f"the history could not be kept in {history}: {error.strerror}")
