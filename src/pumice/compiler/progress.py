"""Progress of a compile for people: one bar a phase on a terminal, one line a phase elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Report = Callable[[str, int, int], None]  # phase, done, total


@contextlib.contextmanager
def make_progress(*, quiet: bool) -> Iterator[Report]:
    """Yields report(phase, done, total); the bars leave the terminal at the end."""
    if quiet:
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        seen: set[str] = set()

        def plain(phase: str, done: int, total: int) -> None:
            if phase not in seen:
                seen.add(phase)
                print(f"compile: {phase}", file=sys.stderr, flush=True)

        yield plain
        return
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield report
