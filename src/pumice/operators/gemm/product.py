"""A matrix product as its kernels see it, whatever the operator calls it. No Triton here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.dtypes import itemsize
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import Target

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh", "relu")
FLOATS = ("bfloat16", "float16", "float32")
FP8 = ("float8_e4m3fn", "float8_e4m3fnuz")
_INT32 = 2**31
_MOST_ROWS = 256  # of a tile: rows times their stride is a 32-bit offset


@dataclass(frozen=True)
class Product:
    """x [B, M, K] · w [B, N, K]ᵀ → out [B, M, N], with strides of batch and row in elements.

    x_scale, w_scale: "none", "one" or "each". upcast: 8-bit floats that the device's matrix unit
    does not have are multiplied as float16.
    """

    problem: Problem
    B: int
    M: int
    N: int
    K: int
    dtype: str
    out_dtype: str
    x_scale: str = "none"
    w_scale: str = "none"

    @property
    def empty(self) -> bool:
        return self.B == 0 or self.M == 0 or self.N == 0

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def aligned(self) -> bool:
        """Whether Triton knows that rows of x and w start at whole vectors: their strides are
        multiples of 16 elements."""
        return all(
            self.problem[name].aligned and stride % 16 == 0
            for name in ("x", "w")
            for stride in self.strides(name)
        )

    @property
    def activation(self) -> str:
        return str(self.problem.attrs.get("activation", "none"))

    def strides(self, name: str) -> tuple[int, int]:
        """Of the batch and of a row; 0 for an argument that is not given."""
        if name not in self.problem:
            return (0, 0)
        stride = self.problem[name].stride
        return (stride[0] if len(stride) == 3 else 0, stride[-2])

    def arguments(self) -> dict[str, Any]:
        """Run-time parameters that all kernels of the family take."""
        found: dict[str, Any] = {"x": "x", "w": "w", "out": "out", "N": self.N, "K": self.K}
        for name in ("bias", "residual", "x_scale", "w_scale"):
            if name in self.problem:
                found[name] = name
        for letter, axis, name in (
            ("x", "m", "x"), ("w", "n", "w"), ("r", "m", "residual"), ("o", "m", "out"),
        ):  # fmt: skip
            found[f"stride_{letter}b"], found[f"stride_{letter}{axis}"] = self.strides(name)
        return found

    def constants(self) -> dict[str, Any]:
        """Constants of the epilogue; an argument that is not given is None."""
        found: dict[str, Any] = {
            name: None
            for name in ("bias", "residual", "x_scale", "w_scale")
            if name not in self.problem
        }
        return found | {
            "ACTIVATION": self.activation, "X_SCALE": self.x_scale, "W_SCALE": self.w_scale,
        }  # fmt: skip


def scale_kind(spec: TensorSpec | None, count: int) -> str | None:
    """How a scale applies: "none" (absent), "one", "each" of `count`; None when it fits neither."""
    if spec is None:
        return "none"
    if spec.elements == 1:
        return "one"
    if spec.elements == count and sum(size != 1 for size in spec.shape) <= 1:
        return "each" if spec.contiguous else None
    return None


def of_problem(problem: Problem) -> Product:
    """The product of a problem whose shapes were checked (`fault` says None)."""
    x, w = problem["x"], problem["w"]
    m, k = x.shape[-2:]
    n = w.shape[-2]
    return Product(
        problem,
        B=x.shape[0] if len(x.shape) == 3 else 1, M=m, N=n, K=k,
        dtype=x.dtype, out_dtype=problem["out"].dtype,
        x_scale=scale_kind(problem.tensors.get("x_scale"), m) or "none",
        w_scale=scale_kind(problem.tensors.get("w_scale"), n) or "none",
    )  # fmt: skip


def _rows(name: str, spec: TensorSpec, shape: tuple[int, ...]) -> str | None:
    if spec.shape != shape:
        return f"{name} has shape {spec.shape}; {shape} is needed"
    if spec.elements and spec.shape[-1] > 1 and spec.stride[-1] != 1:
        return f"{name}'s last axis has stride {spec.stride[-1]}; 1 is needed"
    if any(stride < 0 or stride * _MOST_ROWS >= _INT32 for stride in spec.stride[-2:-1]):
        most = _INT32 // _MOST_ROWS - 1
        return f"{name}'s rows are {spec.stride[-2]} elements apart; 0 to {most} can be"
    return None


def _attributes(attrs: Mapping[str, Any]) -> str | None:
    activation = attrs.get("activation", "none")
    if activation not in ACTIVATIONS:
        return f"activation is {activation!r}; known: {', '.join(ACTIVATIONS)}"
    if attrs.get("precision", "ieee") not in ("ieee", "tf32"):
        return f"precision is {attrs['precision']!r}; known: ieee, tf32"
    return None


def fault(problem: Problem, target: Target, dtypes: tuple[str, ...], rank: int = 2) -> str | None:
    """Why no kernel of the family can run a problem on a target; None when they can.

    dtypes: those that the operator's x and w may have.
    """
    if target.api not in ("rocm", "cuda"):
        return f"Triton has no backend for {target.name} (api {target.api})"
    x, w, out = problem["x"], problem["w"], problem["out"]
    if len(x.shape) != rank or len(w.shape) != rank:
        return f"x and w have shapes {x.shape} and {w.shape}; {rank} axes each are needed"
    if x.dtype not in dtypes or w.dtype != x.dtype:
        return f"x is {x.dtype} and w {w.dtype}; both must be the same of {', '.join(dtypes)}"
    if out.dtype not in FLOATS:
        return f"out is {out.dtype}; known: {', '.join(FLOATS)}"
    batch, (m, k), n = x.shape[:-2], x.shape[-2:], w.shape[-2]
    found = (
        _rows("x", x, (*batch, m, k))
        or _rows("w", w, (*batch, n, k))
        or _rows("out", out, (*batch, m, n))
        or _attributes(problem.attrs)
        or fp8_fault(x.dtype, target)
    )
    if found:
        return found
    if "residual" in problem and (found := _rows("residual", problem["residual"], out.shape)):
        return found
    if "bias" in problem:
        bias = problem["bias"]
        if bias.shape != (n,) or not bias.contiguous:
            return (
                f"bias has shape {bias.shape}, strides {bias.stride}; "
                f"{n} contiguous elements are needed"
            )
    for name in ("bias", "residual"):
        if name in problem and problem[name].dtype not in FLOATS:
            return f"{name} is {problem[name].dtype}; known: {', '.join(FLOATS)}"
    return None


def upcasts(dtype: str, target: Target) -> bool:
    """Whether 8-bit floats are multiplied as float16, for want of a matrix unit that has them."""
    return dtype in FP8 and dtype not in target.dtypes


def fp8_fault(dtype: str, target: Target) -> str | None:
    """Why a target cannot even load a type of 8-bit floats."""
    if not upcasts(dtype, target) or target.api == "rocm":
        return None
    return f"Triton has no {dtype} for {target.name}"


def precision(problem: Problem, target: Target) -> str:
    """Of products of float32: "tf32" where it is allowed and Triton has it."""
    if problem["x"].dtype != "float32" or target.api != "cuda":
        return "ieee"
    return str(problem.attrs.get("precision", "ieee"))
