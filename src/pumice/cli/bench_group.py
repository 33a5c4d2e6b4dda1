"""`pumice bench`: a model on this machine (meant when nothing is said), or a server."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from pumice.cli import bench, bench_ops, bench_serve

NAME = bench.NAME
_DEFAULT = "model"


class _Group(TyperGroup):
    """`pumice bench [MODEL]` is `pumice bench model [MODEL]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name=NAME,
    cls=_Group,
    help="Measure a model on this machine, or (bench serve) a server under load.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    _DEFAULT,
    epilog="`pumice bench serve [URL]` measures a server, `pumice bench ops` the GPU operators; "
    "each has its own --help.",
)(bench.command)
app.command(bench_serve.NAME)(bench_serve.command)
app.command(bench_ops.NAME)(bench_ops.command)
