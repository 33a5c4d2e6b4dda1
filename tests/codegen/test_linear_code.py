"""The machine code of linear for every CPU target: the dot instruction that the target has, and an
inner loop that is arithmetic and loads only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import tvm

from pumice.operators.base import Kernel, OperatorCall
from pumice.operators.linear import layout_for
from pumice.operators.linear.kernel_tir_float import LinearFloat
from pumice.operators.linear.kernel_tir_int8 import LinearInt8
from pumice.quantization import get_format
from pumice.targets import CPU_TARGETS, Target, get_target

DOT = {
    "x86-64-v4-vnni": r"\tvpdpbusd\t.*%zmm",
    "x86-64-v3-avxvnni": r"\t(?:\{vex\}\t)?vpdpbusd\t.*%ymm",
    "x86-64-v3": r"\tvpmaddubsw\t.*%ymm",
    "armv8.2-dotprod": r"\tsdot\t",
}
FMA = {"armv8.2-dotprod": r"\tfmla\t"}
_STACK = re.compile(r"\(%rsp\)|\[sp[\],]")


def _source(kernel: Kernel, name: str, target: Target, **attrs: Any) -> Any:
    fmt = get_format(name)
    every = {"N": 576, "K": 576, "bias": False, "residual": False, **attrs}
    call = OperatorCall("linear", every, {"w": (fmt, layout_for(target, fmt))})
    assert kernel.supports(call, target) is None
    return kernel.source(call, target, kernel.configs(call, target)[0])


_TEXTS: dict[tuple[str, str], str] = {}


def _assembly(source: Any, target: Target) -> str:
    key = (source.symbol, target.name)
    if key not in _TEXTS:
        module = tvm.IRModule({source.symbol: source.function})
        built = tvm.compile(module, target=tvm.target.Target(dict(target.llvm)))
        _TEXTS[key] = str(built.mod.inspect_source("asm"))
    return _TEXTS[key]


def innermost_loops(text: str) -> list[list[str]]:
    """Instructions of every loop whose only jump is the one at its end."""
    lines = [
        line
        for line in text.splitlines()
        if re.match(r"\.L\S+:|\t[a-z{]", line) and not re.match(r"\.L(?:tmp|func)", line)
    ]
    labels: dict[str, int] = {}
    loops = []
    jump = re.compile(r"\t(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\t(?:.*, )?(\.L\S+)$")
    for index, line in enumerate(lines):
        if line.startswith(".L"):
            labels[line.partition(":")[0]] = index
        elif (found := jump.match(line)) and found[1] in labels:
            body = lines[labels[found[1]] + 1 : index]
            if not any(x.startswith(".L") or jump.match(x) for x in body):
                loops.append(body)
    return loops


def _dots(body: list[str], target: Target) -> int:
    return sum(bool(re.match(DOT[target.name], line)) for line in body)


@pytest.mark.parametrize(
    ("target", "planes"),
    [*((t, 1) for t in CPU_TARGETS if not t.has("vnni")), (get_target("x86-64-v3"), 2)],
    ids=lambda value: getattr(value, "name", value),
)
def test_int8_tile(target: Target, planes: int) -> None:
    """Two words of k for 4 tokens by 2 row blocks, and nothing on the stack."""
    kernel = LinearInt8()
    text = _assembly(_source(kernel, "q4_1", target, activations="int8", planes=planes), target)
    registers = 2 if target.has("dotprod") else 1  # a row block of 8 is two Arm registers
    products = 16 * registers
    tiles = [body for body in innermost_loops(text) if _dots(body, target) == products]
    panels = [body for body in tiles if not any("and" in line for line in body)]
    assert len(panels) >= planes
    for body in panels:
        assert not any(_STACK.search(line) for line in body)
        assert len(body) <= products * 3 + 8


@pytest.mark.parametrize("name", ["q4_1", "q8_0"])
@pytest.mark.parametrize("planes", [1, 2])
def test_wide_tile(name: str, planes: int) -> None:
    """With VNNI and 32 registers a group of 8 tokens is one loop, with no vector on the stack. Its
    activation words are operands of the products; codes are loaded and unpacked once."""
    target = get_target("x86-64-v4-vnni")
    text = _assembly(_source(LinearInt8(), name, target, activations="int8", planes=planes), target)
    products = 8 * 8 * planes
    tiles = [body for body in innermost_loops(text) if _dots(body, target) == products]
    assert len(tiles) == 1
    assert not any(_STACK.search(line) and "mm" in line for line in tiles[0])
    assert sum("{1to16}" in x for x in tiles[0] if re.match(DOT[target.name], x)) == products
    assert sum("vpslld" in line for line in tiles[0]) == 8 * (planes - 1)
    assert sum("vpandd" in x or "vpandq" in x for x in tiles[0]) == (8 if name == "q4_1" else 0)
    assert len(tiles[0]) <= products + 90


@pytest.mark.parametrize("target", CPU_TARGETS, ids=lambda t: t.name)
def test_one_token(target: Target) -> None:
    """The loop of one token and two row blocks: 16 products of a group, codes loaded once."""
    text = _assembly(_source(LinearInt8(), "q4_1", target, activations="int8"), target)
    registers = 2 if target.has("dotprod") else 1
    loops = [b for b in innermost_loops(text) if _dots(b, target) == 16 * registers]
    assert loops
    # No scalar conversion of scales, no division, no call.
    for body in loops:
        assert not any(re.match(r"\t(?:call|i?div|bl\t|vcvtsi2s)", line) for line in body)


@pytest.mark.parametrize("target", CPU_TARGETS[::2], ids=lambda t: t.name)
def test_eight_bit_codes(target: Target) -> None:
    assert re.search(
        DOT[target.name],
        _assembly(_source(LinearInt8(), "q8_0", target, activations="int8"), target),
    )


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *((t, "f16") for t in CPU_TARGETS),
        (get_target("x86-64-v3"), "bf16"),
        (get_target("x86-64-v3"), "q4_1"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_float(target: Target, name: str) -> None:
    text = _assembly(_source(LinearFloat(), name, target, activations="float32"), target)
    register = {512: "%zmm", 256: "%ymm"}.get(target.vector_bits, "")
    pattern = FMA.get(target.name, r"\tvfmadd\w+ps\t.*" + register)
    loops = [b for b in innermost_loops(text) if sum(bool(re.match(pattern, x)) for x in b) >= 8]
    assert loops
    assert any(not any(_STACK.search(line) for line in body) for body in loops)
    assert not re.search(r"\t(?:callq?|bl)\t_*(?:trunc|extend)\w*[hb]f", text)


def test_symbols_differ_when_anything_compiled_in_differs() -> None:
    target = get_target("x86-64-v3")
    attrs: list[Mapping[str, Any]] = [
        {}, {"bias": True}, {"residual": True}, {"bias": True, "residual": True}, {"planes": 2},
    ]  # fmt: skip
    names = ("q4_0", "q4_1", "q4f16_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q6_k")
    symbols = [
        _source(LinearInt8(), name, target, activations="int8", **more).symbol
        for name in names
        for more in attrs
    ]
    assert len(set(symbols)) == len(symbols)
    assert all(re.fullmatch(r"\w+", symbol) for symbol in symbols)
    sizes = {
        _source(LinearInt8(), "q4_1", target, activations="int8", N=n, K=64 * n).symbol
        for n in (1, 7, 960)
    }
    assert len(sizes) == 1
