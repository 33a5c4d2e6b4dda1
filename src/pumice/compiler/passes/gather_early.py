"""gather_rows(rms_norm(x)) → rms_norm(gather_rows(x)): only the rows whose logits are wanted are
normalised."""

from __future__ import annotations

from pumice.compiler.graph import Graph, Node
from pumice.compiler.passes.context import PassContext


def gather_early(graph: Graph, context: PassContext) -> Graph:
    producers, uses = graph.producers(), graph.uses()
    for index, node in enumerate(graph.nodes):
        if node.operator != "gather_rows":
            continue
        norm = producers.get(node.inputs["x"])
        if norm is None or norm.operator != "rms_norm" or uses[norm.out] != 1:
            continue
        rows = node.out.ty.shape[0]
        gathered = graph.new_var("rows", [rows, node.out.ty.shape[1]], node.out.ty.dtype)
        gather = Node(
            "gather_rows",
            {"x": norm.inputs["x"], "rows": node.inputs["rows"]},
            node.attrs,
            {"out": gathered},
        )
        late = Node("rms_norm", {**norm.inputs, "x": gathered}, norm.attrs, {"out": node.out})
        graph.nodes[index : index + 1] = [gather, late]
        graph.nodes.remove(norm)
        return gather_early(graph, context)
    return graph
