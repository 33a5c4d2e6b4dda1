"""Where a matrix instruction's elements lie in registers: which register, which bits, which lane.

    MFMA    A's lane holds consecutive values along K of one row; lanes go on by row, then block,
            then K. D: 4 rows (1 in f64) a group of registers, N lanes a row.
    RDNA3   A's lane holds a whole row (B's a column), again in every further group of 16 lanes.
            D: rows go round the groups of 16 lanes, one register a round.
    RDNA4   no copies: groups of 16 lanes share K. D: 8 (wave64: 4) rows a lane.

The chapters on matrix instructions of AMD's CDNA3, CDNA4, RDNA3 and RDNA4 ISA documents; all but
gfx950's own are also printed by AMD's matrix instruction calculator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pumice.emulator.matrix_table import BITS, MatrixInstruction

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Elements' places, one array shape: register, slot (element of `bits` within it), lane.

    bits: 2 to 64; at 64 `register` counts pairs, at 6 it is 0 and `slot` counts over all registers.
    copies: how often each element is there, 16 lanes apart (RDNA3's A and B).
    """

    bits: int
    register: Index
    slot: Index
    lane: Index
    copies: int = 1

    @property
    def registers(self) -> int:
        """32-bit registers that the operand takes."""
        if self.bits == 6:
            return -(-(int(self.slot.max()) + 1) * 6 // 32)
        return (int(self.register.max()) + 1) * max(1, self.bits // 32)

    def flat(self, lanes: int) -> Index:
        """Indices into [registers, lanes, elements of a register], flattened."""
        per = 32 if self.bits == 6 else max(1, 32 // self.bits)
        return (self.register * lanes + self.lane) * per + self.slot


def _place(bits: int, element: Any, lane: Any, copies: int = 1) -> Place:
    """Elements numbered within their lane, lowest bits of the lowest register first."""
    per = 32 if bits == 6 else max(1, 32 // bits)
    element, lane = np.broadcast_arrays(
        np.asarray(element, dtype=np.int64), np.asarray(lane, dtype=np.int64)
    )
    return Place(bits, element // per, element % per, lane, copies)


@lru_cache(maxsize=512)
def input_place(
    spec: MatrixInstruction, arch: str, wave: int, operand: str, bits: int = 0
) -> Place:
    """A's places as [blocks, m, k] or B's as [blocks, n, k]: B lies as A does, columns for rows.

    A sparse instruction's A is [blocks, m, k/2], as stored. bits: of F8F6F4's elements; 8-bit ones
    lie in two runs of 16 (as Triton's scaled dot products and AMD's examples have them).
    """
    bits = bits or BITS[spec.a if operand == "a" else spec.b]
    rows = spec.m if operand == "a" else spec.n
    depth = spec.k // 2 if spec.sparse and operand == "a" else spec.k
    row = np.arange(rows)[None, :, None]
    k = np.arange(depth)[None, None, :]
    block = np.arange(spec.blocks)[:, None, None]
    if spec.a == "f8f6f4" and bits == 8:  # 16 values of the first half of K, 16 of the second
        half, within = k // (depth // 2), k % (depth // 2)
        return _place(bits, 16 * half + within % 16, (within // 16) * rows + row)
    if spec.kind in ("mfma", "smfmac"):
        run = depth * rows * spec.blocks // 64  # consecutive values of K in a lane
        return _place(bits, k % run, (k // run) * rows * spec.blocks + block * rows + row)
    if arch.startswith("gfx11"):
        return _place(bits, k, row, copies=wave // 16)
    return _place(bits, *_rdna4_input(spec, bits, wave, operand, k, row))


def _rdna4_input(
    spec: MatrixInstruction, bits: int, wave: int, operand: str, k: Any, row: Any
) -> tuple[Any, Any]:
    """(element in lane, lane) of gfx12's A and B.

    The unit is a run of K that stays in a lane. wave32: units alternate between the two groups of
    16 lanes (16-bit: twice, so that a lane has 2 units). wave64: the second 32 lanes take the upper
    half of what a lane of wave32 holds; 16 values of 4 bits fill half of a wave64 only.
    """
    halved = spec.sparse and operand == "a"
    if bits == 16:
        # A run of 4 (sparse: of B's 8 and A's 4) in lanes 0-15, the next in 16-31, then again.
        run = 4 if halved or not spec.sparse else 8
        unit, within = k // run, k % run
        if wave == 32:
            return (unit // 2) * run + within, 16 * (unit % 2) + row
        return within, 32 * (unit // 2) + 16 * (unit % 2) + row
    depth = spec.k // 2 if halved else spec.k
    half = depth // 2  # of lanes 0-15
    if wave == 32:
        return k % half, 16 * (k // half) + row
    if bits == 4 and depth == 16:
        return k % half, 16 * (k // half) + row
    quarter = half // 2
    return k % quarter, 32 * ((k // quarter) % 2) + 16 * (k // half) + row


@lru_cache(maxsize=512)
def output_place(spec: MatrixInstruction, arch: str, wave: int, half: int = 0) -> Place:
    """C's and D's places as [blocks, m, n]. half: which half of RDNA3's registers 16-bit results
    take (OPSEL[2]); RDNA4 packs them.
    """
    bits = BITS[spec.out]
    row = np.arange(spec.m)[None, :, None]
    column = np.arange(spec.n)[None, None, :]
    block = np.arange(spec.blocks)[:, None, None]
    if spec.kind in ("mfma", "smfmac"):
        height = 1 if bits == 64 else 4  # rows in consecutive registers
        groups = 64 // spec.n  # of lanes, one group of rows each
        beside = max(1, 64 * height // (spec.m * spec.n))  # blocks that share a register
        part, within = row // height, row % height
        down = groups // beside  # groups of rows of a block that share a register
        register = (part // down) * height + within
        register = register + (block // beside) * (spec.m * spec.n // 64 if beside == 1 else height)
        lane = ((part % down) * beside + block % beside) * spec.n + column
        return _at(bits, register, 0, lane)
    if arch.startswith("gfx11"):
        groups = wave // 16
        return _at(bits, row // groups, half, 16 * (row % groups) + column)
    if wave == 32:
        return _place(bits, row % 8, 16 * (row // 8) + column)
    return _place(bits, row % 4, 32 * ((row // 4) % 2) + 16 * (row // 8) + column)


def _at(bits: int, register: Any, slot: Any, lane: Any) -> Place:
    register, slot, lane = np.broadcast_arrays(
        np.asarray(register, np.int64), np.asarray(slot, np.int64), np.asarray(lane, np.int64)
    )
    return Place(bits, register, slot, lane)


@lru_cache(maxsize=256)
def index_place(spec: MatrixInstruction, arch: str, wave: int, chosen: int) -> Place:
    """Places of a sparse A's 2-bit indices as [m, k/2], in one register; chosen: the set.

    MFMA: a lane's own values, from the set's first bit on. RDNA4: the same of A's lanes.
    """
    place = input_place(spec, arch, wave, "a")
    per = max(1, 32 // place.bits)
    element = place.register * per + place.slot
    in_lane = int(element.max()) + 1
    slot = (chosen * in_lane + element)[0]
    return Place(2, np.zeros_like(slot), slot, place.lane[0])
