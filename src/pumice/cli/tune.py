"""`pumice tune`: measures kernels on this machine's GPU and keeps the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

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
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            help="A problem of the one operator named, several with more of these: "
            '"x=16x4096,w=12288x4096:float16,activation=silu". What is not given (types, '
            "attributes) is as in its benchmark.",
            show_default=False,
        ),
    ] = None,
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
    problems = None
    if shapes:
        problems = given_problems(operators or [], shapes, rows)
    folder = output or tuning_folder(cache_dir)
    print(tune_problems(problems, folder, operators, rows))


def given_problems(operators: list[str], shapes: list[str], rows: str) -> list[tuple[str, Any]]:
    """(text, problem) of --shape options; UsageError when they do not fit the rest."""
    from pumice.errors import UsageError
    from pumice.tuning.shapes import parse_problem

    if len(operators) != 1 or rows:
        raise UsageError(
            f"--shape is a problem of one operator; given are {', '.join(operators) or 'none'}"
            + (f" and --rows {rows!r}" if rows else ""),
            hint="pumice tune gemm --shape x=16x4096,w=12288x4096",
        )
    return [(text, parse_problem(operators[0], text)) for text in shapes]


def tuning_folder(cache_dir: Path | None) -> Path:
    """Where rows are found again."""
    from pumice.settings import Settings

    return (cache_dir or Settings.from_environment().cache_dir) / "tuning"


def tune_problems(
    problems: Sequence[tuple[str, Any]] | None,
    folder: Path,
    operators: list[str] | None = None,
    rows: str = "",
) -> str:
    """Measures (label, problem) pairs, or without them the operators' benchmark rows, on the GPU at
    hand and adds what was fastest to the rows in `folder`. Returns a line that says so."""
    from pumice.cli.bench_ops import session

    found = session(operators, rows, cases=False, times=True, progress=True, problems=problems)
    from pumice.bench.operators.session import write_database

    target = found.facts["target"]
    write_database(found.rows, folder / target)
    count = sum(len(rows) for rows in found.rows.values())
    return f"{count} rows of {len(found.rows)} operators in {folder / target}"
