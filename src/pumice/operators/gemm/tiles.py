"""Tile shapes worth measuring, and the model that orders them where nobody measured.

A tile is (BM, BN, BK, warps, stages). The lists differ by matrix unit, because what limits a tile
does: registers of a lane for its sums, shared memory for its stages, width of the instruction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pumice.operators.gemm.product import Product
from pumice.operators.triton.plan import Config, cdiv, next_power_of_2
from pumice.targets import Target

# For 16-bit inputs. BK counts 16-bit elements; `_for_itemsize` turns it into bytes of equal size.
_HOPPER = (
    (256, 128, 64, 8, 3), (256, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4),
    (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 128, 8, 3),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4), (64, 128, 128, 4, 3), (64, 64, 128, 4, 4), (64, 64, 64, 4, 5),
    (64, 32, 128, 4, 4), (32, 128, 128, 4, 4), (32, 64, 128, 4, 4), (32, 64, 64, 4, 6),
    (32, 32, 128, 4, 5), (16, 128, 128, 4, 4), (16, 64, 128, 4, 4), (16, 64, 256, 4, 3),
    (16, 32, 256, 4, 4), (16, 32, 128, 2, 6), (16, 16, 256, 2, 5),
)  # fmt: skip
_AMPERE = (
    (128, 256, 32, 8, 3), (256, 128, 32, 8, 3), (128, 128, 32, 4, 4), (128, 128, 32, 8, 4),
    (128, 128, 64, 8, 3), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (64, 128, 64, 4, 3),
    (64, 64, 64, 4, 4), (64, 32, 64, 4, 4), (32, 128, 64, 4, 4), (32, 64, 64, 4, 4),
    (32, 32, 128, 4, 3), (16, 128, 64, 4, 4), (16, 64, 128, 4, 3), (16, 32, 128, 2, 4),
)  # fmt: skip
_CDNA = (
    (256, 256, 64, 8, 2), (256, 128, 64, 8, 2), (128, 256, 64, 8, 2), (128, 128, 64, 4, 2),
    (128, 128, 64, 8, 2), (128, 128, 32, 4, 2), (128, 64, 64, 4, 2), (64, 128, 64, 4, 2),
    (64, 64, 64, 4, 2), (64, 64, 128, 4, 2), (32, 128, 64, 4, 2), (32, 64, 128, 4, 2),
    (32, 64, 64, 4, 2), (32, 32, 128, 2, 2), (16, 128, 64, 4, 2), (16, 64, 128, 4, 2),
    (16, 64, 256, 4, 2), (16, 32, 256, 2, 2), (16, 16, 256, 2, 2),
)  # fmt: skip
_RDNA = (
    (128, 128, 32, 8, 2), (128, 128, 32, 4, 2), (128, 64, 32, 4, 2), (64, 128, 32, 4, 2),
    (128, 64, 64, 4, 2), (64, 64, 32, 4, 2), (64, 64, 64, 4, 2), (64, 32, 64, 4, 2),
    (32, 64, 64, 4, 2), (32, 32, 64, 2, 2), (32, 128, 32, 4, 2), (16, 128, 64, 4, 2),
    (16, 64, 64, 4, 2), (16, 64, 128, 4, 2), (16, 32, 128, 2, 2), (16, 16, 128, 1, 2),
)  # fmt: skip
# Products of float32 in full precision run on the vector unit everywhere but on mfma.
_VECTOR = (
    (64, 64, 16, 8, 2), (64, 32, 16, 4, 2), (32, 32, 32, 4, 2),
    (16, 64, 32, 4, 2), (16, 32, 32, 2, 2),
)  # fmt: skip
# Few rows of x on Hopper: (BN, BK, stages), as many bytes under way as shared memory holds. Widths
# that are no power of two come near a whole number of rounds where the others do not.
_DEEP = (
    (32, 128, 8), (32, 128, 6), (64, 128, 5), (64, 64, 8), (96, 128, 5), (96, 128, 4),
    (80, 128, 5), (80, 128, 4), (128, 128, 4),
)  # fmt: skip
_DEEP_ROWS = 64
_LISTS = {"wgmma": _HOPPER, "tcgen05": _HOPPER, "mma": _AMPERE, "mfma": _CDNA, "wmma": _RDNA}
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_L2_PER_MEMORY = 2.5  # bandwidth of the last cache over that of memory
_START_S = 1.2e-6  # of a tile: first loads, epilogue
_LAUNCH_S = 2.0e-6  # of a second launch


@dataclass(frozen=True)
class Tile:
    """One tile shape. split: slices of K, 1 for whole tiles. halves: parts of BN that are
    multiplied one after the other. penalty: of shapes that spill a few registers. registers: the
    most that a lane may have, 0 for the compiler's choice. group: rows of tiles that go column by
    column, 0 for the model's."""

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    split: int = 1
    halves: int = 1
    penalty: float = 1.0
    registers: int = 0
    group: int = 0

    def config(self) -> Config:
        return {
            "BM": self.BM, "BN": self.BN, "BK": self.BK, "warps": self.warps,
            "stages": self.stages, "split": self.split, "halves": self.halves,
            "registers": self.registers, "group": self.group,
        }  # fmt: skip


def widths(bn: int) -> tuple[int, int]:
    """A tile's columns as powers of two: the largest, and the rest or 0. ValueError when the rest
    is none."""
    first = 1 << (bn.bit_length() - 1)
    rest = bn - first
    if rest & (rest - 1):
        raise ValueError(f"{bn} columns are no sum of two powers of two")
    return first, rest


def deep(product: Product, target: Target) -> list[Tile]:
    """Further shapes for up to 64 rows of 16 bits on Hopper, widest rounds first."""
    few = 0 < product.M <= _DEEP_ROWS and product.itemsize == 2 and product.aligned
    if target.matrix_unit != "wgmma" or not few or product.B > 1:
        return []
    bm = max(16, next_power_of_2(product.M))
    found = [Tile(bm, bn, bk, 4, stages) for bn, bk, stages in _DEEP]
    return [
        tile for tile in found
        if shared_bytes(tile, 2, target) <= target.shared_bytes - 1024
        and product.K >= tile.BK * 2 and product.N >= 16 * tile.BN
        and cdiv(product.N, tile.BN) <= 4 * target.compute_units
    ]  # fmt: skip


def shared_bytes(tile: Tile, itemsize: int, target: Target) -> int:
    """Shared memory of a tile's stages; AMD's pipeline keeps one of them in registers."""
    stages = tile.stages if target.api == "cuda" else max(1, tile.stages - 1)
    return stages * (tile.BM + tile.BN) * tile.BK * itemsize


def _scattered(tile: Tile, target: Target) -> int:
    """Registers of a lane when elements come one by one: a block's, and the sums."""
    lanes = tile.warps * target.wave
    return ((tile.BM + tile.BN) * tile.BK + tile.BM * tile.BN) // lanes


def tiles_for(product: Product, target: Target, *, vector: bool = False) -> list[Tile]:
    """Shapes that fit the target and are not mostly padding."""
    rows = _VECTOR if vector else _LISTS[str(target.matrix_unit)]
    size = product.itemsize
    found = []
    for bm, bn, bk, warps, stages in rows:
        if not vector:
            bk = max(16 if size > 1 else 32, bk * 2 // size)
        tile = Tile(bm, bn, bk, warps, stages)
        if shared_bytes(tile, size, target) > target.shared_bytes - 1024:
            continue
        if bm > max(16, 2 * product.M - 1) or bn > max(16, 2 * product.N - 1):
            continue
        if bk > max(32, 2 * product.K - 1):
            continue
        if not product.aligned and _scattered(tile, target) > 5 * min(target.vgprs, 256) // 16:
            continue
        found.append(tile)
    if found:
        return found
    smallest = min(rows, key=lambda row: row[0] * row[1] * row[2])
    return [Tile(smallest[0], smallest[1], max(smallest[2] // 2, 32), smallest[3], 2)]


def resident(tile: Tile, target: Target, itemsize: int) -> int:
    """Programs that a compute unit holds at once, by shared memory, sums in registers, threads."""
    by_shared = target.shared_bytes // max(1, shared_bytes(tile, itemsize, target))
    sums = tile.BM * tile.BN // (tile.warps * target.wave)
    registers = tile.registers or sums + 80  # addresses, fragments
    total = 65536 if target.api == "cuda" else 4 * target.vgprs * target.wave
    by_registers = total // (registers * tile.warps * target.wave)
    return max(1, min(by_shared, by_registers, 2048 // (tile.warps * target.wave)))


def seconds(product: Product, target: Target, tile: Tile) -> float:
    """The model: waves of programs, each bound by its matrix unit or by the last cache."""
    if product.empty:
        return 0.0
    peak: float = target.peak.get(product.dtype, target.peak["float16"])
    bandwidth: float = target.bandwidth or 1e12
    units = target.compute_units
    size = product.itemsize
    tiles = cdiv(product.M, tile.BM) * cdiv(product.N, tile.BN) * product.B
    programs = tiles * tile.split
    held = resident(tile, target, size)
    depth = cdiv(cdiv(product.K, tile.split), tile.BK) * tile.BK
    efficiency = min(1.0, (tile.BM * tile.BN / (128 * 256)) ** 0.25) * 0.8
    compute = 2.0 * tile.BM * tile.BN * depth / (peak / units * efficiency)
    cache = (tile.BM + tile.BN) * depth * size / (bandwidth * _L2_PER_MEMORY / units)
    # Programs of one unit share its matrix unit and its path to the cache.
    together = min(held, max(1, cdiv(programs, units)))
    waves = cdiv(programs, units * together)
    # Less in flight than memory needs to be busy.
    flying = min(programs, units * held) * shared_bytes(tile, size, target)
    reach = min(1.0, flying / (bandwidth * 0.8e-6))
    read = (product.N + product.M) * product.K * product.B * size
    weights = read / (bandwidth * 0.85 * max(reach, 1e-9))
    busy = waves * together * max(compute, cache) * tile.penalty
    total: float = max(busy, weights) + waves * _START_S
    if tile.split > 1:
        sums = 8.0 * tiles * tile.BM * tile.BN * tile.split
        total += _LAUNCH_S + sums / (bandwidth * _L2_PER_MEMORY)
    return total


def ordered(
    product: Product, target: Target, tiles: Iterable[Tile], most: int = 12
) -> list[Config]:
    """The best by the model, first of all the favourite."""
    best = sorted(tiles, key=lambda tile: seconds(product, target, tile))[:most]
    found = []
    for index, tile in enumerate(best):
        group = group_of(product, target, tile)
        others = (group // 2, group * 2) if index < 4 and group >= 4 else ()
        found += [replace(tile, group=g).config() for g in (group, *others)]
    return found


def group_of(product: Product, target: Target, tile: Tile) -> int:
    """Rows of tiles in a group, so that programs that run together need the fewest rows of x and w:
    as many bytes of one as of the other."""
    tiles_m = cdiv(product.M, tile.BM)
    together = target.compute_units * resident(tile, target, product.itemsize)
    square = max(1.0, (together * tile.BN / tile.BM) ** 0.5)
    return min(next_power_of_2(tiles_m), 32, 1 << round(math.log2(square)))


def with_splits(product: Product, target: Target, tiles: Iterable[Tile]) -> list[Tile]:
    """Each tile with the splits that give every unit something to do, and each slice a few blocks
    of K."""
    found = []
    for tile in tiles:
        if tile.BN & (tile.BN - 1):
            continue  # the reduction reads whole rows of a tile
        count = cdiv(product.M, tile.BM) * cdiv(product.N, tile.BN) * product.B
        for split in _SPLITS:
            blocks = cdiv(product.K, tile.BK * split)
            few = 4 * target.compute_units if split > 2 else 2 * target.compute_units * split
            if blocks >= 2 and count * split <= few:
                found.append(replace(tile, split=split))
    return found


def options(tile: Config, target: Target) -> dict[str, Any]:
    """Limits for NVIDIA's compiler; hints for AMD's: 16 × 16 instructions need fewer registers and
    keep small tiles busy."""
    if target.api == "cuda":
        capped = target.matrix_unit == "wgmma" and tile.get("registers")
        found: dict[str, Any] = {"maxnreg": tile["registers"]} if capped else {}
        found |= {"launch_pdl": True} if tile.get("early") else {}
        return {"cuda": found} if found else {}
    if target.matrix_unit != "mfma":
        return {}
    waves = 2 if tile["BM"] * tile["BN"] <= 128 * 128 else 0
    return {"rocm": {"matrix_instr_nonkdim": 16, "waves_per_eu": waves}}
