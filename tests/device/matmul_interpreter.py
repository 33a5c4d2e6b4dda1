"""Cases of matrix products in Triton's interpreter, which is taught to multiply bfloat16 and 8-bit
floats as numbers (it keeps bfloat16 as the integers of its bits, and would multiply those).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton_harness import interpret, make_problem, poisoned, relative_error, run_case, to_torch

from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.targets import Target

_TYPES = {
    tl.bfloat16: ml_dtypes.bfloat16,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e4b8: ml_dtypes.float8_e4m3fnuz,
}


def _numbers(handle: Any) -> np.ndarray:
    kind = _TYPES.get(handle.dtype.scalar)
    return handle.data if kind is None else handle.data.view(kind).astype(np.float32)


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, imprecise: Any) -> TensorHandle:
    product = np.matmul(_numbers(a), _numbers(b), dtype=d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)


class _Launch:
    """What one launch changed in Triton's language, nested functions included. The interpreter
    itself leaves the changes of nested functions behind, and then nothing compiles any more."""

    open: ClassVar[dict[int, Any]] = {}

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def restore(self) -> None:
        for scope in reversed(self.open.values()):
            scope.restore()
        self.open.clear()
        self.scope.restore()


def _call(self: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """A nested function: its module's view of the language is changed once a launch."""
    module = id(self.fn.__globals__)
    if module not in _Launch.open:
        _Launch.open[module] = _patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)


_patch_lang = interpreter._patch_lang
interpreter._patch_lang = lambda fn: _Launch(_patch_lang(fn))
InterpretedFunction.__call__ = _call
InterpreterBuilder.create_dot = _dot


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
