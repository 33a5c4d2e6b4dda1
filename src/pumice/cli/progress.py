"""Progress of downloads and of counted work: a bar on a terminal, a line elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from pumice.cli.console import note

Report = Callable[[str, int, int], None]  # what, bytes done, bytes in all


@contextlib.contextmanager
def download_progress() -> Iterator[Report]:
    """Yields report(what, done, total). Nothing is shown, and rich is not imported, until it is
    called.
    """
    with contextlib.ExitStack() as stack:
        yield _terminal(stack) if sys.stderr.isatty() else _plain()


@contextlib.contextmanager
def transfer_progress() -> Iterator[Report]:
    """The same for what is copied to a device: without a terminal nothing is shown."""
    with contextlib.ExitStack() as stack:
        yield _terminal(stack) if sys.stderr.isatty() else lambda what, done, total: None


@contextlib.contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yields a function that counts one more of `total`."""
    if not sys.stderr.isatty():
        note(what)
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _plain() -> Report:
    seen: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            note(f"fetch: {what}" + (f" ({total / 1e6:.1f} MB)" if total else ""))

    return report


def _terminal(stack: contextlib.ExitStack) -> Report:
    tasks: dict[str, int] = {}
    bars: list[object] = []

    def report(what: str, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if not bars:
            columns = (
                TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
                TransferSpeedColumn(), TimeRemainingColumn(),
            )  # fmt: skip
            bars.append(
                stack.enter_context(
                    Progress(*columns, console=Console(stderr=True), transient=True)
                )
            )
        progress = bars[0]
        assert isinstance(progress, Progress)
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total or None)
        progress.update(TaskID(tasks[what]), completed=done, total=total or None)

    return report
