"""Which products of a plan a vendor's library may compute where it is found, and why.

A plan runs wherever only the driver is: the library's product stands beside the launches that do
the same, and the run side takes one or the other (`artifact.LibraryProduct`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pumice.artifact import BufferRef, Launch, LibraryProduct
from pumice.compiler.gpu.select import Selected, Selection
from pumice.compiler.gpu.translate import Call
from pumice.operators.triton.plan import Problem, ProductStep
from pumice.targets import Target
from pumice.tuning.database import Database
from pumice.tuning.gpu import supporting
from pumice.tuning.similar import similar

VENDOR = "vendor.blas"  # in measured rows
NAMES = {"cuda": "cuBLASLt", "rocm": "hipBLASLt"}
WORKSPACE_BYTES = 32 << 20  # what NVIDIA's documentation of cuBLAS advises for Hopper
LEAST_ROWS = 128  # below, weights are read once and a launch's neighbours matter more
MARGIN = 1.02  # by which it must have been faster, as a library may be missing where a model runs
_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class LibraryStep:
    """What the library may do of a call. step: its product. unpacked: launches that must run before
    it, where the chosen kernel's are of no use to it."""

    step: ProductStep
    reason: str
    unpacked: Selected | None = None


def library_step(
    call: Call, choice: Selected, selection: Selection, mode: str
) -> tuple[LibraryStep | None, str]:
    """The library's way to a call, if any, beside the chosen kernel; and the reason for it or
    against it, "" where the call is no such product. mode: `CompileOptions.vendor_blas`."""
    target, rows = selection.target, selection.database
    if target.api not in NAMES:
        return None, ""
    step = _product(choice)
    unpacked = selection.unpacked(call) if step is None else None
    step = unpacked.plan.product if unpacked is not None else step
    if step is None:
        return None, ""
    if mode == "never":
        return None, "switched off"
    if against := _refused(step.problem):
        return None, against
    if mode == "always":
        return LibraryStep(step, "asked for", unpacked), "asked for"
    faster, reason = None, ""
    if choice.problem.operator != "gemm":  # unpacking counts, too
        faster, reason = measured(choice.problem, target, rows)
    if faster is None and unpacked is None:  # of one way to unpack, products decide
        faster, reason = measured(step.problem, target, rows)
    return (LibraryStep(step, reason, unpacked) if faster else None), reason


def measured(problem: Problem, target: Target, rows: Database) -> tuple[bool | None, str]:
    """Whether rows of this architecture say that vendor BLAS is faster than our kernels by more
    than MARGIN, for the nearest sizes that were measured; and how they say it. None where they do
    not have both."""
    kernels, _ = supporting(problem, target)
    for difference, other in (("", problem), *similar(problem)):
        near = rows.near(other)
        if not near:
            continue
        first, distance = near[0]
        here = [row for row, _ in near if row.dims == first.dims]
        lines = [row for row in here if row.kernel == VENDOR]
        line = min(lines, key=lambda row: row.us, default=None)
        own = min((row.us for row in here if row.kernel in kernels), default=None)
        where = f"for {first.sizes} on {first.device or target.name}"
        how = "the same sizes" if distance == 0 else f"{distance:.1f} doublings away"
        how += f", {difference}" if difference else ""
        if line is None:
            return None, f"no row of {VENDOR} {where}, {how}"
        own = line.own_us or own
        if own is None:
            return None, f"{VENDOR} took {line.us:.1f} µs {where}, but no own kernel has a row"
        text = f"{VENDOR} {line.us:.1f} µs, own kernels {own:.1f} µs {where}, {how}"
        return own > MARGIN * line.us, text
    return None, f"no row measured near on {target.name}"


def attach(
    step: LibraryStep,
    choice: Selected,
    launches: list[Launch],
    before: list[Launch],
    reference: Callable[[str], BufferRef],
    workspace: BufferRef,
) -> list[Launch]:
    """A call's launches with the library's product at the first that it may stand for. before:
    those of `step.unpacked`. reference: where a tensor or workspace is."""
    product, names = step.step.problem, step.step.names
    count = len(launches)
    if step.unpacked is None:
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
        before=tuple(before),
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
