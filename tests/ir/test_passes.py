"""Passes on small graphs: Before and After compared structurally as Relax. No device is needed."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax, tirx

from pumice.compiler.graph import Graph, Node, from_relax, to_relax
from pumice.compiler.passes import PASSES, PassContext
from pumice.compiler.passes.fuse_residual import fuse_residual
from pumice.compiler.passes.gather_early import gather_early
from pumice.compiler.passes.merge_linears import merge_linears
from pumice.compiler.passes.quantize_activations import quantize_activations
from pumice.quantization.base import QuantFormat

Q4 = QuantFormat("q4_1", 4, 32, has_min=True)
Q6 = QuantFormat("q6_k", 6, 16, zero=32, scale_dtype="float32")
F16 = QuantFormat("f16", 16, 1, affine=False, dense_dtype="float16")

QUANTIZED = ("x_codes", "x_scales", "x_sums")


class Builder:
    """Builds a Graph call by call: b("linear", out=(rows, n), x=x, weight=w) returns the output."""

    def __init__(self) -> None:
        self.tokens = tirx.Var("T", "int64")
        self.params: list[Any] = []
        self.nodes: list[Node] = []

    def param(self, name: str, *shape: Any, dtype: str = "float32") -> Any:
        var = relax.Var(name, relax.TensorType(list(shape), dtype))
        self.params.append(var)
        return var

    def __call__(
        self, operator: str, attrs: dict[str, Any], width: int, height: Any = None, /, **inputs: Any
    ) -> Any:
        shape = [self.tokens if height is None else height, width]
        var = relax.Var(f"v{len(self.nodes)}", relax.TensorType(shape, "float32"))
        name = {"rope_append": "q_out", "rope_table": "table"}.get(operator, "out")
        self.nodes.append(Node(operator, inputs, attrs, {name: var}))
        return var

    def quantized(self, operator: str, attrs: dict[str, Any], width: int, **inputs: Any) -> Any:
        sums = width // attrs["sum_group"]
        outputs = {
            name: relax.Var(f"{name}{len(self.nodes)}", relax.TensorType([self.tokens, n], dtype))
            for name, n, dtype in zip(
                QUANTIZED, (width, width // 32, sums), ("int8", "float32", "float32"), strict=True
            )
        }
        self.nodes.append(Node(operator, inputs, attrs, outputs))
        return outputs

    def graph(self, result: Any) -> Graph:
        return Graph("extend", self.params, self.nodes, result)


def same(a: Graph, b: Graph) -> None:
    tvm.ir.assert_structural_equal(to_relax(a), to_relax(b), map_free_vars=True)


def context(**formats: QuantFormat) -> PassContext:
    return PassContext(formats=formats, activations="int8")


def _mlp(merged: bool) -> Graph:
    b = Builder()
    x = b.param("x", b.tokens, 64)
    gate, up = b.param("gate", 96, 64), b.param("up", 96, 64)
    if merged:
        both = b("linear", {"parts": (96, 96)}, 192, x=x, weight=gate, **{"weight.1": up})
        return b.graph(b("silu_mul", {}, 96, gate_up=both))
    g = b("linear", {}, 96, x=x, weight=gate)
    u = b("linear", {}, 96, x=x, weight=up)
    return b.graph(b("silu_mul", {}, 96, gate=g, up=u))


def test_linears_that_share_an_input_are_stacked() -> None:
    same(merge_linears(_mlp(False), context(gate=Q4, up=Q4)), _mlp(True))


def test_different_formats_are_concatenated_and_the_reason_is_noted() -> None:
    notes = context(gate=Q4, up=Q6)
    after = merge_linears(_mlp(False), notes)
    assert [n.operator for n in after.nodes] == ["linear", "linear", "concat", "silu_mul"]
    assert "formats differ (q4_1, q6_k)" in notes.notes[0]


def test_biases_are_stacked_with_their_weights() -> None:
    b = Builder()
    x = b.param("x", b.tokens, 64)
    names = {n: b.param(n, 64, 64) for n in "qkv"}
    biases = {n: b.param(f"b{n}", 64) for n in "qkv"}
    parts = {n: b("linear", {}, 64, x=x, weight=names[n], bias=biases[n]) for n in "qkv"}
    rest = {n: b.param(n, 4) for n in ("table", "slots")}
    graph = merge_linears(
        b.graph(b("rope_append", {"heads": 1}, 64, **parts, **rest)), context(q=Q4, k=Q4, v=Q4)
    )
    linear, append = graph.nodes
    assert list(linear.inputs) == [
        "x",
        "weight",
        "weight.1",
        "weight.2",
        "bias",
        "bias.1",
        "bias.2",
    ]
    assert list(append.inputs) == ["qkv", "table", "slots"]


def _residual(fused: bool, order: str) -> Graph:
    b = Builder()
    x, y = b.param("x", b.tokens, 64), b.param("y", b.tokens, 32)
    w = b.param("w", 64, 32)
    if fused:
        return b.graph(b("linear", {}, 64, x=y, weight=w, residual=x))
    product = b("linear", {}, 64, x=y, weight=w)
    a, c = (x, product) if order == "ab" else (product, x)
    return b.graph(b("add", {}, 64, a=a, b=c))


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_residual_is_added_in_the_linear(order: str) -> None:
    same(fuse_residual(_residual(False, order), context()), _residual(True, order))


def test_a_product_with_two_readers_is_not_fused() -> None:
    b = Builder()
    x, w = b.param("x", b.tokens, 64), b.param("w", 64, 64)
    y = b("linear", {}, 64, x=x, weight=w)
    total = b("add", {}, 64, a=x, b=y)
    graph = b.graph(b("add", {}, 64, a=total, b=y))
    assert [n.operator for n in fuse_residual(graph, context()).nodes] == ["linear", "add", "add"]


def test_rows_are_gathered_before_the_norm() -> None:
    def build(early: bool) -> Graph:
        b = Builder()
        rows = tirx.Var("R", "int64")
        x, w = b.param("x", b.tokens, 64), b.param("w", 64)
        index = b.param("rows", rows, dtype="int32")
        if early:
            gathered = _gather(b, x, index, rows)
            return b.graph(b("rms_norm", {"eps": 1e-5}, 64, rows, x=gathered, weight=w))
        return b.graph(_gather(b, b("rms_norm", {"eps": 1e-5}, 64, x=x, weight=w), index, rows))

    same(gather_early(build(False), context()), build(True))


def _gather(b: Builder, x: Any, index: Any, rows: Any) -> Any:
    var = relax.Var(f"v{len(b.nodes)}", relax.TensorType([rows, 64], "float32"))
    b.nodes.append(Node("gather_rows", {"x": x, "rows": index}, {}, {"out": var}))
    return var


def _norm_linear(quantized: bool) -> Graph:
    b = Builder()
    x, n, w = b.param("x", b.tokens, 64), b.param("n", 64), b.param("w", 32, 64)
    if quantized:
        attrs = {"eps": 1e-5, "quantize": True, "group": 32, "sum_group": 32, "planes": 1}
        codes = b.quantized("rms_norm", attrs, 64, x=x, weight=n)
        attrs = {"activations": "int8", "sum_group": 32, "planes": 1}
        return b.graph(b("linear", attrs, 32, **codes, weight=w))
    y = b("rms_norm", {"eps": 1e-5}, 64, x=x, weight=n)
    return b.graph(b("linear", {}, 32, x=y, weight=w))


def test_a_norm_quantizes_for_its_linear() -> None:
    same(quantize_activations(_norm_linear(False), context(w=Q4)), _norm_linear(True))


def test_two_planes_double_the_codes() -> None:
    after = quantize_activations(_norm_linear(False), PassContext({"w": Q4}, "int16"))
    assert [n.attrs["planes"] for n in after.nodes] == [2, 2]
    codes, scales, sums = (int(v.ty.shape[1]) for v in after.nodes[0].outputs.values())
    assert (codes, scales, sums) == (128, 1, 2)  # a scale a row


def test_groups_of_sixteen_get_sums_of_sixteen() -> None:
    after = quantize_activations(_norm_linear(False), context(w=Q6))
    assert after.nodes[0].attrs["sum_group"] == 16
    assert [int(v.ty.shape[1]) for v in after.nodes[0].outputs.values()] == [64, 2, 4]


def test_dense_weights_and_exact_mode_keep_float_activations() -> None:
    after = quantize_activations(_norm_linear(False), context(w=F16))
    assert after.nodes[1].attrs["activations"] == "float32"
    exact = PassContext(formats={"w": Q4}, activations="float32")
    after = quantize_activations(_norm_linear(False), exact)
    assert [n.operator for n in after.nodes] == ["rms_norm", "linear"]


def test_an_activation_with_another_reader_is_quantized_apart() -> None:
    b = Builder()
    x, n, w = b.param("x", b.tokens, 64), b.param("n", 64), b.param("w", 64, 64)
    y = b("rms_norm", {"eps": 1e-5}, 64, x=x, weight=n)
    z = b("linear", {}, 64, x=y, weight=w)
    graph = b.graph(b("add", {}, 64, a=y, b=z))
    after = quantize_activations(graph, context(w=Q4))
    assert [n.operator for n in after.nodes] == ["rms_norm", "quantize", "linear", "add"]


def test_relax_and_back() -> None:
    graph = _mlp(True)
    again = from_relax("extend", to_relax(graph))
    same(graph, again)
    assert [n.attrs for n in again.nodes] == [n.attrs for n in graph.nodes]


def test_passes_have_distinct_names() -> None:
    names = [name for name, _ in PASSES]
    assert len(set(names)) == len(names)
