"""`pumice doctor`: what this machine has, and whether Pumice's kernels compute the right thing on
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pumice.cli import options

if TYPE_CHECKING:
    from pumice.cli.checks import Finding

NAME = "doctor"


def command(
    selftest: Annotated[
        bool, typer.Option(help="Compile and run every kernel against its reference.")
    ] = True,
    speed: Annotated[bool, typer.Option(help="Measure read bandwidth and peaks.")] = True,
    json_output: options.JsonOption = False,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Check this machine; the exit status is 1 when something fails."""
    from pumice.cli.checks import FAILED
    from pumice.cli.console import note, print_json, stdout
    from pumice.cli.devices import is_gpu, parse_device
    from pumice.cli.session import cache_directory

    name = parse_device(device)
    if is_gpu(name):
        from pumice.runtime.gpu_load import find_device

        find_device(name)  # an error says what is missing
    failures = 0
    if not json_output and (selftest or speed):
        note("compiling and running kernels; this takes up to a minute")
    rows = []
    for finding in _findings(cache_directory(cache_dir), threads, speed, selftest):
        failures += finding.status == FAILED
        if json_output:
            print_json(finding.__dict__)
        else:
            rows.append(finding)
    if not json_output:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading in ("check", "status", "found"):
            table.add_column(heading, overflow="fold")
        styles = {"ok": "green", "warning": "yellow", "failed": "bold red"}
        for finding in rows:
            detail = finding.detail + (f"\n{finding.hint}" if finding.hint else "")
            table.add_row(
                finding.name, f"[{styles[finding.status]}]{finding.status}[/]", _plain(detail)
            )
        stdout().print(table)
        if failures:
            note(f"{failures} check{'s' if failures > 1 else ''} failed")
    if failures:
        raise typer.Exit(1)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _findings(
    cache_dir: Path, threads: int | None, speed: bool, selftest: bool
) -> Iterator[Finding]:
    from pumice.cli import checks
    from pumice.cli.checks import guarded

    yield guarded("versions", checks.versions)
    yield guarded("cpu", checks.processor)
    yield from checks.devices()
    yield guarded("auto", checks.default_device)
    yield guarded("threads", checks.threads)
    yield guarded("linker", checks.linker)
    yield guarded("memory", checks.memory)
    cache = guarded("cache", lambda: checks.cache(cache_dir))
    yield cache
    if speed:
        yield guarded("speed", lambda: checks.speed(cache_dir, threads))
    if selftest:
        yield from checks.selftest()
