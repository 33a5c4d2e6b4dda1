"""Rows of problems that differ in what hardly matters stand in where nobody measured this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.tuning.database import Database, row_of, write_rows
from pumice.tuning.similar import choose_near, similar

H200 = get_target("sm_90")
TILED = next(k for k in triton_kernels_of("gemm") if k.name == "gemm.triton.tiled")


def problem(dtype: str = "bfloat16", *, bias: bool = False, m: int = 64, **attrs: Any) -> Problem:
    inputs = {"x": TensorSpec((m, 4096), dtype), "w": TensorSpec((4096, 4096), dtype)}
    if bias:
        inputs["bias"] = TensorSpec((4096,), dtype)
    return make_problem(get_spec("gemm"), attrs, inputs)


def rows(folder: Path, made: Problem, kernel: str, config: Any) -> Database:
    write_rows(folder / "sm_90" / "gemm.json", [row_of(made, kernel=kernel, config=config, us=9.0)])
    return Database("sm_90", (folder,))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (problem("float16"), ["measured in bfloat16"]),
        (problem("float16", bias=True), ["measured in bfloat16", "without its epilogue"]),
        (problem(bias=True, activation="silu"), ["measured without its epilogue"]),
        (problem(out_dtype="float32"), ["measured with outputs of the inputs' type"]),
    ],
)
def test_a_row_of_another_kind(asked: Problem, said: list[str], tmp_path: Path) -> None:
    config = TILED.configs(asked, H200)[-1]
    found = choose_near(asked, H200, rows(tmp_path, problem(), TILED.name, config))
    assert (found.kernel_name, found.config, found.measured) == (TILED.name, config, True)
    for text in said:
        assert text in found.reason


def test_a_row_of_its_own_comes_first(tmp_path: Path) -> None:
    known = rows(tmp_path, problem("float16"), TILED.name, TILED.configs(problem(), H200)[0])
    found = choose_near(problem("float16"), H200, known)
    assert found.measured and "measured in" not in found.reason


def test_a_configuration_that_does_not_serve_is_not_taken(tmp_path: Path) -> None:
    known = rows(tmp_path, problem(), TILED.name, {"BM": 7})
    found = choose_near(problem("float16"), H200, known)
    assert not found.measured and "no row measured near" in found.reason


def test_a_vendors_row_needs_the_vendor(tmp_path: Path) -> None:
    known = rows(tmp_path, problem(), "vendor.blas", {})
    vendors = frozenset({"vendor.blas"})
    assert choose_near(problem("float16"), H200, known, vendors=vendors).kernel is None
    assert choose_near(problem("float16"), H200, known).kernel is not None


def test_float32_and_other_operators_have_no_stand_in() -> None:
    assert not list(similar(problem("float32")))
    spec = get_spec("softmax")
    made = make_problem(spec, {}, {"x": TensorSpec((4, 4096), "float32")})
    assert not list(similar(made))
    half = replace(made, tensors={n: replace(t, dtype="float16") for n, t in made.tensors.items()})
    assert [text for text, _ in similar(half)] == ["measured in bfloat16"]
