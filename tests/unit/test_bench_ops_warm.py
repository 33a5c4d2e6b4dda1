"""AITER's kernels are called ahead in forks only where the package is, for rows that it has kernels
for, and before this process uses the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pumice.bench.operators import aiter, warm  # noqa: E402
from pumice.bench.operators.measure import rows_of  # noqa: E402

ROWS = [*rows_of("softmax"), *rows_of("topk_softmax")]


class Pool:
    def __init__(self, given: list[Any]) -> None:
        self.given = given

    def map(self, function: Any, jobs: Any, **_: Any) -> list[str]:
        self.given += jobs
        return ["" for _ in jobs[1:]] + ["one failed"]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    @contextmanager
    def pool(workers: int, method: str) -> Iterator[Pool]:
        assert method == "fork"
        yield Pool(found)

    monkeypatch.setattr(warm, "worker_pool", pool)
    monkeypatch.setattr(aiter, "installed", lambda: True)
    return found


def test_rows_with_a_peer_are_called(given: list[Any]) -> None:
    said: list[str] = []
    assert warm.warm_peers(ROWS, said.append) == ["one failed"]
    assert given == [("softmax", row[1]) for row in rows_of("softmax")]
    assert "called for 5 rows" in said[0]


def test_nothing_without_the_package(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiter, "installed", lambda: False)
    assert warm.warm_peers(ROWS, pytest.fail) == [] and not given


def test_a_gpu_in_use_is_told(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    said: list[str] = []
    assert warm.warm_peers(ROWS, said.append) == [] and not given
    assert "compile as they are called" in said[0]
