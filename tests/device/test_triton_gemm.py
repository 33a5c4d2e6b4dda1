"""gemm in Triton's interpreter: every kernel over every case, whatever tile it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from matmul_interpreter import check_case, check_strided
from triton_harness import make_problem, run_case

from pumice.operators.gemm.product import of_problem
from pumice.operators.gemm.spec import SPEC
from pumice.operators.gemm.triton_plan import GemmTiled
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.plan import Config, Plan, Problem, TensorSpec
from pumice.targets import Target
from pumice.targets.gpu import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
KERNELS = {kernel.name.rpartition(".")[2]: kernel for kernel in triton_kernels_of("gemm")}
for _name in ("specialized", "streamed", "few_rows"):
    del KERNELS[_name]  # in Gluon, which no interpreter runs: `test_gluon_gemm*.py` do
CASES = SPEC.cases(np.random.default_rng(7))


SUPPORTED = [
    (kind, index, target)
    for kind, kernel in KERNELS.items()
    for index, case in enumerate(CASES)
    for target in [("sm_90", "gfx942", "gfx1100")[index % 3]]
    if kernel.supports(make_problem(SPEC, *case), TARGETS[target]) is None
]


def test_every_case_has_a_kernel() -> None:
    assert {index for kind, index, _ in SUPPORTED if kind == "tiled"} == set(range(len(CASES)))
    assert {kind for kind, _, _ in SUPPORTED} == set(KERNELS)


@pytest.mark.parametrize(("kind", "index", "name"), SUPPORTED)
def test_cases(kind: str, index: int, name: str) -> None:
    attrs, inputs = CASES[index]
    kernel, target = KERNELS[kind], TARGETS[name]
    configs = kernel.configs(make_problem(SPEC, attrs, inputs), target)
    check_case(SPEC, kernel, attrs, inputs, target)
    if index % 2:
        check_case(SPEC, kernel, attrs, inputs, target, configs[-1])


def _random(m: int, n: int, k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16),
        "w": rng.standard_normal((n, k), np.float32).astype(ml_dtypes.bfloat16),
        "bias": rng.standard_normal(n, np.float32),
        "residual": rng.standard_normal((m, n), np.float32).astype(np.float16),
    }


# The partial last wave of 5 tiles on a device of 2 units; slices that end inside K; one slice.
@pytest.mark.parametrize(("whole", "split"), [(4, 2), (2, 3), (0, 3), (0, 2), (None, 1)])
def test_a_mix_of_whole_and_split_tiles(whole: int | None, split: int) -> None:
    class Mixed:
        name = "gemm.triton.mixed"

        def supports(self, problem: Problem, target: Target) -> None:
            return None

        def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
            return [{"BM": 32, "BN": 16, "BK": 32, "warps": 4, "stages": 2, "split": split}]

        def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
            return GemmTiled().launches(of_problem(problem), target, config, whole)

    for name in ("gfx942", "sm_90"):
        check_case(SPEC, Mixed(), {"activation": "silu"}, _random(17, 72, 200), TARGETS[name])


@pytest.mark.parametrize("kind", ["tiled", "split_k", "gemv"])
def test_rows_with_gaps(kind: str) -> None:
    gapped = ("x", "w", "residual", "out")
    check_strided(SPEC, KERNELS[kind], {}, _random(5, 48, 300), TARGETS["sm_90"], gapped)


def test_two_runs_are_bit_equal() -> None:
    inputs = _random(17, 72, 520)
    first, second = (
        run_case(SPEC, KERNELS["split_k"], {}, inputs, TARGETS["gfx1100"])["out"] for _ in range(2)
    )
    assert first.tobytes() == second.tobytes()


def test_no_rows_is_no_launch() -> None:
    for kernel in KERNELS.values():
        for m, n in ((0, 32), (4, 0)):
            specs = {"x": TensorSpec((m, 64), "float16"), "w": TensorSpec((n, 64), "float16")}
            problem = Problem("gemm", {**specs, **SPEC.output_specs({}, specs)})
            target = TARGETS["sm_90"]
            assert kernel.supports(problem, target) is None
            assert kernel.plan(problem, target, kernel.configs(problem, target)[0]).launches == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": TensorSpec((32, 65), "float16")}, r"w has shape \(32, 65\)"),
        ({"w": TensorSpec((32, 64), "bfloat16")}, "x is float16 and w bfloat16"),
        ({"x": TensorSpec((4, 64), "float16", (1, 4))}, "last axis has stride 4"),
        ({"x": TensorSpec((4, 64), "float16", (1 << 24, 1))}, "16777216 elements apart"),
        ({"bias": TensorSpec((31,), "float16")}, r"bias has shape \(31,\)"),
        ({"bias": TensorSpec((32,), "int8")}, "bias is int8"),
        ({"residual": TensorSpec((4, 33), "float16")}, r"residual has shape \(4, 33\)"),
        ({"out": TensorSpec((4, 32), "int8")}, "out is int8"),
    ],
)
def test_why_a_problem_is_refused(change: dict[str, TensorSpec], words: str) -> None:
    tensors = {
        "x": TensorSpec((4, 64), "float16"), "w": TensorSpec((32, 64), "float16"),
        "out": TensorSpec((4, 32), "float16"),
    }  # fmt: skip
    reason = KERNELS["tiled"].supports(Problem("gemm", tensors | change), TARGETS["sm_90"])
    assert reason is not None
    assert re.search(words, reason), reason


@pytest.mark.parametrize(
    ("bn", "m", "n", "k"), [(48, 17, 101, 64), (96, 64, 96, 72), (80, 3, 143, 32), (24, 1, 25, 7)]
)
def test_widths_of_two_powers_of_two(bn: int, m: int, n: int, k: int) -> None:
    inputs = _random(m, n, k)
    config = {"BM": 16, "BN": bn, "BK": 32, "warps": 4, "stages": 2, "split": 1, "halves": 1,
              "registers": 0, "group": 1, "early": 2}  # fmt: skip
    check_case(SPEC, KERNELS["tiled"], {"activation": "relu"}, inputs, TARGETS["sm_90"], config)
