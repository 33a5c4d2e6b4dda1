"""Launches of `gemm_fp8_block`."""

from __future__ import annotations

from pumice.operators.gemm.family import Cut, SplitK, StreamK, Tiled, Vector
from pumice.operators.gemm.product import FP8, Product, of_problem, upcasts
from pumice.operators.gemm.tiles import Tile
from pumice.operators.gemm.triton_plan import tile_launches
from pumice.operators.gemm_fp8_block.kernel_triton import fp8_block_gemv, fp8_tile
from pumice.operators.gemm_fp8_block.tiles8 import tiles8
from pumice.operators.triton.float8 import bitwise
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv
from pumice.targets import Target

GROUP = 128


def check_blocks(problem: Problem) -> str | None:
    """Why block scales do not fit x and w."""
    (m, k), (n, _) = problem["x"].shape, problem["w"].shape
    if k == 0:
        return "K is 0: there is no block to scale"
    for name, shape in (("x_scale", (m, cdiv(k, GROUP))),
                        ("w_scale", (cdiv(n, GROUP), cdiv(k, GROUP)))):  # fmt: skip
        if name not in problem:
            return f"{name} is missing; float32 {shape} is needed"
        if problem[name].shape != shape or problem[name].dtype != "float32":
            return (
                f"{name} is {problem[name].dtype} {problem[name].shape}; float32 {shape} is needed"
            )
    return None


def scale_strides(problem: Problem) -> dict[str, int]:
    """Strides of block scales: sm, sk of x_scale, tn, tk of w_scale."""
    (sm, sk), (tn, tk) = problem["x_scale"].stride, problem["w_scale"].stride
    return {"stride_sm": sm, "stride_sk": sk, "stride_tn": tn, "stride_tk": tk}


class _Block(Cut):
    """Sums leave the matrix unit, and are scaled, after every block of K."""

    dtypes = FP8

    def check(self, problem: Problem) -> str | None:
        return check_blocks(problem)

    def candidates(self, product: Product, target: Target) -> list[Tile]:
        return tiles8(product, target)

    def launches(
        self, product: Product, target: Target, config: Config, whole: int | None = None
    ) -> Plan:
        own = {
            "HALVES": config["halves"], "CARRY": config["warps"] <= 4, "BLOCKS": True,
            "UPCAST": upcasts(product.dtype, target), "X_SCALE": "none", "W_SCALE": "none",
        }  # fmt: skip
        strides = scale_strides(product.problem)
        return tile_launches(fp8_tile, product, target, config, whole, own, strides)


class BlockTiled(_Block, Tiled):
    name = "gemm_fp8_block.triton.tiled"


class BlockSplitK(_Block, SplitK):
    name = "gemm_fp8_block.triton.split_k"


class BlockStreamK(_Block, StreamK):
    name = "gemm_fp8_block.triton.stream_k"


class BlockVector(Vector):
    name = "gemm_fp8_block.triton.gemv"
    dtypes = FP8

    def check(self, problem: Problem) -> str | None:
        return check_blocks(problem)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        arguments = product.arguments() | scale_strides(problem)
        constants = product.constants() | {
            "M": product.M, "BN": config["BN"], "BK": config["BK"], "VECTOR": config["vector"],
            "EVEN_K": product.K % config["BK"] == 0, "UPCAST": bitwise(product.dtype, target),
        }  # fmt: skip
        names = set(fp8_block_gemv.arg_names)
        launch = Launch(
            fp8_block_gemv, (cdiv(product.N, config["BN"]), 1, 1),
            {name: value for name, value in arguments.items() if name in names},
            {name: value for name, value in constants.items() if name in names},
            num_warps=config["warps"], num_stages=1,
        )  # fmt: skip
        return Plan((launch,))
