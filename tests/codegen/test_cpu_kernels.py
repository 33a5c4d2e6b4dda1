"""The machine code of CPU kernels for every CPU target: vectors of the target's width, float16
converted by hardware, no libm calls."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.registry import kernels_of
from pumice.targets import CPU_TARGETS, Target

_HEADS: dict[str, Any] = {"heads": 9, "kv_heads": 3, "head_dim": 64, "block_size": 32}
_INT8: dict[str, Any] = {"quantize": True, "group": 32, "sum_group": 16}
_CALLS = [
    ("rms_norm", {"H": 576, "eps": 1e-5, **_INT8}, "decode"),
    ("quantize", {"H": 576, **_INT8}, "extend"),
    ("silu_mul", {"I": 1536, **_INT8}, "extend"),
    ("rope_table", {"D": 64}, "decode"),
    ("rope_append", _HEADS, "extend"),
    ("attention", _HEADS, "extend"),
    ("attention", {**_HEADS, "softcap": 30.0, "window": 512, **_INT8}, "decode"),
    ("gather_rows", {"H": 576}, "extend"),
    ("add", {"H": 576}, "extend"),
]


def _source(operator: str, attrs: dict[str, Any], entry: str, target: Target) -> KernelSource:
    call = OperatorCall(operator, attrs, entry=entry)
    (kernel,) = kernels_of(operator)
    assert kernel.supports(call, target) is None
    return kernel.source(call, target, kernel.configs(call, target)[0])


def _assembly(source: KernelSource, target: Target) -> str:
    module = tvm.IRModule({source.symbol: source.function})
    built = tvm.compile(module, target=tvm.target.Target(dict(target.llvm)))
    return str(built.mod.inspect_source("asm"))


def _calls(text: str) -> set[str]:
    """Functions that the code calls or jumps to, other than TVM's runtime and what is in the
    file."""
    names = set(re.findall(r"^\t(?:callq|jmp|bl|b)\t([A-Za-z_][\w.]*)", text, re.MULTILINE))
    inside = set(re.findall(r"^([A-Za-z_][\w.]*):", text, re.MULTILINE))
    return {n for n in names - inside if not n.startswith(("TVM", "__tvm"))}


@pytest.mark.parametrize("target", CPU_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(("operator", "attrs", "entry"), _CALLS)
def test_vector_code(operator: str, attrs: dict[str, Any], entry: str, target: Target) -> None:
    text = _assembly(_source(operator, attrs, entry, target), target)
    assert _calls(text) <= {"memset", "memcpy"}
    # LLVM's software conversions come with every module; nothing may call them.
    assert not re.search(r"^\t(?:callq?|jmp|bl|b)\t_*(?:trunc|extend)\w*hf", text, re.MULTILINE)
    register = {512: "%zmm", 256: "%ymm", 128: ".4s"}[target.vector_bits]
    # LLVM may see that gathering a row is a copy.
    assert register in text or (operator == "gather_rows" and "memcpy" in text)
    if operator in ("attention", "rope_append"):
        arm = "neon" in target.features
        if operator == "attention":
            wide = r"\tfcvtl" if arm else r"\tvcvtph2ps\t.*" + register
            multiply = r"\tfmla\t.*\.4s" if arm else r"\tvfmadd.*ps\t.*" + register
            assert re.search(wide, text) and re.search(multiply, text)
        else:
            assert re.search(r"\tfcvtn" if arm else r"\tvcvtps2ph\t", text)


def test_prefill_tile_stays_in_registers() -> None:
    """The inner loops of the register tile are 4 steps of 6 rows by 2 vectors, and do not touch the
    stack."""
    target = next(t for t in CPU_TARGETS if t.name == "x86-64-v3")
    text = _assembly(_source("attention", _HEADS, "extend", target), target)
    blocks = [
        b for b in re.split(r"^\.LBB\S+:", text, flags=re.MULTILINE) if b.count("vfmadd") == 48
    ]
    assert len(blocks) >= 2
    for block in blocks:
        spills = re.findall(r"\tv\S+\t[^\n]*\(%r[sb]p\)", block.split(".Lfunc_end")[0])
        assert not spills


def test_symbols_differ_when_anything_compiled_in_differs() -> None:
    target = CPU_TARGETS[-1]
    variants = [
        ("rms_norm", {"H": 64, "eps": 1e-5}), ("rms_norm", {"H": 64, "eps": 1e-6}),
        ("rms_norm", {"H": 96, "eps": 1e-5}), ("rms_norm", {"H": 64, "eps": 1e-5, **_INT8}),
        ("rms_norm", {"H": 64, "eps": 1e-5, **_INT8, "sum_group": 32}),
        ("attention", _HEADS), ("attention", {**_HEADS, "window": 9}),
        ("attention", {**_HEADS, "window": 99}), ("attention", {**_HEADS, "scale": 1.0}),
        ("attention", {**_HEADS, "softcap": 3.0}), ("attention", {**_HEADS, "block_size": 64}),
        ("rope_append", _HEADS), ("rope_append", {**_HEADS, "interleaved": True}),
        ("rope_append", {**_HEADS, "rotary_dim": 32}),
        ("rope_append", {**_HEADS, "qk_norm": True, "eps": 1e-6}),
        ("rope_table", {"D": 64}), ("rope_table", {"D": 64, "mscale": 1.1}),
    ]  # fmt: skip
    symbols = [
        _source(operator, attrs, entry, target).symbol
        for operator, attrs in variants
        for entry in ("decode", "extend")
    ]
    assert len(set(symbols)) == len(symbols)
    assert all(re.fullmatch(r"\w+", symbol) for symbol in symbols)
