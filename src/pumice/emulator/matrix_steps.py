"""Binds matrix instructions: registers of the batch in, `matrix.matrix_multiply`, registers out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.matrix import Modifiers, matrix_multiply
from pumice.emulator.matrix_layouts import input_place, output_place
from pumice.emulator.matrix_table import instruction
from pumice.emulator.operands import _FLOATS, constant
from pumice.emulator.state import ACC, State

Step = Callable[[], None]
_PREFIXES = ("v_wmma_", "v_swmmac_", "v_mfma_", "v_smfmac_")


def is_matrix(name: str) -> bool:
    return name.startswith(_PREFIXES)


def _rows(code: int, accumulation: bool) -> int:
    return code - 256 + (ACC if accumulation else 0)


def _inline(out: str, code: int, literal: int) -> Any:
    """C as an inline constant, in the pattern of C's registers: [1, 1, 1]."""
    if out in ("f16", "bf16"):
        if code in _FLOATS:
            value = np.array(_FLOATS[code], np.float32)
            half = (
                int(value.astype(np.float16).view(np.uint16))
                if out == "f16"
                else int(value.view(np.uint32)) >> 16
            )
        else:
            half = int(constant("u32", code, literal) or 0) & 0xFFFF
        return np.array([[[half | half << 16]]], np.uint32)
    word = constant("f64" if out == "f64" else "u32", code, literal)
    assert word is not None
    if out == "f64":
        pair = word.reshape(1).view(np.uint32)  # low and high register of every pair
        return np.broadcast_to(pair[None, :, None], (1, 2, 1))
    return np.array([[[int(word)]]], np.uint32)


def bind_matrix(state: State, inst: Instruction) -> Step:
    """A closure for WMMA, SWMMAC, MFMA or SMFMAC."""
    name = inst.mnemonic.removesuffix("_e64")
    spec = instruction(name)
    f = inst.fields
    mfma = spec.kind in ("mfma", "smfmac")
    if mfma and "acc_cd" not in f:  # XF32, which the tables take for an ordinary VOP3P
        f = {
            **f,
            "acc_cd": f["clmp"], "acc": f["opsel_hi"], "cbsz": f["neg_hi"], "blgp": f["neg"],
            "abid": f["opsel"] | f["opsel_hi2"] << 3,
        }  # fmt: skip
    acc, acc_cd = f.get("acc", 0), bool(f.get("acc_cd", 0))
    if not mfma:
        acc, acc_cd = 0, False
    modifiers = Modifiers(
        arch=state.arch,
        wave=state.lanes,
        neg=0 if mfma else f.get("neg", 0),
        neg_hi=0 if mfma else f.get("neg_hi", 0),
        clamp=bool(f.get("clmp", 0)) and not mfma,
        opsel=0 if mfma else f.get("opsel", 0),
        cbsz=f.get("cbsz", 0) if mfma else 0,
        abid=f.get("abid", 0) if mfma else 0,
        blgp=f.get("blgp", 0) if mfma else 0,
        scale_byte_a=_scale_byte(f, 0),
        scale_byte_b=_scale_byte(f, 1),
    )
    a_count, b_count, d_count = _counts(spec, state, modifiers)
    a_at, b_at = _rows(f["src0"], bool(acc & 1)), _rows(f["src1"], bool(acc & 2))
    d_at = _rows(f["vdst"], acc_cd)
    c_at: int | None = None
    fixed: Any = None
    index_at: int | None = None
    if spec.sparse:
        index_at, c_at = _rows(f["src2"], False), d_at
    elif f["src2"] >= 256:
        c_at = _rows(f["src2"], acc_cd)
    else:
        fixed = _inline(spec.out, f["src2"], f.get("literal", 0))
    v = state.v

    def rows(first: int, count: int, chosen: Any) -> Any:
        return v[first : first + count, chosen].swapaxes(0, 1)

    scales: list[int | Any] = []
    if spec.scaled:
        for field in ("scale_src0", "scale_src1"):
            code = f[field]
            scales.append(
                code - 256 if code >= 256 else np.array(constant("u32", code, 0)).reshape(1, 1, 1)
            )

    def scale_of(which: int, chosen: Any) -> Any:
        got = scales[which]
        if isinstance(got, int):
            return rows(got, 1, chosen)
        return np.broadcast_to(got, (1, 1, state.lanes))

    def run() -> None:
        chosen: Any = slice(None) if state.all_active else np.flatnonzero(state.active)
        extra: dict[str, Any] = {}
        if index_at is not None:
            extra["index"] = rows(index_at, 1, chosen)
        if spec.scaled:
            extra["scale_a"], extra["scale_b"] = scale_of(0, chosen), scale_of(1, chosen)
        c = fixed if c_at is None else rows(c_at, d_count, chosen)
        if c_at is not None and spec.out in ("f16", "bf16") and c_at != d_at:
            c = _keep_other_halves(state, spec, modifiers, c, rows(d_at, d_count, chosen))
        result = matrix_multiply(
            name, rows(a_at, a_count, chosen), rows(b_at, b_count, chosen), c,
            modifiers=modifiers, **extra,
        )  # fmt: skip
        v[d_at : d_at + d_count, chosen] = result.swapaxes(0, 1)

    return run


def _keep_other_halves(state: State, spec: Any, modifiers: Modifiers, c: Any, d: Any) -> Any:
    """RDNA3's 16-bit results fill one half of D's registers; the other half of D stays."""
    if not state.arch.startswith("gfx11"):
        return c
    if modifiers.opsel >> 2 & 1:
        return (c & np.uint32(0xFFFF0000)) | (d & np.uint32(0xFFFF))
    return (c & np.uint32(0xFFFF)) | (d & np.uint32(0xFFFF0000))


def _counts(spec: Any, state: State, modifiers: Modifiers) -> tuple[int, int, int]:
    bits = [0, 0]
    if spec.a == "f8f6f4":
        sizes = {0: 8, 1: 8, 2: 6, 3: 6, 4: 4}
        bits = [sizes[modifiers.cbsz], sizes[modifiers.blgp]]
    a = input_place(spec, state.arch, state.lanes, "a", bits[0]).registers
    b = input_place(spec, state.arch, state.lanes, "b", bits[1]).registers
    d = output_place(spec, state.arch, state.lanes, 0).registers
    return a, b, d


def _scale_byte(fields: Any, which: int) -> int:
    """V_MFMA_SCALE: op_sel and op_sel_hi together say which byte of the scale register."""
    low = fields.get("opsel", 0) >> which & 1
    high = fields.get("opsel_hi", 0) >> which & 1
    return int(low | high << 1)
