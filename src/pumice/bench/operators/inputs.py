"""Tensors for timing and trying GPU operators: random, valid, and enough copies of them that no
call finds its inputs in a cache."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pumice.operators.registry import GPU_OPERATORS
from pumice.operators.triton.plan import Problem, TensorSpec


def module_of(operator: str) -> Any:
    """The module of an operator's spec, with its BENCH rows."""
    return importlib.import_module(GPU_OPERATORS[operator].partition(":")[0])


def random_tensor(spec: TensorSpec, name: str, device: str, generator: Any) -> torch.Tensor:
    """Normal numbers; positive ones around 1 for scales; any bits for packed integers."""
    dtype = getattr(torch, spec.dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        high = 16 if name == "zeros" else info.max
        low = 0 if name == "zeros" else info.min
        return torch.randint(low, high, spec.shape, dtype=dtype, device=device, generator=generator)
    values = torch.randn(spec.shape, device=device, generator=generator, dtype=torch.float32)
    if "scale" in name:
        values = values.abs() * 0.01 + 0.01
    elif name in ("w", "weight") and len(spec.shape) > 1:
        values *= spec.shape[-1] ** -0.5
    return values.to(dtype)


def make_tensors(
    operator: str, problem: Problem, inputs: Mapping[str, TensorSpec], device: str, seed: int
) -> dict[str, torch.Tensor]:
    """Inputs by name, and outputs full of NaN (or the largest integer), with the problem's
    strides: kernels are compiled for them."""
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    module = module_of(operator)
    integers: Mapping[str, np.ndarray] = {}
    if hasattr(module, "bench_integers"):
        integers = module.bench_integers(problem.attrs, inputs)
    tensors = {}
    for name, spec in problem.tensors.items():
        if name in integers:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(integers[name])).to(device)
        elif name in inputs:
            tensors[name] = random_tensor(spec, name, device, generator)
        else:
            dtype = getattr(torch, spec.dtype)
            fill = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
            tensors[name] = torch.full(spec.shape, fill, device=device).to(dtype)
        if not spec.contiguous:
            tensors[name] = _copy(tensors[name], spec.stride)
    return tensors


def _copy(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    found = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return found.copy_(tensor)


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies with the same strides, where `clone` would close gaps between rows."""
    return {name: _copy(tensor, tensor.stride()) for name, tensor in tensors.items()}
