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
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Problems that this model will call, in place of the benchmark's.",
            show_default=False,
        ),
    ] = None,
    quant: options.QuantOption = None,
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
    from pumice.cli.session import keep_kernels
    from pumice.errors import UsageError

    if shapes and model:
        raise UsageError(
            f"--shape {shapes[0]} and --model {model} are given; each says what is measured"
        )
    if quant and not model:
        raise UsageError(f"--quant {quant} is of a model; --model is missing")
    keep_kernels(cache_dir)
    problems = None
    if shapes:
        problems = given_problems(operators or [], shapes, rows)
    elif model:
        problems = model_problems(model, quant, cache_dir, operators or [], rows)
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


def model_problems(
    model: str, quant: str | None, cache_dir: Path | None, operators: list[str], rows: str
) -> list[tuple[str, Any]]:
    """(sizes, problem) of a model's calls on the GPU at hand, of the operators named (all when none
    is) whose sizes hold `rows`. UsageError when none is left."""
    from pumice.cli.gpu import require_gpu
    from pumice.errors import UsageError
    from pumice.settings import Settings
    from pumice.summary import RANDOM

    target = require_gpu()
    from pumice.compiler.compile import CompileOptions
    from pumice.compiler.gpu.problems import problems_of_model
    from pumice.weights.hub import resolve

    cache = cache_dir or Settings.from_environment().cache_dir
    source = model if model.startswith(RANDOM) else resolve(model, cache)
    every = problems_of_model(source, target, CompileOptions(quantization=quant))
    found = [
        (sizes, problem)
        for sizes, problem in every
        if (not operators or problem.operator in operators) and rows in sizes
    ]
    if not found:
        called = ", ".join(sorted({problem.operator for _, problem in every}))
        raise UsageError(f"{model} calls none of these; its operators are {called}")
    return found


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
    from pumice.bench.operators.session import write_database
    from pumice.cli.bench_ops import session
    from pumice.cli.gpu import require_gpu
    from pumice.files import make_directory, require_writable
    from pumice.operators.registry import require_gpu_operator

    for name in operators or ():
        require_gpu_operator(name)
    place = folder / require_gpu().name
    make_directory(place)
    require_writable(place)
    counts: dict[str, int] = {}

    def keep(operator: str, found: Any) -> None:
        """After every problem: an interrupt leaves what was measured before it."""
        write_database({operator: found}, place)
        counts[operator] = len(found)

    session(
        operators, rows, cases=False, times=True, progress=True, every=True, problems=problems,
        keep=keep,
    )  # fmt: skip
    return f"{sum(counts.values())} rows of {len(counts)} operators in {place}"
