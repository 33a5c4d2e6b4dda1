"""From an operator's tensors to its outputs: the problem is recognised, its kernel chosen and bound
once, then launched."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from pumice.errors import DeviceError, UsageError
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.torch.choose import Chosen, choose
from pumice.torch.launch import architecture_of, spec_of

Tensors = Mapping[str, torch.Tensor]


def _given(operator: str, tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The tensors that are there, all on one device."""
    found = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    devices = {name: tensor.device for name, tensor in found.items()}
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise UsageError(f"pumice.{operator}: tensors lie on several devices: {places}")
    return found


@functools.lru_cache(maxsize=4096)
def chosen_for(problem: Problem, index: int) -> Chosen:
    """The kernel of a problem on GPU `index`, bound."""
    return choose(problem, architecture_of(index))


def output_specs(
    operator: str, tensors: Mapping[str, torch.Tensor | None], attrs: Mapping[str, Any]
) -> Mapping[str, TensorSpec]:
    """Shapes and dtypes of the outputs; for meta tensors too."""
    specs = {
        name: TensorSpec(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in tensors.items()
        if t is not None
    }
    make = get_spec(operator).output_specs
    assert make is not None
    return make(attrs, specs)


def call(
    operator: str,
    tensors: Mapping[str, torch.Tensor | None],
    attrs: Mapping[str, Any],
    outputs: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Runs an operator on a GPU; returns its outputs by name, made here unless they are given.

    UsageError for tensors on several devices, UnsupportedError with every kernel's reason when none
    supports the problem, DeviceError for tensors that no GPU holds.
    """
    given = _given(operator, tensors)
    first = next(iter(given.values()))
    if first.device.type != "cuda":
        raise DeviceError(
            f"pumice.{operator} runs on a GPU; its tensors are on {first.device}",
            hint="Move the tensors to a ROCm or CUDA device, or use pumice.torch.tgemm on the CPU.",
        )
    problem = make_problem(
        get_spec(operator), attrs, {name: spec_of(tensor) for name, tensor in given.items()}
    )
    made: dict[str, torch.Tensor] = {}
    for name, tensor in problem.tensors.items():
        if outputs is not None and name in outputs:
            made[name] = outputs[name]
        elif name in problem.outputs:
            made[name] = torch.empty(
                tensor.shape, dtype=getattr(torch, tensor.dtype), device=first.device
            )
    with torch.cuda.device(first.device):
        index = first.device.index
        chosen_for(problem, torch.cuda.current_device() if index is None else index).call(
            {**given, **made}
        )
    return {name: made.get(name, given.get(name)) for name in _names(problem, given)}  # type: ignore[misc]


def _names(problem: Problem, given: Tensors) -> list[str]:
    spec = get_spec(problem.operator)
    assert spec.output_specs is not None
    return list(spec.output_specs(problem.attrs, {n: problem[n] for n in given}))


def explain(
    operator: str, tensors: Mapping[str, torch.Tensor], attrs: Mapping[str, Any] | None = None
) -> str:
    """Which kernel a call takes, and why: "gemm.triton.tiled {BM: 128, …}: fastest measured …"."""
    given = _given(operator, tensors)
    problem = make_problem(
        get_spec(operator), attrs or {}, {name: spec_of(t) for name, t in given.items()}
    )
    index = next(iter(given.values())).device.index or 0
    chosen = chosen_for(problem, index)
    config = ", ".join(f"{k}={v}" for k, v in chosen.config.items())
    return f"{chosen.kernel} ({config}): {chosen.reason}"
