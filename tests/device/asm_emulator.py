"""Executes the inline assembly of kernels in Triton's interpreter: the few packed instructions of
NVIDIA's PTX and AMD's GCN that they use, on NumPy arrays of 32-bit registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from triton.runtime.interpreter import TensorHandle

U32 = np.uint32


def _halves(register: np.ndarray, dtype: Any) -> np.ndarray:
    """uint32[...] → float32[..., 2], the low half first."""
    pairs = np.ascontiguousarray(register.astype(U32)).view(np.uint16)
    return pairs.reshape(*register.shape, 2).view(dtype).astype(np.float32)


def _pack(values: np.ndarray, dtype: Any) -> np.ndarray:
    """float[..., 2] → uint32[...], rounded to nearest even."""
    halves = np.ascontiguousarray(values.astype(dtype)).view(np.uint16)
    return halves.view(U32).reshape(values.shape[:-1])


def _fma(dtype: Any) -> Callable[..., np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        x, y, z = (_halves(v, dtype).astype(np.float64) for v in (a, b, c))
        return _pack(x * y + z, dtype)

    return run


def _pairwise(dtype: Any, function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *v: _pack(function(*(_halves(a, dtype) for a in v)), dtype)


def _float(register: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(register.astype(U32)).view(np.float32)


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(np.float32)).view(U32)


def _lop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    found = np.zeros(np.broadcast(a, b, c).shape, U32)
    for index in range(8):
        if int(np.max(table)) >> index & 1:
            picks = [v if index >> 2 - n & 1 else ~v for n, v in enumerate((a, b, c))]
            found |= picks[0] & picks[1] & picks[2]
    return found


_HALF, _BRAIN = np.float16, ml_dtypes.bfloat16
INSTRUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "shr.u32": lambda a, n: a >> n,
    "shl.b32": lambda a, n: a << n,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": _lop3,
    "sub.f16x2": _pairwise(_HALF, lambda a, b: a - b),
    "add.f16x2": _pairwise(_HALF, lambda a, b: a + b),
    "mul.f16x2": _pairwise(_HALF, lambda a, b: a * b),
    "neg.f16x2": _pairwise(_HALF, np.negative),
    "abs.f16x2": _pairwise(_HALF, np.abs),
    "abs.bf16x2": _pairwise(_BRAIN, np.abs),
    "max.f16x2": _pairwise(_HALF, np.maximum),
    "max.bf16x2": _pairwise(_BRAIN, np.maximum),
    "fma.rn.f16x2": _fma(_HALF),
    "fma.rn.bf16x2": _fma(_BRAIN),
    "cvt.rn.f16x2.f32": lambda h, lo: _pack(np.stack([_float(lo), _float(h)], -1), _HALF),
    "cvt.rn.bf16x2.f32": lambda h, lo: _pack(np.stack([_float(lo), _float(h)], -1), _BRAIN),
    "cvt.f32.f16": lambda a: _bits(a.astype(np.uint16).view(_HALF)),
    "mul.f32": lambda a, b: _bits(_float(a) * _float(b)),
    "add.f32": lambda a, b: _bits(_float(a) + _float(b)),
    "v_dot2_f32_f16": lambda a, b, c: _bits(
        (_halves(a, _HALF) * _halves(b, _HALF)).sum(-1) + _float(c)
    ),
}


def _matrix(*registers: np.ndarray) -> list[np.ndarray]:
    """mma.sync.m16n8k16 of float16: four registers of the left operand, two of the right one, four
    float32 sums → four. Registers are [8, warps, 4]: lane 4g + t of a warp at [g, :, t]."""

    def rows(register: np.ndarray) -> np.ndarray:
        return np.moveaxis(_halves(register, _HALF), 0, 1).reshape(register.shape[1], 8, 8)

    a0, a1, a2, a3, b0, b1, *sums = registers
    left = np.block([[rows(a0), rows(a2)], [rows(a1), rows(a3)]]).astype(np.float64)
    right = np.concatenate([rows(b0), rows(b1)], -1).astype(np.float64)
    product = left @ right.swapaxes(1, 2)  # [warps, 16, 8]
    found = np.moveaxis(product.reshape(-1, 2, 8, 4, 2), 0, 2)  # [2, 8, warps, 4, 2]
    return [_bits(found[i // 2, ..., i % 2] + _float(sums[i])) for i in range(4)]


def execute(text: str, registers: dict[str, np.ndarray]) -> None:
    """Runs a block; `registers` holds $0, $1 … and takes the results."""

    def value(operand: str) -> np.ndarray:
        if operand in registers:
            return registers[operand]
        return np.asarray(int(operand, 0), np.int64).astype(U32)

    for statement in re.split(r"[;\n]", text):
        line = (
            statement.strip().strip("{}").strip() if "mov" not in statement else statement.strip()
        )
        if not line or line.startswith("."):
            continue
        name, _, rest = line.partition(" ")
        if name == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32":
            results, *given = (part.split(", ") for part in re.findall(r"{(.*?)}", statement))
            shape = next(registers[n].shape for n in given[0] if registers[n].ndim)
            operands = (np.broadcast_to(value(n), shape) for part in given for n in part)
            registers.update(zip(results, _matrix(*operands), strict=True))
            continue
        if name == "mov.b32":  # {low, high} apart, or together
            target, _, source = rest.partition(", ") if rest[0] != "{" else rest.partition("}, ")
            if rest[0] == "{":
                low, high = target.strip("{ ").split(", ")
                word = value(source.strip())
                registers[low], registers[high] = word & U32(0xFFFF), word >> U32(16)
            elif "{" not in source:
                registers[target] = value(source.strip())
            else:
                low, high = source.strip("{} ").split(", ")
                registers[target] = (value(low) & U32(0xFFFF)) | (value(high) << U32(16))
            continue
        target, *sources = rest.split(", ")
        if name not in INSTRUCTIONS:
            raise NotImplementedError(f"the emulator of inline assembly does not know {name!r}")
        registers[target] = INSTRUCTIONS[name](*(value(source) for source in sources))


class _Results:
    def __init__(self, results: list[TensorHandle]) -> None:
        self._results = results

    def get_result(self, index: int) -> TensorHandle:
        return self._results[index]


def create_inline_asm(
    builder: Any, text: str, constraints: str, inputs: list[TensorHandle],
    outputs: list[Any], pure: bool, pack: int,
) -> _Results:  # fmt: skip
    """What the interpreter's builder lacks. Poisoned registers show a read before a write."""
    assert pack == 1 and pure
    assert constraints.count("=") == len(outputs)
    assert len(constraints.split(",")) == len(outputs) + len(inputs)
    registers: dict[str, np.ndarray] = {}
    for index, handle in enumerate(inputs, len(outputs)):
        data = np.ascontiguousarray(handle.data)
        bits = data.view(np.dtype(f"u{data.dtype.itemsize}")).astype(U32)
        registers[f"${index}"] = bits
    execute(text, registers)
    found = []
    for index, wanted in enumerate(outputs):
        scalar = wanted.scalar
        width = np.dtype(f"u{scalar.primitive_bitwidth // 8}")
        bits = np.broadcast_to(registers[f"${index}"], np.shape(inputs[0].data)).astype(width)
        kind = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32, "bf16": np.uint16}
        found.append(TensorHandle(bits.view(kind[scalar.name]), scalar))
    return _Results(found)
