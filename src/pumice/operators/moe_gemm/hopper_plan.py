"""Launches of `moe_gemm` by the warp-specialized kernels: sort, gather, gate and up, down, sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.dtypes import itemsize
from pumice.operators.gemm.product import FP8
from pumice.operators.moe_gemm.align import align, most_blocks
from pumice.operators.moe_gemm.gather_triton import gather_rows
from pumice.operators.moe_gemm.hopper_triton import experts_specialized
from pumice.operators.moe_gemm.triton_plan import GROUP, MoeGrouped, sum_of
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    TensorSpec,
    cdiv,
    next_power_of_2,
)
from pumice.targets import Target

BM = 128
_LINE = 128  # bytes of a row of a block of K: what the hardware swizzles
_WIDE = 256  # columns of a tile; of gate and up half as many each
_STAGES = {256: 4, 128: 6}  # that shared memory has room for, by columns
_INT32 = 2**31
_WARPS = 12  # four that load, of which one works, and two times four that multiply
_REGISTERS = 168
_DESCRIPTORS = 4 * 128  # bytes; every program makes those of x and w, and each group its own of out
_LEAST = 16  # entries of an expert, on average
_GROUPS = (8, 16)  # rows of tiles that go column by column


class MoeSpecialized(MoeGrouped):
    """Tiles of one expert's rows, which lie in the experts' order."""

    name = "moe_gemm.triton.specialized"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no wgmma, which this kernel is made of (sm_90)"
        found = super().supports(problem, target)
        if found is not None:
            return found
        dtype = problem["x"].dtype
        if dtype in FP8 and dtype != "float8_e4m3fn":
            return f"x is {dtype}; of 8-bit floats float8_e4m3fn is needed"
        experts, rows, k = problem["w1"].shape
        step = GROUP if dtype in FP8 else 8
        if k == 0 or k % step or rows // 2 % step:
            return f"K is {k}, F {rows // 2}; multiples of {step} are needed"
        for name in ("w1", "w2", "w1_scale", "w2_scale"):
            if name in problem and not (problem[name].contiguous and problem[name].aligned):
                return f"{name} must be contiguous and begin at a multiple of 16 bytes"
        average = problem["ids"].elements / experts
        if 0 < average < _LEAST:
            return f"an expert has {average:.1f} entries on average; {_LEAST} are needed"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        x = problem["x"]
        dtype, bk = x.dtype, _LINE // itemsize(x.dtype)
        # Threads gather whole blocks of K, by offsets in 32 bits.
        able = x.shape[1] % bk == 0 and x.shape[0] * x.stride[0] < _INT32 and x.aligned
        able &= x.stride[0] * itemsize(dtype) % 16 == 0
        return [
            {"BM": BM, "BN": _WIDE, "BK": bk, "warps": _WARPS,
             "stages": _STAGES[_WIDE], "registers": _REGISTERS, "group": group,
             "gather": gather, "down": down}
            for down in _STAGES
            if down == _WIDE or dtype not in FP8
            for gather in ((1, 0) if able else (0,))
            for group in _GROUPS
        ]  # fmt: skip

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        (tokens, k), (experts, rows, _) = problem["x"].shape, problem["w1"].shape
        if tokens == 0:
            return Plan(())
        dtype, width = problem["x"].dtype, rows // 2
        entries = problem["ids"].elements
        places = most_blocks(entries, experts, BM) * BM
        launches, workspaces = align(entries, experts, BM, inverse=True)
        workspaces |= {
            "h": TensorSpec((places, width), dtype),
            "y": TensorSpec((places, k), problem["out"].dtype),
            "descriptors": TensorSpec((target.compute_units, _DESCRIPTORS), "int8"),
        }
        if dtype in FP8:
            workspaces["h_scale"] = TensorSpec((width // GROUP, places), "float32")
        if not config["gather"]:
            launches.append(_gather(problem, places))
            workspaces["sorted"] = TensorSpec((places, k), dtype)
            if dtype in FP8:
                workspaces["sorted_scale"] = TensorSpec((k // GROUP, places), "float32")
        launches += [
            _product(problem, target, config, places, up=True),
            _product(problem, target, config, places, up=False),
            sum_of(problem, sorted_rows=True),
        ]
        return Plan(tuple(launches), workspaces)


def _product(problem: Problem, target: Target, config: Config, places: int, *, up: bool) -> Launch:
    """Gate and up, or down: of all experts in one launch, a program a unit."""
    w, x, out = ("w1", "sorted", "h") if up else ("w2", "h", "y")
    experts, n, k = problem[w].shape
    topk = problem["ids"].shape[1] if up and config["gather"] else 0
    given: dict[str, Any] = {
        "x": x, "w": w, "out": out, "owners": "owners", "order": "order", "used": "used",
        "taken": "taken",
        "M": places, "N": n, "K": k, "experts": experts, "entries": problem["ids"].elements,
        "stride_xm": k, "strips": cdiv(n, config["down"]),
    } | dict.fromkeys(("stride_sm", "stride_sk", "stride_tn", "stride_tk"), 0)  # fmt: skip
    constants: dict[str, Any] = {
        "BM": BM, "BN": _WIDE if up else config["down"], "BK": config["BK"],
        "STAGES": config["stages"] if up else _STAGES[config["down"]], "GROUP_M": config["group"],
        "ACTIVATION": str(problem.attrs.get("activation", "silu")) if up else "none",
        "GATED": up, "TOPK": topk,
    }  # fmt: skip
    if up:
        given["strips"] = cdiv(n // 2, _WIDE // 2)
    if topk:
        given |= {"x": "x", "stride_xm": problem["x"].stride[0]}
    if "x_scale" not in problem:
        constants |= dict.fromkeys(("x_scale", "w_scale", "out_scale"))
    else:
        sm, sk = problem["x_scale"].stride if topk else (1, places)
        _, tn, tk = problem[f"{w}_scale"].stride
        given |= {
            "x_scale": "x_scale" if topk else f"{x}_scale", "w_scale": f"{w}_scale",
            "stride_sm": sm, "stride_sk": sk, "stride_tn": tn, "stride_tk": tk,
        }  # fmt: skip
        (given if up else constants)["out_scale"] = "h_scale" if up else None
    return Launch(
        experts_specialized, (target.compute_units, 1, 1), given, constants,
        num_warps=4, num_stages=1, options={"cuda": {"maxnreg": config["registers"]}},
        scratch="descriptors",
    )  # fmt: skip


def _gather(problem: Problem, places: int) -> Launch:
    x = problem["x"]
    rows, k = 16, x.shape[1]
    scaled = "x_scale" in problem
    sm, sk = problem["x_scale"].stride if scaled else (0, 0)
    names = {"x_scale": "x_scale", "to_scale": "sorted_scale"}
    return Launch(
        gather_rows, (places // rows, 1, 1),
        {"x": "x", "order": "order", "used": "used", "to": "sorted",
         "ENTRIES": problem["ids"].elements, "K": k, "places": places, "stride_xm": x.stride[0],
         "stride_sm": sm, "stride_sk": sk, **(names if scaled else {})},
        {"TOPK": problem["ids"].shape[1], "ROWS": rows,
         "BK": min(1024 // itemsize(x.dtype), next_power_of_2(k)), "GROUP": GROUP,
         "DEPTH": next_power_of_2(cdiv(k, GROUP)), **({} if scaled else dict.fromkeys(names))},
        num_warps=4, num_stages=1,
    )  # fmt: skip
