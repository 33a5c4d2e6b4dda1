"""Gives every linear with an affine weight its activation as integer codes, quantized where the
activation is made.

An activation row is quantized to (codes, scales, sums), the sums of groups being what a weight's
minimum or zero point multiplies. Mode int8 keeps 8 bits with a scale a group of 32, as llama.cpp's
Q8_1 does; mode int16 keeps 15 in two int8 planes with a scale a row, for twice the integer work:
small models lose words to 8 bits (`operators/quantized.py`). Norms and silu·mul, and with one plane
attention, write that form themselves when nobody else reads their output; elsewhere a quantize node
is inserted.
"""

from __future__ import annotations

from typing import Any

from pumice.compiler.graph import QUANTIZED, Graph, Node
from pumice.compiler.passes.context import ACTIVATION_GROUP, PassContext

PLANES = {"int8": 1, "int16": 2}
_CAN_QUANTIZE = ("rms_norm", "silu_mul", "attention")


def quantize_activations(graph: Graph, context: PassContext) -> Graph:
    if context.activations == "float32":
        for node in graph.nodes:
            if node.operator == "linear":
                node.attrs = {**node.attrs, "activations": "float32"}
        return graph
    wanted: dict[Any, dict[int, list[Node]]] = {}  # activation → sum group → linears
    for node in graph.nodes:
        if node.operator != "linear":
            continue
        group = _sum_group(node, context)
        node.attrs = {
            **node.attrs,
            "activations": "float32" if group is None else context.activations,
        }
        if group is not None:
            wanted.setdefault(node.inputs["x"], {}).setdefault(group, []).append(node)
    producers, uses = graph.producers(), graph.uses()
    for x, by_group in wanted.items():
        producer = producers.get(x)
        readers = sum(len(nodes) for nodes in by_group.values())
        fusable = (
            producer is not None
            and producer.operator in _CAN_QUANTIZE
            and len(by_group) == 1
            and uses[x] == readers
            and _fits(producer, PLANES[context.activations])
        )
        for group, nodes in by_group.items():
            outputs = _quantized_vars(graph, x, group, PLANES[context.activations])
            planes = PLANES[context.activations]
            attrs = {"group": ACTIVATION_GROUP, "sum_group": group, "planes": planes}
            if fusable:
                assert producer is not None
                producer.attrs = {**producer.attrs, "quantize": True, **attrs}
                producer.outputs = outputs
            else:
                quantize = Node("quantize", {"x": x}, attrs, outputs)
                graph.nodes.insert(graph.nodes.index(nodes[0]), quantize)
            for node in nodes:
                rest = {k: v for k, v in node.inputs.items() if k != "x"}
                node.inputs = {**outputs, **rest}
                node.attrs = {**node.attrs, "sum_group": group, "planes": planes}
    return graph


def _sum_group(node: Node, context: PassContext) -> int | None:
    """The group over which codes are summed for this linear, or None when it takes float
    activations."""
    fmt = context.format_of(node.inputs["weight"])
    width = int(node.inputs["x"].ty.shape[1])
    if not fmt.affine:
        return None
    if width % ACTIVATION_GROUP:
        context.note(f"a linear with K={width} takes float activations: K is no multiple of 32")
        return None
    return min(fmt.group, ACTIVATION_GROUP)


def _fits(producer: Node, planes: int) -> bool:
    # Attention quantizes each head on its own: neither a group nor a scale may span two heads.
    fits = planes == 1 and producer.attrs.get("head_dim", 0) % ACTIVATION_GROUP == 0
    return producer.operator != "attention" or fits


def _quantized_vars(graph: Graph, x: Any, group: int, planes: int) -> dict[str, Any]:
    rows, width = x.ty.shape[0], int(x.ty.shape[1])
    scales = width // ACTIVATION_GROUP if planes == 1 else 1
    shapes = (planes * width, scales, width // group)
    dtypes = ("int8", "float32", "float32")
    return {
        name: graph.new_var(name, [rows, n], dtype)
        for name, n, dtype in zip(QUANTIZED, shapes, dtypes, strict=True)
    }
