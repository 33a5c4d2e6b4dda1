"""The command `pumice`. Commands import what is heavy when they run: `--help` is instant."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pumice._version import __version__
from pumice.cli import (
    bench_group,
    chat,
    compile,
    doctor,
    inspect,
    pull,
    quantize,
    run,
    serve,
    tune,
    verify,
)
from pumice.cli.console import print_error
from pumice.errors import OutOfMemoryError, PumiceError


class _Commands(TyperGroup):
    """Turns what a command raises into a message and an exit status (the table in
    `pumice.errors`).
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except MemoryError as error:
            if ctx.params.get("debug"):
                raise
            if not isinstance(error, PumiceError):
                error = OutOfMemoryError("this process ran out of memory")
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        except PumiceError as error:
            if ctx.params.get("debug"):
                raise
            print_error(error)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="pumice",
    cls=_Commands,
    help="Compiles open language models for the hardware you have, and runs them fast.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pumice {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options before the command."""


for module in (chat, run, serve, compile, inspect, pull, quantize, tune, verify, doctor):
    app.command(module.NAME)(module.command)
app.add_typer(bench_group.app)
