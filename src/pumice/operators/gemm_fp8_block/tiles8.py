"""Tile shapes for 8-bit floats whose sums leave the matrix unit after every block of K.

Each is (BM, BN, BK, warps, stages, halves), and the most registers of a lane if the compiler must
be held to them for a second program to fit. A lane holds its sums twice, but for what `halves`
saves; two programs a unit, or two parts, let one multiply while the other adds. The Hopper
favourite is 192 wide: at 256, a few registers spill.
"""

from __future__ import annotations

from pumice.operators.gemm.product import Product, upcasts
from pumice.operators.gemm.tiles import Tile, shared_bytes
from pumice.targets import Target

_HOPPER = (
    (128, 192, 128, 8, 4, 3), (128, 256, 128, 8, 4, 2), (128, 256, 128, 8, 3, 2),
    (128, 128, 128, 8, 4, 1), (128, 128, 128, 8, 3, 1), (128, 128, 128, 4, 3, 2),
    (128, 128, 128, 8, 3, 2, 128), (64, 192, 128, 4, 2, 3), (64, 256, 128, 4, 2, 4),
    (64, 256, 128, 8, 4, 2),
    (64, 128, 128, 4, 3, 1), (64, 128, 128, 4, 4, 1), (64, 64, 128, 4, 4, 1),
    (64, 32, 128, 4, 6, 1), (32, 128, 128, 4, 5, 1), (32, 64, 128, 4, 5, 1),
    (16, 128, 128, 4, 5, 1), (16, 64, 128, 4, 6, 1), (16, 64, 128, 2, 6, 1),
    (16, 32, 128, 2, 8, 1), (16, 32, 128, 4, 6, 1),
)  # fmt: skip
_MMA = (
    (128, 128, 64, 8, 3, 1), (128, 128, 128, 8, 2, 1), (128, 64, 128, 4, 2, 2),
    (64, 128, 128, 4, 3, 1), (64, 128, 64, 4, 4, 1), (64, 64, 128, 4, 3, 1),
    (32, 128, 128, 4, 3, 1), (32, 64, 128, 4, 4, 1), (16, 128, 128, 4, 4, 1),
    (16, 64, 128, 4, 5, 1), (16, 32, 128, 2, 6, 1),
)  # fmt: skip
_CDNA = (
    (256, 128, 128, 8, 2, 1), (128, 256, 128, 8, 2, 2), (128, 128, 128, 8, 2, 1),
    (128, 128, 128, 4, 2, 1), (128, 64, 128, 4, 2, 1), (64, 128, 128, 4, 2, 1),
    (64, 64, 128, 4, 2, 1), (32, 128, 128, 4, 2, 1), (32, 64, 128, 4, 2, 1),
    (16, 128, 128, 4, 2, 1), (16, 64, 128, 4, 2, 1), (16, 32, 128, 2, 2, 1),
)  # fmt: skip
_RDNA = (
    (128, 128, 32, 8, 2, 1), (128, 64, 32, 4, 2, 1), (128, 64, 64, 8, 2, 1), (64, 64, 64, 4, 2, 1),
    (64, 128, 32, 8, 2, 1), (64, 64, 32, 4, 2, 1), (32, 64, 64, 4, 2, 1), (32, 32, 64, 2, 2, 1),
    (16, 128, 64, 4, 2, 1), (16, 64, 64, 4, 2, 1), (16, 32, 64, 2, 2, 1),
)  # fmt: skip
_LISTS = {"wgmma": _HOPPER, "tcgen05": _HOPPER, "mma": _MMA, "mfma": _CDNA, "wmma": _RDNA}


def tiles8(product: Product, target: Target) -> list[Tile]:
    """Shapes that fit the target and are not mostly padding."""
    upcast = upcasts(product.dtype, target)
    every = [
        Tile(
            bm,
            bn,
            bk,
            warps,
            stages,
            halves=halves,
            registers=sum(registers),
            penalty=1.0 + 0.3 * (bm * bn >= 128 * 256),
        )
        for bm, bn, bk, warps, stages, halves, *registers in _LISTS[str(target.matrix_unit)]
    ]
    found = [
        tile
        for tile in every
        if shared_bytes(tile, 1, target) <= target.shared_bytes - 1024
        # What is converted takes registers of its own.
        and (not upcast or tile.BM * tile.BN <= 128 * 128)
        and tile.BM <= max(16, 2 * product.M - 1)
        and tile.BN <= max(32, 2 * product.N - 1)
        # Elements that come one by one take a register and an address each.
        and (product.aligned or (tile.BM + tile.BN) * tile.BK // (tile.warps * target.wave) <= 64)
    ]
    return found or [min(every, key=lambda tile: (tile.BM + tile.BN) * tile.BK / tile.warps)]
