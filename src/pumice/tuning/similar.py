"""Problems that nobody measured take the rows of those that differ in what hardly matters for
speed: the other type of 16 bits, another type of output, no bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pumice.errors import UnsupportedError
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import Target
from pumice.tuning.database import Database
from pumice.tuning.gpu import GpuChoice, choose_kernel

_HALF = ("float16", "bfloat16")
_PRODUCTS = frozenset(
    {"gemm", "batched_gemm", "gemm_fp8", "gemm_fp8_block", "gemm_int8", "gemm_w4", "gemm_w8"}
)


def choose_near(
    problem: Problem, target: Target, rows: Database, *, vendors: frozenset[str] = frozenset()
) -> GpuChoice:
    """`choose_kernel`, and where no row of the problem's own kind fits, the choice for a similar
    one, if its kernel and configuration serve this one, too. The reason says what differs."""
    choice = choose_kernel(problem, target, rows, vendors=vendors)
    if choice.measured:
        return choice
    for difference, other in similar(problem):
        try:
            found = choose_kernel(other, target, rows, vendors=vendors)
        except UnsupportedError:
            continue
        if found.measured and _serves(found, problem, target):
            reason = f"{found.reason}, {difference}"
            return replace(found, reason=reason, rejected=choice.rejected)
    return choice


def _serves(choice: GpuChoice, problem: Problem, target: Target) -> bool:
    """A vendor's call is one of those that compute this problem."""
    if choice.kernel is None:
        return True
    if choice.kernel.supports(problem, target) is not None:
        return False
    return dict(choice.config) in [dict(c) for c in choice.kernel.configs(problem, target)]


def similar(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems whose measured rows say something about this one, the nearest first, each with what
    differs. None of that changes what a kernel reads or computes by much."""
    plain = replace(problem, attrs={k: v for k, v in problem.attrs.items() if k != "out_dtype"})
    if plain != problem:
        yield "measured with outputs of the inputs' type", plain
    yield from _other_types(plain)
    bare = _without_epilogue(plain)
    if bare != plain:
        yield "measured without its epilogue", bare
        for text, other in _other_types(bare):
            yield f"{text}, without its epilogue", other


def _other_types(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """In each type of 16 bits; 4-bit words packed the other way."""
    for dtype in _HALF:
        tensors = {name: _as_measured(name, t, dtype) for name, t in problem.tensors.items()}
        attrs = problem.attrs
        if problem.operator == "fused_w4":  # its residual stream is float32 everywhere
            tensors |= {n: t for n, t in problem.tensors.items() if t.dtype == "float32"}
            attrs = {**attrs, "dtype": dtype} if "dtype" in attrs else attrs
        other = replace(problem, tensors=tensors, attrs=attrs)
        if other != problem:
            yield f"measured in {dtype}", other
        if problem.attrs.get("packing") == "rows":
            packed = {**attrs, "packing": "blocks"}
            yield "measured with the other packing", replace(other, attrs=packed)


def _without_epilogue(problem: Problem) -> Problem:
    """A product alone; other operators as they are."""
    if problem.operator not in _PRODUCTS:
        return problem
    tensors = {n: t for n, t in problem.tensors.items() if n not in ("bias", "residual")}
    attrs = {k: v for k, v in problem.attrs.items() if k != "activation"}
    return replace(problem, tensors=tensors, attrs=attrs)


def _as_measured(name: str, spec: TensorSpec, dtype: str) -> TensorSpec:
    """A tensor as the rows have it: activations of 16 bits, the residual stream and the norms'
    weights as well."""
    half = spec.dtype in _HALF and name not in ("scales", "mins")
    wide = spec.dtype == "float32" and name in ("residual", "weight", "q_weight", "k_weight")
    return replace(spec, dtype=dtype) if half or wide else spec
