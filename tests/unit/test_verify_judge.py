"""The judge of results: infinities, NaN, shapes, and which output decides."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.verify.judge import judge, relative_error, tolerance_of

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([0.25], [0.0], 0.25),
        ([-INF, 1.0], [-INF, 1.0], 0.0),
        ([-INF, 5.0], [-INF, 4.0], 0.25),
        ([INF], [-INF], INF),
        ([1.0], [INF], INF),
        ([INF], [1.0], INF),
        ([NAN], [1.0], INF),
        ([NAN], [-INF], INF),
        ([NAN], [NAN], INF),
        ([1.0], [NAN], INF),
        ([0.0, 0.0], [0.0], INF),
        ([], [], 0.0),
    ],
)
def test_relative_error(got: list[float], expected: list[float], error: float) -> None:
    assert relative_error(np.array(got, np.float32), np.array(expected)) == pytest.approx(error)


def test_small_floats_and_large_integers() -> None:
    largest = np.full(3, 3e38, ml_dtypes.bfloat16)
    assert relative_error(largest, largest) == 0.0
    assert relative_error(np.array([2**31 - 1], np.int32), np.array([1])) > 2e9


def test_what_nobody_may_have_written() -> None:
    cache = np.array([1.0, NAN])
    assert relative_error(cache, cache, unwritten=True) == 0.0
    assert relative_error(np.array([1.0, 0.0]), cache, unwritten=True) == INF
    assert relative_error(np.array([NAN, NAN]), cache, unwritten=True) == INF


def test_the_output_that_uses_most_of_its_tolerance_decides() -> None:
    """A NaN in any output fails, wherever it stands among the outputs."""
    spec = get_spec("topk_softmax")
    cases = spec.cases(np.random.default_rng(7))
    attrs, inputs = next((a, i) for a, i in cases if i["logits"].size)
    given = {name: TensorSpec(a.shape, a.dtype.name) for name, a in inputs.items()}
    problem = make_problem(spec, attrs, given)
    expected = spec.reference(attrs, inputs)
    assert judge(spec, problem, expected, expected)[0] == 0.0
    integers = [n for n in expected if problem[n].dtype == "int32"]
    assert integers and all(tolerance_of(spec, problem, name) == 0.0 for name in integers)
    for name, values in expected.items():
        wrong = np.asarray(values, np.float64).copy()
        wrong.flat[0] = NAN
        assert judge(spec, problem, {**expected, name: wrong}, expected)[0] == INF
        missing = {n: v for n, v in expected.items() if n != name}
        assert judge(spec, problem, missing, expected)[0] == INF
    off = {**expected, integers[0]: np.asarray(expected[integers[0]]) + 1}
    error, limit = judge(spec, problem, off, expected)
    assert error > limit == 0.0
