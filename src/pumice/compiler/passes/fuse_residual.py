"""add(x, linear(y)) → linear(y, residual=x): the sum is formed where the product is still in
registers."""

from __future__ import annotations

from pumice.compiler.graph import Graph
from pumice.compiler.passes.context import PassContext


def fuse_residual(graph: Graph, context: PassContext) -> Graph:
    for node in list(graph.nodes):
        if node.operator != "add":
            continue
        producers, uses = graph.producers(), graph.uses()
        for name, other in (("b", "a"), ("a", "b")):
            linear = producers.get(node.inputs[name])
            if (
                linear is None
                or linear.operator != "linear"
                or uses[linear.out] != 1
                or "residual" in linear.inputs
            ):
                continue
            # The linear moves to the add's place: what it adds may be computed between the two.
            linear.inputs = {**linear.inputs, "residual": node.inputs[other]}
            linear.outputs = {"out": node.out}
            graph.nodes.remove(linear)
            graph.nodes[graph.nodes.index(node)] = linear
            break
    return graph
