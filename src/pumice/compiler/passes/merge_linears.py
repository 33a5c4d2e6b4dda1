"""Linears that read the same activation become one whose weights are stacked along N.

rope_append(linear(x, Wq), linear(x, Wk), linear(x, Wv)) → rope_append(linear(x, Wq|Wk|Wv)),
silu_mul(linear(x, Wg), linear(x, Wu)) →
silu_mul(linear(x, Wg|Wu)): the activation is read once and a step has fewer launches. Where the
weights' formats differ (a
Q4_K_M file holds some value projections as Q6_K) the outputs are concatenated instead.
"""

from __future__ import annotations

from typing import Any

from pumice.compiler.graph import Graph, Node
from pumice.compiler.passes.context import PassContext

# operator → (its inputs that may be merged, the merged input's name)
_MERGED = {"rope_append": (("q", "k", "v"), "qkv"), "silu_mul": (("gate", "up"), "gate_up")}


def merge_linears(graph: Graph, context: PassContext) -> Graph:
    for node in list(graph.nodes):
        if node.operator in _MERGED:
            names, merged = _MERGED[node.operator]
            if all(name in node.inputs for name in names):
                _merge(graph, context, node, names, merged)
    return graph


def _merge(
    graph: Graph, context: PassContext, node: Node, names: tuple[str, ...], merged: str
) -> None:
    producers, uses = graph.producers(), graph.uses()
    sources = [producers.get(node.inputs[name]) for name in names]
    widths = [int(node.inputs[name].ty.shape[1]) for name in names]
    rows = node.inputs[names[0]].ty.shape[0]
    out = graph.new_var(merged, [rows, sum(widths)], "float32")
    linears = [s for s in sources if s is not None and s.operator == "linear"]
    reason = _why_not(context, uses, sources, linears)
    if reason is None:
        new = _stack(linears, widths, out)
        position = graph.nodes.index(linears[-1])
        graph.nodes[position] = new
        for linear in linears[:-1]:
            graph.nodes.remove(linear)
    else:
        context.note(f"{'/'.join(names)} are not merged: {reason}")
        parts = {letter: node.inputs[name] for letter, name in zip("abc", names, strict=False)}
        concat = Node("concat", parts, {"widths": tuple(widths)}, {"out": out})
        graph.nodes.insert(graph.nodes.index(node), concat)
    rest = {k: v for k, v in node.inputs.items() if k not in names}
    node.inputs = {merged: out, **rest}


def _why_not(
    context: PassContext, uses: Any, sources: list[Node | None], linears: list[Node]
) -> str | None:
    if len(linears) != len(sources):
        return "an input is not the output of a linear"
    x = linears[0].inputs["x"]
    if any(not linear.inputs["x"].same_as(x) for linear in linears):
        return "the linears read different activations"
    if any(uses[linear.out] != 1 for linear in linears):
        return "an output is used elsewhere too"
    if len({"bias" in linear.inputs for linear in linears}) != 1:
        return "only some have a bias"
    formats = {context.format_of(linear.inputs["weight"]).name for linear in linears}
    if len(formats) != 1:
        return f"the weights' formats differ ({', '.join(sorted(formats))})"
    return None


def _stack(linears: list[Node], widths: list[int], out: Any) -> Node:
    inputs = {"x": linears[0].inputs["x"]}
    for operand in ("weight", "bias"):
        if operand in linears[0].inputs:
            for index, linear in enumerate(linears):
                inputs[operand if index == 0 else f"{operand}.{index}"] = linear.inputs[operand]
    attrs = {**linears[0].attrs, "parts": tuple(widths)}
    return Node("linear", inputs, attrs, {"out": out})
