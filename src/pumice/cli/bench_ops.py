"""`pumice bench ops`: the GPU operators over real models' shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pumice.cli import options

NAME = "ops"


def session(
    operators: list[str] | None,
    rows: str,
    *,
    cases: bool,
    times: bool,
    progress: bool,
    every: bool,
    problems: Sequence[tuple[str, Any]] | None = None,
    keep: Callable[[str, Any], None] | None = None,
) -> Any:
    """Runs operators, or (label, problem) pairs, on the GPU at hand; the errors say what is
    missing. keep: takes an operator's rows after every problem."""
    from pumice.cli.console import note
    from pumice.cli.gpu import require_gpu
    from pumice.cli.session import keep_kernels
    from pumice.operators.registry import require_gpu_operator

    for name in operators or ():
        require_gpu_operator(name)
    keep_kernels(None)
    target = require_gpu()
    from pumice.bench.operators import session as sessions

    return sessions.run(
        target,
        note if progress else (lambda _text: None),
        operators=operators or (),
        pattern=rows,
        offered="all" if every else "chosen",
        with_cases=cases,
        with_times=times,
        problems=problems,
        keep=keep,
    )


def command(
    operators: Annotated[
        list[str] | None, typer.Argument(help="Operators. [default: all]", show_default=False)
    ] = None,
    rows: Annotated[
        str, typer.Option("--rows", help="Only problems whose name holds this text.")
    ] = "",
    cases: Annotated[
        bool, typer.Option("--cases/--no-cases", help="Try every case against NumPy first.")
    ] = True,
    every: Annotated[
        bool,
        typer.Option("--all", help="Every kernel under every configuration, not the chosen one."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw roofline, floor and peers into a .svg, .png or .pdf."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Time the kernel that is chosen for each GPU operator, in turns with PyTorch and the vendor's
    libraries."""
    if plot is not None:
        from pumice.bench.plot import check_plot

        check_plot(plot)
    found = session(operators, rows, cases=cases, times=True, progress=True, every=every)
    if plot is not None:
        from pumice.bench.operators.picture import plot as draw
        from pumice.cli.console import note

        draw(found.best, found.facts, plot)
        note(f"wrote {plot}")
    if as_json:
        from pumice.cli.console import print_json

        print_json({"facts": found.facts, "best": found.best})
    else:
        from rich.table import Table

        from pumice.bench.operators.table import HEADER, lines
        from pumice.cli.console import stdout

        table = Table(*HEADER, box=None, header_style="bold")
        for line in lines(found.best):
            table.add_row(*line)
        stdout().print(table)
        for case in found.failed:
            print(f"FAILED {case.operator} case {case.case} {case.kernel}: {case.error:.3g}")
    if found.failed:
        raise typer.Exit(1)
