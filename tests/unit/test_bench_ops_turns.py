"""What takes part in a row of `pumice bench ops`: what is chosen or every candidate, who is timed
in turns to the end, and in which order they are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pumice.bench.operators import measure, session, timing
from pumice.bench.operators.measure import Entry, OperatorBench, Timing, chosen, rows_of
from pumice.errors import UnsupportedError
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.targets import get_target
from pumice.tuning.gpu import candidates

H200 = get_target("sm_90")


class Graph:
    """A captured graph with times of its own; says in `log` that it was replayed."""

    def __init__(self, name: str, times: list[float], log: list[str]) -> None:
        self.name, self.times, self.log = name, iter(times), log

    def replay_us(self) -> float:
        self.log.append(self.name)
        return next(self.times)


def test_graphs_are_replayed_in_turns_and_medians_are_taken() -> None:
    log: list[str] = []
    graphs: Any = [Graph("a", [3.0, 9.0, 1.0], log), Graph("b", [5.0, 4.0, 6.0], log)]
    assert timing.in_turns(graphs, 3) == [3.0, 5.0]
    assert log == ["a", "b"] * 3
    assert timing.in_turns([], 3) == []


def test_the_chosen_kernel_is_the_first_measured_rows() -> None:
    for _, label, problem, _ in rows_of("softmax"):
        ((kernel, config),) = chosen(problem, H200)
        assert dict(config) in [dict(c) for k, c in candidates(problem, H200) if k is kernel], label


def test_rows_that_no_kernel_takes_are_told_and_left_out() -> None:
    inputs = {
        "x": TensorSpec((4, 64), "float32"),
        "w": TensorSpec((8, 64), "int8"),
    }
    problem = make_problem(get_spec("gemm"), {}, inputs)
    said: list[str] = []
    job = (get_spec("gemm"), "odd types", problem, inputs)
    assert not session._runs(job, H200, candidates, said.append)
    assert len(said) == 1 and "gemm odd types is left out" in said[0] and "float32" in said[0]
    with pytest.raises(UnsupportedError, match="no kernel of 'gemm'"):
        chosen(problem, H200)


def test_every_benchmark_row_has_a_kernel_on_hopper() -> None:
    for operator in measure.gpu_operators():
        for _, label, problem, _ in rows_of(operator):
            assert chosen(problem, H200), (operator, label)


def entry(name: str, us: float, *, error: float | None = 0.0, failed: str = "") -> Entry:
    made = Entry(Timing("gemm", "row", name, error=error, failed=failed), lambda tensors: us)
    return made


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> OperatorBench:
    """Without a GPU: a call returns its own time; in turns everything is a tenth slower."""
    monkeypatch.setattr(timing, "microseconds", lambda call, sets, **_: call(sets))
    monkeypatch.setattr(
        timing, "capture", lambda call, sets: SimpleNamespace(replay_us=lambda: 1.1 * call(sets))
    )
    return object.__new__(OperatorBench)


def test_a_wrong_or_failed_candidate_takes_no_finalists_place(bench: OperatorBench) -> None:
    entries = [
        entry("wrong", 1.0, error=0.5),
        entry("nan", 1.0, error=float("nan")),
        entry("failed", 1.0, failed="out of shared memory"),
        *(entry(f"right {us}", float(us)) for us in (7, 3, 9, 4, 8, 5)),
    ]
    bench._sort_out(entries, [])
    assert {e.timing.kernel for e in entries if e.final} == {f"right {us}" for us in (3, 4, 5, 7)}
    bench._in_turns(entries, [])
    times = {e.timing.kernel: e.timing.us for e in entries}
    assert times["right 3"] == pytest.approx(3.3) and times["right 9"] == 9.0
    assert times["failed"] == 0.0 and times["wrong"] == 1.0
    ordered = measure.in_order(entries)
    assert [t.kernel for t in ordered[:4]] == ["right 3", "right 4", "right 5", "right 7"]
    assert ordered[-1].kernel == "failed"
