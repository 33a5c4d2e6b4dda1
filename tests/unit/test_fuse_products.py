"""Calls around products with 4-bit weights become one: the same numbers, fewer calls, a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumice.compiler.gpu.fuse_products import fuse_products
from pumice.compiler.gpu.select import Selection, problem_of
from pumice.compiler.gpu.translate import Call
from pumice.compiler.gpu.values import Value
from pumice.dtypes import numpy_dtype
from pumice.operators.gemm_w4.spec import make_weight
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import get_target
from pumice.tuning.database import Database, row_of, write_rows

H, F, Q, V = 64, 96, 160, 52


def _value(name: str, *shape: int, dtype: str = "float16", space: str = "arena") -> Value:
    return Value(space, name, TensorSpec(shape, dtype))


def _weight(name: str, n: int, k: int) -> dict[str, Value]:
    return {
        "w": _value(f"{name}.w", n, k // 8, dtype="int32", space="weight"),
        "scales": _value(f"{name}.scales", n, k // 32, space="weight"),
    }


def _call(operator: str, attrs: Mapping[str, Any], tensors: dict[str, Value]) -> Call:
    return Call(operator, attrs, tensors, frozenset({"out"}), operator, 100, 200)


def _product(name: str, n: int, k: int, x: Value, out: Value) -> Call:
    attrs: dict[str, Any] = {"group": 32, "zero": 7, "packing": "rows"}
    if out.spec.dtype != x.spec.dtype:
        attrs["out_dtype"] = out.spec.dtype
    return _call("gemm_w4", attrs, {"x": x, **_weight(name, n, k), "out": out})


def _norm(name: str, x: Value, out: Value, residual: Value | None = None) -> Call:
    attrs: dict[str, Any] = {"kind": "rms", "eps": 1e-5}
    if out.spec.dtype != x.spec.dtype:
        attrs["out_dtype"] = out.spec.dtype
    weight = _value(f"{name}.weight", H, dtype="float32", space="weight")
    tensors = {"x": x, "weight": weight, "out": out}
    return _call("norm", attrs, tensors | ({} if residual is None else {"residual": residual}))


def _layer(tokens: int = 1) -> list[Call]:
    """A decoder layer and a head. A product stands for attention."""
    r = _value("r", tokens, H, dtype="float32")
    h1, h2, h3 = (_value(f"h{i}", tokens, H) for i in (1, 2, 3))
    q, a = _value("q", tokens, Q), _value("a", tokens, H)
    o, d = _value("o", tokens, H), _value("d", tokens, H)
    gate_up, m = _value("gate_up", tokens, 2 * F), _value("m", tokens, F)
    logits = _value("logits", tokens, V, dtype="float32")
    attention = {"x": q, "w": _value("attention", H, Q, space="weight"), "out": a}
    return [
        _norm("first", r, h1),
        _product("qkv", Q, H, h1, q),
        _call("gemm", {}, attention),
        _product("o", H, H, a, o),
        _norm("second", o, h2, r),
        _product("gate_up", 2 * F, H, h2, gate_up),
        _call("activation_mul", {"activation": "silu"}, {"x": gate_up, "out": m}),
        _product("down", H, F, m, d),
        _norm("last", d, h3, r),
        _product("head", V, H, h3, logits),
    ]


def _selection(rows: Path | None = None) -> Selection:
    return Selection(get_target("sm_90"), Database("sm_90", () if rows is None else (rows,)))


def _run(calls: Sequence[Call], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All tensors afterwards, each call computed by its operator's reference."""
    found = dict(tensors)
    for call in calls:
        inputs = {n: found[v.name] for n, v in call.tensors.items() if n not in call.outputs}
        for name, array in get_spec(call.operator).reference(call.attrs, inputs).items():
            value = call.tensors[name]
            assert array.shape == value.spec.shape, (call.label, name)
            found[value.name] = array.astype(numpy_dtype(value.spec.dtype))
    return found


def _tensors(calls: Sequence[Call]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    found: dict[str, np.ndarray] = {}
    for call in calls:
        for value in call.tensors.values():
            if value.space == "weight" and value.name not in found:
                dtype = numpy_dtype(value.spec.dtype)
                if value.name.endswith(".w"):
                    n, words = value.spec.shape
                    made = make_weight(rng, n, words * 8, 32)
                    found[value.name] = made["w"]
                    scales = made["scales"] / np.sqrt(words)
                    found[value.name.replace(".w", ".scales")] = scales.astype(np.float16)
                else:
                    found[value.name] = rng.uniform(0.1, 0.3, value.spec.shape).astype(dtype)
    found["r"] = rng.standard_normal((1, H)).astype(np.float32)
    return found


def test_a_layer_says_the_same_in_fewer_calls() -> None:
    calls = _layer()
    fused, said = fuse_products(calls, _selection())
    assert [call.operator for call in fused] == [
        "fused_w4", "gemm", "fused_w4", "fused_w4", "fused_w4", "fused_w4",
    ]  # fmt: skip
    assert "1 × norm and product in one" in said and "estimated" in fused[0].reason
    assert "launches of their own" in fused[0].rejected
    assert fused[2].tensors["residual"] == calls[4].tensors["residual"]
    assert "out" not in fused[2].tensors and not fused[2].outputs
    assert fused[3].attrs["activation"] == "silu" and fused[4].label == "gemm_w4 + residual"
    tensors = _tensors(calls)
    expected, got = _run(calls, tensors), _run(fused, tensors)
    for name in ("q", "r", "m", "logits"):
        difference = np.linalg.norm(got[name].astype(float) - expected[name].astype(float))
        assert difference <= 2e-3 * np.linalg.norm(expected[name].astype(float)), name


def test_a_result_that_another_call_reads_stays() -> None:
    calls = _layer()
    o, gate_up = calls[3].tensors["out"], calls[5].tensors["out"]
    other = _value("other", 1, V)
    calls.insert(9, _product("more", V, H, o, other))
    calls.insert(10, _product("again", V, 2 * F, gate_up, _value("another", 1, V)))
    fused, _ = fuse_products(calls, _selection())
    kept = [call.label for call in fused]
    assert kept.count("norm") == 1 and kept.count("activation_mul") == 1
    assert fused[2] is not None and "residual" in fused[3].tensors


def test_the_residual_stream_is_not_changed_under_a_reader() -> None:
    calls = _layer()
    r = calls[0].tensors["x"]
    reader = _call("norm", {"kind": "rms", "eps": 1e-5}, {"x": r, "out": _value("seen", 1, H)})
    calls.insert(4, reader)
    fused, _ = fuse_products(calls, _selection())
    assert fused[2].operator == "gemm_w4" and fused[4].tensors["x"].name == "o"


def test_many_tokens_stay_apart() -> None:
    calls = _layer(16)
    fused, said = fuse_products(calls, _selection())
    assert [call.operator for call in fused] == [call.operator for call in calls]
    assert "launches of their own" in said
    assert "at most 4 are normed" in fused[0].rejected["norm and product in one"]


@pytest.mark.parametrize("fused_us", [4.0, 9.0])
def test_measured_rows_decide(fused_us: float, tmp_path: Path) -> None:
    """norm and product took 5 µs, in one 4 or 9."""
    calls = _layer()[:2]
    (one,), _ = fuse_products(calls, _selection())
    values: dict[str, Any] = {"device": "a card", "measured": "today"}

    def row(call: Call, kernel: str, us: float) -> None:
        problem = replace(problem_of(call), outputs=frozenset({"out"}))
        made = row_of(problem, kernel=kernel, us=us, floor=0.5, **values)
        write_rows(tmp_path / "sm_90" / f"{call.operator}.json", [made])

    (tmp_path / "sm_90").mkdir()
    row(calls[0], "norm.triton.rows", 2.0)
    row(calls[1], "gemm_w4.triton.gemv", 3.0)
    row(one, "fused_w4.triton.persistent", fused_us)
    found, _ = fuse_products(calls, _selection(tmp_path))
    if fused_us < 5:
        assert [call.operator for call in found] == ["fused_w4"]
        assert "measured 4.0 µs against 5.0 µs" in found[0].reason
    else:
        assert [call.operator for call in found] == ["norm", "gemm_w4"]
        assert "measured 9.0 µs" in found[1].rejected["norm and product in one"]


def test_persistent_programs_where_they_measured_faster(tmp_path: Path) -> None:
    """A product with nothing beside it."""
    call = _product("alone", 4096, 4096, _value("x", 1, 4096), _value("y", 1, 4096))
    assert fuse_products([call], _selection())[0][0].operator == "gemm_w4"
    alone = replace(call, operator="fused_w4")
    (tmp_path / "sm_90").mkdir()
    for us, one, kernel in ((5.0, call, "gemv"), (4.0, alone, "persistent")):
        made = row_of(problem_of(one), kernel=f"{one.operator}.triton.{kernel}", us=us, floor=0.5)
        write_rows(tmp_path / "sm_90" / f"{one.operator}.json", [made])
    found, _ = fuse_products([call], _selection(tmp_path))
    assert found[0].operator == "fused_w4" and "persistent programs" in found[0].reason
