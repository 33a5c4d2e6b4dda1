"""`pumice tune`: measures kernels on this machine's GPU and keeps the fastest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pumice.cli import options

NAME = "tune"


def command(
    operators: Annotated[
        list[str] | None, typer.Argument(help="Operators. [default: all]", show_default=False)
    ] = None,
    rows: Annotated[
        str,
        typer.Option("--rows", help='Only problems whose name holds this text: "Llama-3-8B".'),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=options.directory,
            metavar="<path>",
            help="Folder of the rows. [default: in the cache, where they are found again]",
            show_default=False,
        ),
    ] = None,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Measure every kernel of the GPU operators on this machine, and keep the fastest.

    A kernel counts only when it gives the right result. Rows go to
    FOLDER/ARCHITECTURE/OPERATOR.json and come before those that Pumice ships.
    """
    from pumice.cli.bench_ops import session
    from pumice.settings import Settings

    found = session(operators, rows, cases=False, times=True, progress=True)
    from pumice.bench.operators.session import write_database

    folder = output or (cache_dir or Settings.from_environment().cache_dir) / "tuning"
    write_database(found.rows, folder / found.facts["target"])
    count = sum(len(rows) for rows in found.rows.values())
    print(f"{count} rows of {len(found.rows)} operators in {folder / found.facts['target']}")
