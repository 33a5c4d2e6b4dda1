"""Matrix operands: registers to element codes, codes to numbers, and CDNA's broadcasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pumice.emulator import numbers
from pumice.errors import UnsupportedError

Array = npt.NDArray[Any]


def codes_of(registers: npt.NDArray[np.uint32], bits: int) -> Array:
    """Element codes [waves, elements] of registers uint32 [waves, registers, lanes]: by register,
    then lane, then from the lowest bits up. 64 bits: register pairs; 6 bits: by lane only, as
    elements straddle registers.
    """
    registers = np.ascontiguousarray(registers)
    waves = len(registers)
    if bits == 64:
        pairs: Array = registers[:, 0::2] | (registers[:, 1::2].astype(np.uint64) << np.uint64(32))
        return pairs.reshape(waves, -1)
    if bits == 32:
        return registers.reshape(waves, -1)
    if bits == 16:
        return registers.view(np.uint16).reshape(waves, -1)
    if bits == 8:
        return registers.view(np.uint8).reshape(waves, -1)
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        parts: Array = registers.view(np.uint8)[..., None] >> shifts & np.uint8((1 << bits) - 1)
        return parts.reshape(waves, -1)
    if bits == 6:
        by_lane = np.ascontiguousarray(registers.swapaxes(1, 2)).view(np.uint8)
        triples = by_lane.reshape(waves, -1, 3).astype(np.uint32)
        word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
        return ((word[..., None] >> np.arange(0, 24, 6, dtype=np.uint32)) & 63).reshape(waves, -1)
    raise UnsupportedError(f"elements of {bits} bits; allowed: 2, 4, 6, 8, 16, 32 and 64")


def values_of(codes: Array, kind: str, *, signed: bool, flush: bool) -> Array:
    """float64 values of codes. kind: a name of numbers.FORMATS, "f64", "xf32", "integer" (8 bits)
    or "integer4" (4 bits, each in a byte).
    """
    values: Array
    if kind == "integer":
        values = (codes.view(np.int8) if signed else codes).astype(np.float64)
        return values
    if kind == "integer4":
        plain = codes.astype(np.float64)
        return np.where(codes > 7, plain - 16, plain) if signed else plain
    if kind == "f64":
        return codes.view(np.float64)
    if kind == "xf32":
        values = (codes & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        return values
    source = numbers.FORMATS[kind]
    if source.bits > 16:
        return numbers.decode(codes, source, flush_input=flush).astype(np.float64)
    return numbers.table(source, flush_input=flush, dtype="float64").take(codes)


def source_blocks(blocks: int, cbsz: int, abid: int) -> npt.NDArray[np.int64]:
    """Which block of A each block multiplies: CBSZ makes groups of 2^cbsz, whose block abid they
    all take.
    """
    size = 1 << cbsz
    return np.arange(blocks) // size * size + abid


def lane_of_b(blgp: int) -> npt.NDArray[np.int64]:
    """[64]: the lane whose B a lane sees. BLGP 1, 2: the first or second 32 lanes for all; 3: 16
    lanes further, round; 4 to 7: one of the four groups of 16 for all.
    """
    lane = np.arange(64)
    if blgp in (1, 2):
        return lane % 32 + 32 * (blgp - 1)
    if blgp == 3:
        return (lane + 16) % 64
    if blgp >= 4:
        return lane % 16 + 16 * (blgp - 4)
    return lane
