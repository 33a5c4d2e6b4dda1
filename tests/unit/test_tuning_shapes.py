"""`pumice tune --shape`: problems from text, and errors that say what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pumice.cli.tune import given_problems
from pumice.errors import DeviceError, UnsupportedError, UsageError
from pumice.operators.registry import GPU_OPERATORS, get_spec
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.tuning.shapes import bench_rows, parse_problem


def test_sizes_types_and_attributes() -> None:
    made = parse_problem("gemm", "x=3x40:float16, w=7x40:float16, activation=silu")
    inputs = {"x": TensorSpec((3, 40), "float16"), "w": TensorSpec((7, 40), "float16")}
    assert made == make_problem(get_spec("gemm"), {"activation": "silu"}, inputs)
    plain = parse_problem("gemm", "x=3x40,w=7x40")
    assert plain["x"].dtype == "bfloat16" and plain["out"].shape == (3, 7) and not plain.attrs
    norm = parse_problem("norm", "x=5x123,weight=123,eps=0.5,kind=layer")
    assert norm.attrs["eps"] == 0.5 and norm.attrs["kind"] == "layer"


@pytest.mark.parametrize("operator", GPU_OPERATORS)
def test_every_benchmark_row_can_be_written(operator: str) -> None:
    spec = get_spec(operator)
    for _, attrs, inputs in list(bench_rows(spec))[:3]:
        parts = [f"{n}={'x'.join(map(str, t.shape))}:{t.dtype}" for n, t in inputs.items()]
        if any(not t.shape for t in inputs.values()):
            continue
        base = parse_problem(operator, ",".join(parts))
        assert {n: base[n].shape for n in inputs} == {n: t.shape for n, t in inputs.items()}
        simple = {k: v for k, v in attrs.items() if isinstance(v, int | float | str)}
        text = ",".join([*parts, *(f"{k}={str(v).lower() if v is True or v is False else v}"
                                   for k, v in simple.items())])  # fmt: skip
        got = parse_problem(operator, text)
        assert {k: got.attrs[k] for k in simple} == simple


@pytest.mark.parametrize(
    ("operator", "text", "error", "match"),
    [
        ("gem", "x=1x1", UsageError, "operator 'gem' has no GPU kernels; there are"),
        ("gemm", "x", UsageError, "'x' is neither a tensor"),
        ("gemm", "x=1xa,w=2x3", UsageError, "'x=1xa' is neither"),
        ("gemm", "x=-1x4,w=2x4", UsageError, "'x=-1x4' is neither"),
        ("gemm", "x=1x4,w=2x5", UsageError, r"gemm: w is bfloat16\[2, 5\]; allowed: as x"),
        ("norm", "x=5x8,weight=7", UsageError, r"weight is bfloat16\[7\]; allowed: float\[H\]"),
        ("gemm", "x=1x4,w=3x4,x=2x4", UsageError, "is given 'x' twice, the second time as 2x4"),
        ("gemm", "x=1x4", UsageError, "no benchmark row or case with just the tensors x"),
        ("gemm", "x=1x4,w=3x4:float17", UnsupportedError, "float17"),
        ("gemm", "x=1x4,w=3x4,activatoin=silu", UsageError, "attribute 'activatoin'; tensors are"),
    ],
)
def test_what_is_not_allowed(operator: str, text: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        parse_problem(operator, text)


def test_shapes_are_of_one_operator() -> None:
    assert [label for label, _ in given_problems(["gemm"], ["x=1x8,w=2x8"], "")] == ["x=1x8,w=2x8"]
    for operators, rows in (([], ""), (["gemm", "norm"], ""), (["gemm"], "Llama")):
        with pytest.raises(UsageError, match="a problem of one operator"):
            given_problems(operators, ["x=1x8,w=2x8"], rows)


def test_without_a_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from pumice.cli.app import app

    done = CliRunner().invoke(
        app, ["tune", "gemm", "--shape", "x=1x8,w=2x8", "--output", str(tmp_path)]
    )
    assert done.exit_code == DeviceError.exit_code
    assert "sees no ROCm or CUDA GPU" in done.output
    assert list(tmp_path.iterdir()) == []
