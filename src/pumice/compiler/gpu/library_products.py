"""Which products of a plan a vendor's library may compute where it is found, and why.

A plan runs wherever only the driver is: the library's product stands beside the launches that do
the same, and the run side takes one or the other (`artifact.LibraryProduct`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pumice.artifact import BufferRef, Launch, LibraryProduct
from pumice.compiler.gpu.select import Selected, similar
from pumice.operators.triton.plan import Problem, ProductStep
from pumice.targets import Target
from pumice.tuning.database import Database
from pumice.tuning.gpu import supporting

VENDOR = "vendor.blas"  # in measured rows
NAMES = {"cuda": "cuBLASLt", "rocm": "hipBLASLt"}
WORKSPACE_BYTES = 32 << 20  # what NVIDIA's documentation of cuBLAS advises for Hopper
LEAST_ROWS = 128  # below, weights are read once and a launch's neighbours matter more
MARGIN = 1.02  # by which it must have been faster, as a library may be missing where a model runs
_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class LibraryStep:
    """Launches of a kernel's plan that the library may compute, from `step.first` to the end."""

    step: ProductStep
    reason: str


def library_step(
    choice: Selected, target: Target, rows: Database, mode: str
) -> tuple[LibraryStep | None, str]:
    """The library's part of a chosen kernel's plan, if any, and the reason either way; "" where the
    call is no such product. mode: `CompileOptions.vendor_blas`."""
    step = _product(choice)
    if step is None or target.api not in NAMES:
        return None, ""
    if mode == "never":
        return None, "switched off"
    against = _refused(step.problem)
    if against:
        return None, against
    if mode == "always":
        return LibraryStep(step, "asked for"), "asked for"
    faster, reason = measured(step.problem, target, rows)
    return (LibraryStep(step, reason) if faster else None), reason


def measured(problem: Problem, target: Target, rows: Database) -> tuple[bool, str]:
    """Whether rows of this architecture say that vendor BLAS is faster than our kernels by more
    than MARGIN, for the nearest sizes that were measured; and how they say it."""
    kernels, _ = supporting(problem, target)
    for difference, other in (("", problem), *similar(problem)):
        near = rows.near(other)
        if not near:
            continue
        first, distance = near[0]
        here = [row for row, _ in near if row.dims == first.dims]
        vendor = min((row.us for row in here if row.kernel == VENDOR), default=None)
        own = min((row.us for row in here if row.kernel in kernels), default=None)
        where = f"for {first.sizes} on {first.device or target.name}"
        how = "the same sizes" if distance == 0 else f"{distance:.1f} doublings away"
        how += f", {difference}" if difference else ""
        if vendor is None:
            return False, f"no row of {VENDOR} {where}, {how}"
        if own is None:
            return False, f"{VENDOR} took {vendor:.1f} µs {where}, but no own kernel has a row"
        text = f"{VENDOR} {vendor:.1f} µs, own kernels {own:.1f} µs {where}, {how}"
        return own > MARGIN * vendor, text
    return False, f"no row measured near on {target.name}"


def attach(
    step: LibraryStep,
    choice: Selected,
    launches: list[Launch],
    reference: Callable[[str], BufferRef],
    workspace: BufferRef,
) -> list[Launch]:
    """A call's launches with the library's product at the first that it may stand for. reference:
    where a tensor or workspace of the kernel's plan is."""
    product, names = step.step.problem, step.step.names
    count = len(choice.plan.launches) - step.step.first
    at = len(launches) - count
    (m, k), n = product["x"].shape, product["w"].shape[0]
    made = LibraryProduct(
        x=reference(names["x"]),
        w=reference(names["w"]),
        out=reference(names["out"]),
        workspace=workspace,
        workspace_bytes=WORKSPACE_BYTES,
        m=m,
        n=n,
        k=k,
        dtype=product["x"].dtype,
        out_dtype=product["out"].dtype,
        x_stride=product["x"].stride[0],
        w_stride=product["w"].stride[0],
        out_stride=product["out"].stride[0],
        launches=count,
    )
    return [*launches[:at], replace(launches[at], product=made), *launches[at + 1 :]]


def _product(choice: Selected) -> ProductStep | None:
    """The dense product in a chosen kernel's plan."""
    if choice.problem.operator == "gemm" and choice.plan.launches:
        return ProductStep(0, choice.problem, {"x": "x", "w": "w", "out": "out"})
    return choice.plan.product


def _refused(problem: Problem) -> str:
    """Why the library is not asked for a product; "" when it may be."""
    x, w, out = problem["x"], problem["w"], problem["out"]
    if x.shape[0] < LEAST_ROWS:
        return f"{x.shape[0]} rows; at least {LEAST_ROWS} are left to a library"
    if unlike := {"bias", "residual"} & set(problem.tensors):
        return f"{' and '.join(sorted(unlike))} would need a launch of its own"
    if problem.attrs.get("activation", "none") != "none":
        return "the activation would need a launch of its own"
    if x.dtype not in _FLOATS or w.dtype != x.dtype or out.dtype not in (x.dtype, "float32"):
        return f"{x.dtype} times {w.dtype} to {out.dtype} is not asked of a library"
    if min(x.shape[1], w.shape[0]) < 1:
        return "there is nothing to multiply"
    return ""
