"""Launches of `gemm_fp8`, and what it shares with `gemm_int8`."""

from __future__ import annotations

from dataclasses import replace

from pumice.operators.gemm.family import SplitK, StreamK, Tiled
from pumice.operators.gemm.product import FP8, Product, scale_kind, upcasts
from pumice.operators.gemm.tiles import Tile
from pumice.operators.gemm.triton_plan import Dense, DenseVector, tile_launches
from pumice.operators.gemm_fp8_block.kernel_triton import fp8_tile
from pumice.operators.gemm_fp8_block.tiles8 import tiles8
from pumice.operators.triton.plan import Config, Plan, Problem
from pumice.targets import Target


def check_scales(problem: Problem) -> str | None:
    """Why scales do not fit x and w."""
    for name, axis, of in (("x_scale", "M", "x"), ("w_scale", "N", "w")):
        if name not in problem:
            continue
        scale, count = problem[name], problem[of].shape[-2]
        if scale.dtype != "float32":
            return f"{name} is {scale.dtype}; float32 is needed"
        if scale_kind(scale, count) is None:
            return (
                f"{name} has shape {scale.shape}, strides {scale.stride}; "
                f"one element, or {count} ({axis}) contiguous ones, are needed"
            )
    return None


class Scaled(Dense):
    """Scales apply to whole sums."""

    def check(self, problem: Problem) -> str | None:
        return check_scales(problem)


class _Fp8(Scaled):
    dtypes = FP8

    def candidates(self, product: Product, target: Target) -> list[Tile]:
        if _promotes(product, target):
            return tiles8(product, target)
        found = super().candidates(product, target)
        if upcasts(product.dtype, target):
            found = _converted(found, product, target)
        return found

    def launches(
        self, product: Product, target: Target, config: Config, whole: int | None = None
    ) -> Plan:
        if not _promotes(product, target):
            return super().launches(product, target, config, whole)
        own = {
            "HALVES": config["halves"],
            "CARRY": config["warps"] <= 4,
            "BLOCKS": False,
            "UPCAST": False,
        }
        blocks = dict.fromkeys(("stride_sm", "stride_sk", "stride_tn", "stride_tk"), 0)
        return tile_launches(fp8_tile, product, target, config, whole, own, blocks)


def _converted(found: list[Tile], product: Product, target: Target) -> list[Tile]:
    """What is converted takes registers of its own: a lane has few sums, and few elements of a
    block, fewer still where they come one by one."""
    if not product.aligned:
        found = [replace(tile, BK=max(32, tile.BK // 2)) for tile in found]

    def fits(tile: Tile) -> bool:
        block = (tile.BM + tile.BN) * tile.BK
        return tile.BM * tile.BN <= 2048 * tile.warps and block <= 96 * tile.warps * target.wave

    return [tile for tile in found if fits(tile)] or [
        replace(tile, BK=max(32, tile.BK // 2)) for tile in found[-1:]
    ]


def _promotes(product: Product, target: Target) -> bool:
    """Whether sums must leave a matrix unit that keeps few bits of them."""
    narrow = target.matrix_unit in ("mma", "wgmma") and product.dtype in target.dtypes
    return narrow and not product.problem.attrs.get("fast_accum", False)


class Fp8Tiled(_Fp8, Tiled):
    name = "gemm_fp8.triton.tiled"


class Fp8SplitK(_Fp8, SplitK):
    name = "gemm_fp8.triton.split_k"


class Fp8StreamK(_Fp8, StreamK):
    name = "gemm_fp8.triton.stream_k"


class ScaledVector(DenseVector):
    """`gemv` with scales."""

    def check(self, problem: Problem) -> str | None:
        return check_scales(problem)


class Fp8Vector(ScaledVector):
    name = "gemm_fp8.triton.gemv"
    dtypes = FP8
