"""Calls that are remembered: by all that a kernel was chosen and bound for, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pumice.torch import dispatch, recipes  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    recipes._known.clear()
    yield
    recipes._known.clear()


def key(*, attrs: Any = (), outputs: Any = (), **tensors: Any) -> Any:
    return recipes.signature("gemm", tensors, dict(attrs), dict.fromkeys(outputs))


X = torch.zeros(65, dtype=torch.bfloat16)


def test_what_a_signature_tells_apart() -> None:
    """Every one differs from every other: sizes, strides, types, alignment, names, attributes."""
    x = torch.zeros(4, 16)
    found = [
        key(x=x),
        key(x=x, w=x),
        key(w=x),
        key(x=x.t()),
        key(x=x.reshape(16, 4)),
        key(x=x.half()),
        key(x=x.bfloat16()),
        key(x=x, attrs=[("activation", "silu")]),
        key(x=x, attrs=[("activation", "relu")]),
        key(x=x, outputs=["out"]),
        key(x=X[:64]),
        key(x=X[1:]),  # two bytes further
    ]
    assert len(set(found)) == len(found)
    assert recipes.signature("norm", {"x": x}, {}, {}) != key(x=x)


def test_other_memory_of_the_same_form_is_the_same() -> None:
    assert key(x=torch.zeros(4, 16)) == key(x=torch.ones(4, 16))


def test_tensors_without_a_place_have_none() -> None:
    assert key(x=torch.zeros(4, 16).to_sparse()) is None
    assert key(x="no tensor") is None


def recipe(log: list[Any]) -> recipes.Recipe:
    return recipes.Recipe((("out", (4, 8), torch.float16),), ("out", "x"), log.append)


def test_a_recipe_makes_its_outputs_or_takes_those_given() -> None:
    log: list[Any] = []
    x, out = torch.zeros(4, 16), torch.zeros(4, 8)
    found = recipe(log).run({"x": x}, {})
    assert found["x"] is x and found["out"].shape == (4, 8) and found["out"].dtype == torch.float16
    assert log[0]["out"] is found["out"]
    assert recipe(log).run({"x": x}, {"out": out})["out"] is out


def test_a_call_that_is_remembered_is_only_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    x, w = torch.zeros(4, 16), torch.zeros(8, 16)
    recipes.remember(recipes.signature("gemm", {"x": x, "w": w}, {}, {}), recipe(log))
    monkeypatch.setattr(dispatch, "given_tensors", None)  # would be called to look at the tensors
    found = dispatch.call("gemm", {"x": x, "w": w, "bias": None}, {})
    assert set(found) == {"out", "x"} and log[0]["w"] is w
    with pytest.raises(TypeError):
        dispatch.call("gemm", {"x": x, "w": w}, {"activation": "silu"})


def test_all_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "MOST", 2)
    for index in range(3):
        recipes.remember(index, recipe([]))
    assert recipes.recall(0) is None and recipes.recall(2) is not None
