"""Measured rows: the nearest, what is not comparable, files that are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumice.errors import ModelFileError
from pumice.operators.registry import GPU_OPERATORS, get_spec
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.tuning.database import DATA, Database, read_rows, row_of, write_rows


def problem(
    m: int, n: int = 4096, k: int = 4096, dtype: str = "bfloat16", **attrs: object
) -> Problem:
    inputs = {"x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype)}
    return make_problem(get_spec("gemm"), attrs, inputs)


def database(folder: Path, *problems: Problem) -> Database:
    rows = [row_of(p, kernel=f"kernel-{i}", us=1.0) for i, p in enumerate(problems)]
    write_rows(folder / "arch" / "gemm.json", rows)
    return Database("arch", (folder,))


def test_nearest_by_doublings(tmp_path: Path) -> None:
    found = database(tmp_path, problem(1), problem(256), problem(512))
    for m, kernel in ((1, 0), (2, 0), (300, 1), (336, 1), (400, 2), (512, 2), (2000, 2)):
        nearest = found.nearest(problem(m))
        assert nearest is not None and nearest[0].kernel == f"kernel-{kernel}", m
    exact = found.nearest(problem(256))
    assert exact is not None and exact[1] == 0


def test_too_far_is_nothing(tmp_path: Path) -> None:
    found = database(tmp_path, problem(16))
    assert found.nearest(problem(4096)) is None
    assert found.nearest(problem(16, n=64)) is None


def test_other_kinds_are_not_compared(tmp_path: Path) -> None:
    found = database(tmp_path, problem(16))
    assert found.nearest(problem(16, dtype="float16")) is None
    assert found.nearest(problem(16, activation="silu")) is None
    bias = {**problem(16).inputs, "bias": TensorSpec((4096,), "bfloat16")}
    assert found.nearest(make_problem(get_spec("gemm"), {}, bias)) is None


def test_a_users_rows_come_first(tmp_path: Path) -> None:
    mine, shipped = tmp_path / "mine", tmp_path / "shipped"
    database(mine, problem(16))
    write_rows(shipped / "arch" / "gemm.json", [row_of(problem(16), kernel="shipped", us=1.0)])
    nearest = Database("arch", (mine, shipped)).nearest(problem(16))
    assert nearest is not None and nearest[0].kernel == "kernel-0"


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{}]}', '{"rows": 3}', "{"])
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arch" / "gemm.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ModelFileError, match=str(path)):
        read_rows(path)


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*/*.json")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_shipped_rows(path: Path) -> None:
    """Each names a kernel that is there, offers its configuration, and was right."""
    from pumice.operators.registry import triton_kernels_of
    from pumice.targets import get_target

    target = get_target(path.parent.name)
    kernels = {kernel.name: kernel for kernel in triton_kernels_of(path.stem)}
    assert path.stem in GPU_OPERATORS
    for row in read_rows(path):
        assert row.operator == path.stem and row.us > 0
        assert row.error is None or row.error < 0.03
        if row.kernel.startswith("vendor."):
            continue
        inputs = {n: TensorSpec(d, row.dtypes[n]) for n, d in row.dims.items()}
        made = make_problem(get_spec(row.operator), row.attrs, inputs)
        kernel = kernels[row.kernel]
        assert kernel.supports(made, target) is None
        assert dict(row.config) in [dict(c) for c in kernel.configs(made, target)], row
