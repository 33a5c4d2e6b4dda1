"""The choice of a GPU's kernel: this architecture's rows, borrowed ones, the order, providers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pumice.errors import UnsupportedError
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import Target, get_target
from pumice.tuning.database import DATA, Database, row_of, write_rows
from pumice.tuning.gpu import candidates, choose_kernel

TILED, SPLIT = "gemm.triton.tiled", "gemm.triton.split_k"


def problem(m: int, n: int = 4096, k: int = 4096, dtype: str = "bfloat16") -> Problem:
    inputs = {"x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype)}
    return make_problem(get_spec("gemm"), {}, inputs)


def offered(name: str, made: Problem, target: Target) -> list[dict[str, int]]:
    kernel = next(k for k in triton_kernels_of("gemm") if k.name == name)
    return [dict(config) for config in kernel.configs(made, target)]


def rows(folder: Path, arch: str, *found: tuple[Problem, str, dict[str, int], float]) -> Database:
    path = folder / arch / "gemm.json"
    write_rows(path, [row_of(p, kernel=k, config=c, us=us) for p, k, c, us in found])
    return Database(arch, (folder,))


def test_a_measured_row(tmp_path: Path) -> None:
    target, made = get_target("sm_90"), problem(16)
    config = offered(TILED, made, target)[-1]
    known = rows(tmp_path, "sm_90", (made, TILED, config, 9.0), (problem(64), SPLIT, {}, 1.0))
    found = choose_kernel(made, target, known)
    assert (found.kernel_name, found.config) == (TILED, config)
    assert found.kernel is not None and found.kernel.name == TILED
    assert "9.0 µs" in found.reason and "the same sizes" in found.reason
    assert "1.0 doublings away" in choose_kernel(problem(32), target, known).reason


def test_of_rows_for_one_problem_the_fastest(tmp_path: Path) -> None:
    target, made = get_target("sm_90"), problem(16)
    first, last = offered(TILED, made, target)[0], offered(TILED, made, target)[-1]
    known = rows(tmp_path, "sm_90", (made, TILED, first, 2.0), (made, TILED, last, 1.0))
    assert choose_kernel(made, target, known).config == last


def test_providers_only_where_they_are_given(tmp_path: Path) -> None:
    target, made = get_target("sm_90"), problem(16)
    config = offered(TILED, made, target)[0]
    known = rows(
        tmp_path, "sm_90", (made, "vendor.blas", {}, 1.0), (problem(64), TILED, config, 5.0)
    )
    there = choose_kernel(made, target, known, vendors=frozenset({"vendor.blas"}))
    assert (there.kernel_name, there.kernel, there.config) == ("vendor.blas", None, {})
    assert "1.0 µs" in there.reason
    absent = choose_kernel(made, target, known)
    assert absent.kernel_name == TILED and "x 64×4096" in absent.reason


def test_a_configuration_that_is_not_offered(tmp_path: Path) -> None:
    target, made = get_target("sm_90"), problem(16)
    known = rows(tmp_path, "sm_90", (made, TILED, {"BM": 7}, 1.0))
    found = choose_kernel(made, target, known)
    assert found.config in offered(TILED, made, target)
    assert "does not fit here" in found.reason


def test_rows_of_unknown_kernels_are_passed_over(tmp_path: Path) -> None:
    target, made = get_target("sm_90"), problem(16)
    known = rows(tmp_path, "sm_90", (made, "gemm.triton.gone", {}, 1.0))
    assert "no row measured near; analytic" in choose_kernel(made, target, known).reason


def test_another_architectures_kernel(tmp_path: Path) -> None:
    """Of the same vendor: its kernel. Of another: the model judges all."""
    made = problem(16)
    rows(tmp_path, "sm_90", (made, "vendor.blas", {}, 1.0), (made, TILED, {"BM": 7}, 2.0))
    target = get_target("sm_80")
    found = choose_kernel(made, target, Database("sm_80", (tmp_path,)))
    assert found.kernel_name == TILED and found.config in offered(TILED, made, target)
    assert "no row for sm_80" in found.reason and "fastest on sm_90" in found.reason
    other = choose_kernel(made, get_target("gfx942"), Database("gfx942", (tmp_path,)))
    assert "no row for gfx942; analytic model" in other.reason


def test_another_vendors_kernel_of_an_operator_without_a_model(tmp_path: Path) -> None:
    inputs = {"x": TensorSpec((8, 4096), "bfloat16"), "weight": TensorSpec((4096,), "bfloat16")}
    made = make_problem(get_spec("norm"), {"kind": "rms", "eps": 1e-5}, inputs)
    rows = [row_of(made, kernel="norm.triton.loop", us=1.0)]
    write_rows(tmp_path / "sm_90" / "norm.json", rows)
    found = choose_kernel(made, get_target("gfx1100"), Database("gfx1100", (tmp_path,)))
    assert found.kernel_name == "norm.triton.loop" and "fastest on sm_90" in found.reason


def test_nothing_measured(tmp_path: Path) -> None:
    target, made = get_target("gfx1100"), problem(300)
    found = choose_kernel(made, target, Database("gfx1100", (tmp_path,)))
    assert "analytic model" in found.reason and not found.measured
    names = {k.name for k, _ in candidates(made, target)}
    assert found.kernel_name in names
    assert set(found.rejected) | names == {k.name for k in triton_kernels_of("gemm")}


def test_no_kernel() -> None:
    target, made = get_target("gfx1100"), problem(16, dtype="float64")
    with pytest.raises(UnsupportedError, match=r"gfx1100: gemm\.triton\.\w+: "):
        choose_kernel(made, target, Database("gfx1100"))


@pytest.mark.parametrize("arch", ["sm_90", "sm_120", "gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_shipped_rows_choose(arch: str) -> None:
    for m in (1, 16, 512, 8192):
        found = choose_kernel(problem(m), get_target(arch), Database(arch, (DATA,)))
        assert found.kernel is not None and found.reason


def test_it_needs_no_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pumice.operators.registry import get_spec\n"
        "from pumice.operators.triton.plan import TensorSpec, make_problem\n"
        "from pumice.targets import get_target\n"
        "from pumice.tuning.gpu import choose_kernel, database\n"
        "inputs = {n: TensorSpec((64, 64), 'float16') for n in 'xw'}\n"
        "made = make_problem(get_spec('gemm'), {}, inputs)\n"
        "print(choose_kernel(made, get_target('gfx942'), database('gfx942')).kernel_name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("gemm.triton."), done.stderr
