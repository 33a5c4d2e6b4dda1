"""Launches over PyTorch's tensors, without a GPU: Triton's kernel stands in as it behaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.targets import get_target

torch = pytest.importorskip("torch")


class Compiled:
    """As Triton's: there is no function before `run` was asked for."""

    name, packed_metadata = "kernel", ()

    def __init__(self) -> None:
        self.function: int | None = None
        self.launched: list[tuple[Any, ...]] = []

    @property
    def run(self) -> Any:
        self.function = 7
        return lambda *values: self.launched.append(values)


def test_first_launch_has_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.torch import launch

    compiled = Compiled()
    stream = SimpleNamespace(cuda_stream=5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(launch, "_binaries", {})
    specs = {"x": TensorSpec((4, 8), "float32"), "weight": TensorSpec((8,), "float32")}
    problem = make_problem(get_spec("norm"), {"kind": "rms", "eps": 1e-6}, specs)
    target = get_target("sm_90")
    kernel = next(k for k in triton_kernels_of("norm") if k.supports(problem, target) is None)
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    binaries = [SimpleNamespace(compiled=compiled) for _ in plan.launches]
    bound = launch.BoundPlan(problem, plan, target, binaries)  # type: ignore[arg-type]
    tensors = {name: torch.zeros(spec.shape) for name, spec in problem.tensors.items()}
    bound(tensors)
    assert compiled.launched[0][:5] == (*plan.launches[0].grid, 5, 7)
