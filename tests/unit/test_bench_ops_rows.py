"""What `pumice bench ops` keeps of a run: which rows, whose kernels, and that every operator has
rows."""

from __future__ import annotations

import pytest

from pumice.bench.operators.measure import Timing, gpu_operators, is_ours, rows_of
from pumice.bench.operators.session import is_measured, rows_to_keep
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.tuning.database import DATA, Database


def problem(m: int = 16) -> Problem:
    inputs = {"x": TensorSpec((m, 4096), "bfloat16"), "w": TensorSpec((4096, 4096), "bfloat16")}
    return make_problem(get_spec("gemm"), {}, inputs)


def timings(*names: str) -> list[Timing]:
    """Fastest first."""
    return [
        Timing("gemm", "row", name, us=float(index + 1), error=0.001234)
        for index, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("measured", "kept"),
    [
        (("gemm.triton.tiled", "vendor.blas", "gemm.triton.gemv"), ["gemm.triton.tiled"]),
        (("vendor.blas", "softmax.triton", "a.triton"), ["vendor.blas", "softmax.triton"]),
        (("aiter", "vendor.a", "vendor.b", "gemm.triton.b"), ["vendor.a", "gemm.triton.b"]),
        (("torch", "vendor.blas"), ["vendor.blas"]),
        (("torch",), []),
    ],
)
def test_the_fastest_is_kept_and_the_fastest_of_ours(
    measured: tuple[str, ...], kept: list[str]
) -> None:
    rows = rows_to_keep(problem(), timings(*measured), "card", "today")
    assert [row.kernel for row in rows] == kept
    for row in rows:
        assert row.us == measured.index(row.kernel) + 1 and row.error == 0.0012
        assert (row.device, row.measured, row.distance(problem())) == ("card", "today", 0)


def test_every_kernel_is_ours_by_its_name() -> None:
    for operator in GPU_OPERATORS:
        for kernel in triton_kernels_of(operator):
            assert is_ours(kernel.name), kernel.name
    assert not is_ours("aiter") and not is_ours("vendor.blas") and not is_ours("eager.torch")


def test_every_operator_is_timed() -> None:
    assert gpu_operators() == list(GPU_OPERATORS)
    for operator in GPU_OPERATORS:
        labels = [label for _, label, _, _ in rows_of(operator)]
        assert len(labels) == len(set(labels)), operator


def test_what_was_measured() -> None:
    rows = Database("sm_90", (DATA,))
    (_, label, made, _), *_ = rows_of("softmax")
    assert is_measured(rows, made), label
    assert not is_measured(rows, problem(17))
