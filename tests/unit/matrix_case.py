"""A matrix instruction on random matrices, packed into registers and unpacked bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pumice.emulator.matrix import Modifiers, matrix_multiply
from pumice.emulator.matrix_layouts import Place, input_place, output_place
from pumice.emulator.matrix_table import MatrixInstruction, instruction

TYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
UNSIGNED = {4: np.uint8, 6: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
WAVES = 3


def element_type(name: str, arch: str) -> str:
    if name in ("fp8", "bf8"):
        ocp = "e4m3" if name == "fp8" else "e5m2"
        return ocp + "fnuz" if arch == "gfx942" else ocp
    return name


def pack(codes: np.ndarray, place: Place, lanes: int, fill: int = 0xA5A5A5A5) -> np.ndarray:
    """uint32 [waves, registers, lanes] of element codes [waves, *place], bit by bit in Python's
    integers; the rest is noise.
    """
    registers = np.full((len(codes), place.registers, lanes), fill, np.uint32)
    bits, total = place.bits, place.registers * 32
    for wave in range(len(codes)):
        words = [
            int.from_bytes(registers[wave, :, lane].tobytes(), "little") for lane in range(lanes)
        ]
        for code, register, slot, lane in zip(
            codes[wave].ravel().tolist(),
            place.register.ravel().tolist(),
            place.slot.ravel().tolist(),
            place.lane.ravel().tolist(),
            strict=True,
        ):
            start = slot * 6 if bits == 6 else register * max(32, bits) + slot * bits
            for copy in range(place.copies):
                at = lane + copy * 16
                words[at] = words[at] & ~(((1 << bits) - 1) << start) | code << start
        for lane in range(lanes):
            raw = words[lane].to_bytes(total // 8, "little")
            registers[wave, :, lane] = np.frombuffer(raw, np.uint32)
    return registers


def unpack(registers: np.ndarray, place: Place) -> np.ndarray:
    """Element codes [waves, *place] of D's registers (16, 32 or 64 bits)."""
    low = registers[:, place.register * (2 if place.bits == 64 else 1), place.lane]
    if place.bits == 64:
        high = registers[:, place.register * 2 + 1, place.lane].astype(np.uint64)
        return low | high << np.uint64(32)
    if place.bits == 16:
        return (low >> (16 * place.slot).astype(np.uint32)).astype(np.uint16)
    return low


def random_codes(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of numbers around 1, and a few of anything finite."""
    dtype = TYPES[kind]
    values = random.standard_normal(shape).astype(np.float32).astype(dtype)
    return values.view(UNSIGNED[8 * dtype(0).itemsize])


def value(codes: np.ndarray, kind: str) -> np.ndarray:
    return codes.view(TYPES[kind]).astype(np.float64)


def unit(kind: str, expected: np.ndarray) -> np.ndarray:
    """The distance of neighbours at a value."""
    precision = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}[kind]
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(expected), 2.0**-14))) - (precision - 1))


class Case:
    """One instruction on random matrices, packed."""

    def __init__(self, arch: str, name: str, wave: int, seed: int = 0) -> None:
        self.spec: MatrixInstruction = instruction(name)
        self.arch, self.name, self.wave = arch, name, wave
        random = np.random.default_rng(seed)
        spec = self.spec
        self.kinds = [element_type(t, arch) for t in (spec.a, spec.b, spec.out)]
        stored = spec.k // 2 if spec.sparse else spec.k
        shapes = [(spec.m, stored), (spec.n, spec.k), (spec.m, spec.n)]
        self.codes = [
            random_codes(random, kind, (WAVES, spec.blocks, *shape))
            for kind, shape in zip(self.kinds, shapes, strict=True)
        ]
        self.places = [
            input_place(spec, arch, wave, "a"),
            input_place(spec, arch, wave, "b"),
            output_place(spec, arch, wave),
        ]
        self.random = random

    def run(self, **modifiers: Any) -> np.ndarray:
        """D's elements [waves, blocks, m, n] as float64."""
        a, b, c = (
            pack(codes, place, self.wave)
            for codes, place in zip(self.codes, self.places, strict=True)
        )
        operands = {key: modifiers.pop(key) for key in ("index",) if key in modifiers}
        chosen = Modifiers(self.arch, self.wave, **modifiers)
        d = matrix_multiply(self.name, a, b, c, modifiers=chosen, **operands)
        assert d.dtype == np.uint32 and d.shape == c.shape
        return value(unpack(d, self.places[2]), self.kinds[2])

    def values(self) -> list[np.ndarray]:
        return [value(c, kind) for c, kind in zip(self.codes, self.kinds, strict=True)]

    def check(self, actual: np.ndarray, expected: np.ndarray) -> None:
        kind = self.kinds[2]
        error = np.abs(actual - expected)
        allowed = 1e-14 if kind == "f64" else 0.51 * unit(kind, expected)  # f64: sums' order
        assert (error <= allowed).all(), error.max()
