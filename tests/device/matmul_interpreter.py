"""Cases of matrix products in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from triton_harness import interpret, make_problem, poisoned, relative_error, run_case, to_torch

from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.targets import Target


def tolerance(spec: OperatorSpec, attrs: Mapping[str, Any], dtype: str) -> float:
    path = str(attrs.get("precision", "ieee"))
    return spec.tolerance.get(path, spec.tolerance[dtype])


def check_case(
    spec: OperatorSpec,
    kernel: TritonKernel,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    target: Target,
    config: Config | None = None,
) -> None:
    """A case, interpreted, against the spec's reference."""
    expected = spec.reference(attrs, inputs)
    got = run_case(spec, kernel, attrs, inputs, target, config)
    assert set(got) == set(expected)
    for name, array in got.items():
        error = relative_error(array, expected[name])
        assert error <= tolerance(spec, attrs, array.dtype.name), (name, error)


def check_strided(
    spec: OperatorSpec,
    kernel: TritonKernel,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    target: Target,
    gapped: tuple[str, ...],
    gap: int = 5,
) -> None:
    """A case whose tensors named in `gapped` have `gap` elements between rows; nothing is written
    there."""
    whole = make_problem(spec, attrs, inputs)
    specs: dict[str, TensorSpec] = dict(whole.tensors)
    tensors, wide = {}, {}
    for name, tensor in whole.tensors.items():
        shape = tensor.shape
        if name in gapped:
            shape = (*shape[:-1], shape[-1] + gap)
        array = poisoned(TensorSpec(shape, tensor.dtype))
        if name in inputs:
            array[..., : tensor.shape[-1]] = inputs[name]
        strides = tuple(s // array.itemsize for s in array.strides)
        specs[name] = TensorSpec(tensor.shape, tensor.dtype, strides, aligned=name not in gapped)
        wide[name], tensors[name] = array, to_torch(array)
    problem = Problem(spec.name, specs, attrs)
    assert kernel.supports(problem, target) is None, kernel.supports(problem, target)
    interpret(problem, kernel.plan(problem, target, kernel.configs(problem, target)[0]), tensors)
    for name, expected in spec.reference(attrs, inputs).items():
        got = wide[name][..., : expected.shape[-1]]
        assert relative_error(got, expected) <= tolerance(spec, attrs, got.dtype.name)
        rest = wide[name][..., expected.shape[-1] :].astype(np.float64)
        assert np.isnan(rest).all()
