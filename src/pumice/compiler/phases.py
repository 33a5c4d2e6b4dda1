"""Phases 1 and 2, which every target has: the model's graphs, and a target's passes over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pumice.compiler.dump import Dump
from pumice.compiler.graph import Graph, from_relax
from pumice.compiler.passes.context import PassContext
from pumice.compiler.source import ModelSource

Pass = Callable[[Graph, PassContext], Graph]


def fused_graphs(
    model: ModelSource,
    passes: Sequence[tuple[str, Pass]],
    context: PassContext,
    block_size: int,
    dump: Dump,
    tell: Callable[[str, int, int], None],
) -> dict[str, Graph]:
    """The graphs by entry point, ready to be lowered. What passes have to say is in the context."""
    from pumice.models.trace import ENTRIES

    tell("1 trace", 0, 1)
    module = model.record.trace(model.config, block_size=block_size)
    graphs = {name: from_relax(name, module[name]) for name in ENTRIES}
    dump.graphs("1-trace", graphs)
    tell("1 trace", 1, 1)
    for index, (name, run) in enumerate(passes):
        tell("2 fuse", index, len(passes))
        graphs = {entry: run(graph, context) for entry, graph in graphs.items()}
        dump.graphs(f"2-fuse-{index + 1}-{name}", graphs)
    tell("2 fuse", len(passes), len(passes))
    return graphs
