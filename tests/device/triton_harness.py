"""Runs plans of Triton kernels in Triton's interpreter, and compares a spec's cases.

The interpreter executes kernels as NumPy on the CPU: slow, so cases are small. The kernels stay
ordinary compiled ones for the tests that compile them: only a launch here interprets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

from pumice.dtypes import TRITON_NAMES, numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Config, Plan, Problem, TensorSpec, TritonKernel
from pumice.targets import Target
from pumice.verify.judge import relative_error as relative_error

_BITS = {1: np.int8, 2: np.int16}
_interpreted: dict[Any, InterpretedFunction] = {}


def _convert(values: np.ndarray, source: Any, wanted: Any, rounding: Any) -> np.ndarray:
    """Conversion between floats to nearest even, as GPUs do it. Triton's own truncates to bfloat16,
    loses the carry of a rounded 8-bit mantissa, and truncates subnormals."""
    names = {triton_name: name for name, triton_name in TRITON_NAMES.items()}
    given = values.view(numpy_dtype(names[source.name]))
    with np.errstate(over="ignore", invalid="ignore"):
        converted = given.astype(np.float32).astype(numpy_dtype(names[wanted.name]))
    bits = np.dtype(f"uint{wanted.primitive_bitwidth}")
    return np.ascontiguousarray(converted).view(bits).reshape(values.shape)


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """A tensor of one element is an index: Triton's own way needs NumPy before 2.4."""
    _ORIGINAL["tensor"](tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _patch_core(language: Any, scope: Any) -> None:
    """The 8-bit types of CDNA3, which Triton's interpreter leaves out."""
    _ORIGINAL["core"](language, scope)
    known = language.dtype.to_ir

    def to_ir(self: Any, builder: Any) -> Any:
        missing = {"fp8e4b8": "get_fp8e4b8_ty", "fp8e5b16": "get_fp8e5b16_ty"}
        return (
            getattr(builder, missing[self.name])() if self.name in missing else known(self, builder)
        )

    scope.set_attr(language.dtype, "to_ir", to_ir)
    # Launches run one after another here: nothing is waited for.
    for name in ("gdc_wait", "gdc_launch_dependents"):
        scope.set_attr(tl.extra.cuda, name, lambda: None)


def _patch_lang(function: Any) -> Any:
    """Triton patches its language anew for every call of a nested function, as `tl.max`, and never
    takes that back. Here once a launch is enough, and `interpret` takes all of it back, last
    first, so that kernels compile afterwards."""
    languages = frozenset(
        name for name, value in function.__globals__.items() if value is tl or value is tl.core
    )
    if languages not in _scopes:
        _scopes[languages] = _ORIGINAL["lang"](function)
    return interpreter._LangPatchScope()


_scopes: dict[frozenset[str], Any] = {}
_ORIGINAL = {
    "tensor": interpreter._patch_lang_tensor,
    "core": interpreter._patch_lang_core,
    "lang": interpreter._patch_lang,
}
_PATCHES = {
    "_patch_lang": _patch_lang,
    "_convert_float": _convert,
    "_patch_lang_tensor": _patch_tensor,
    "_patch_lang_core": _patch_core,
}


def _dot(self: Any, a: Any, b: Any, total: Any, *_: Any) -> Any:
    """A product whose operands may be bfloat16 or 8-bit floats, which NumPy has as integers."""
    names = {triton_name: name for name, triton_name in TRITON_NAMES.items()}

    def wide(operand: Any) -> np.ndarray:
        if operand.dtype.is_int():
            return np.asarray(operand.data, np.int32)
        values = np.ascontiguousarray(operand.data).view(numpy_dtype(names[operand.dtype.name]))
        return values.astype(np.float32)

    product = np.matmul(wide(a), wide(b), dtype=total.data.dtype)
    return interpreter.TensorHandle(product + total.data, total.dtype.scalar)


def _splat(self: Any, kind: Any, value: Any) -> Any:
    """A scalar spread over a block. A comparison's result is marked with the type of its operands,
    by which Triton's own makes an integer of it that is no mask any more."""
    data = np.asarray(value.data)
    return interpreter.TensorHandle(
        np.full(kind.shape, data.reshape(-1)[0], data.dtype), value.dtype.scalar
    )


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    """A multiply-add of float32 that rounds once; Triton's own rounds the product, too."""
    wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
    return interpreter.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)


_METHODS = {"create_dot": _dot, "create_splat": _splat, "create_fma": _fma}


class _Everywhere:
    """A function as `_patch_lang` sees it, in whose module all of the language is visible."""

    __globals__: ClassVar[dict[str, Any]] = {"tl": tl, "core": tl.core}


def _interpreter(function: Any) -> InterpretedFunction:
    if function.fn not in _interpreted:
        _interpreted[function.fn] = InterpretedFunction(function.fn)
    return _interpreted[function.fn]


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The same memory as a tensor, also for the types that NumPy has from ml_dtypes."""
    if array.dtype.type.__module__.startswith("ml_dtypes"):
        bits = torch.from_numpy(array.view(_BITS[array.dtype.itemsize]))
        return bits.view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        bits = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int8)
        return bits.numpy().view(numpy_dtype(name))
    return tensor.numpy()


def poisoned(spec: TensorSpec) -> np.ndarray:
    """NaN where the type has it, else the largest value."""
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "iu":
        return np.full(spec.shape, np.iinfo(dtype).max, dtype)
    return np.full(spec.shape, np.nan, np.float32).astype(dtype)


def interpret(problem: Problem, plan: Plan, tensors: Mapping[str, torch.Tensor]) -> None:
    """Runs every launch over CPU tensors."""
    buffers = dict(tensors)
    for name, spec in plan.workspaces.items():
        zero = name in plan.zeroed
        array = np.zeros(spec.shape, numpy_dtype(spec.dtype)) if zero else poisoned(spec)
        buffers[name] = to_torch(array)
    nested = triton.runtime.jit.JITFunction.__call__
    before = {name: getattr(interpreter, name) for name in _PATCHES}
    for name, patch in _PATCHES.items():
        setattr(interpreter, name, patch)
    # A library function of Triton's (philox) patches the language's core and leaves it so.
    scope = interpreter._patch_lang(_Everywhere)
    builder = interpreter.InterpreterBuilder
    methods = {name: getattr(builder, name) for name in _METHODS}
    for name, method in _METHODS.items():
        setattr(builder, name, method)
    triton.runtime.jit.JITFunction.__call__ = lambda self, *a, **k: _interpreter(self)(*a, **k)
    try:
        for launch in plan.launches:
            assert all(axis > 0 for axis in launch.grid), launch.grid
            arguments = {
                name: buffers[value] if isinstance(value, str) else value
                for name, value in launch.arguments.items()
            }
            with np.errstate(all="ignore"):  # a GPU does not warn of an infinity either
                _interpreter(launch.kernel)[launch.grid](**arguments, **launch.constants)
    finally:
        while _scopes:
            _scopes.popitem()[1].restore()
        triton.runtime.jit.JITFunction.__call__ = nested
        for name, method in methods.items():
            setattr(builder, name, method)
        scope.restore()
        for name, original in before.items():
            setattr(interpreter, name, original)


def make_problem(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Problem:
    """The problem of a case, its outputs included."""
    given = {name: TensorSpec(array.shape, array.dtype.name) for name, array in inputs.items()}
    assert spec.output_specs is not None
    return Problem(spec.name, {**given, **spec.output_specs(attrs, given)}, attrs)


def run_case(
    spec: OperatorSpec,
    kernel: TritonKernel,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    target: Target,
    config: Config | None = None,
) -> dict[str, np.ndarray]:
    """Outputs of a case, interpreted. Outputs start poisoned, unless they are inputs as well."""
    problem = make_problem(spec, attrs, inputs)
    assert kernel.supports(problem, target) is None, kernel.supports(problem, target)
    config = kernel.configs(problem, target)[0] if config is None else config
    arrays = {
        name: inputs[name].copy() if name in inputs else poisoned(tensor)
        for name, tensor in problem.tensors.items()
    }
    tensors = {name: to_torch(array) for name, array in arrays.items()}
    interpret(problem, kernel.plan(problem, target, config), tensors)
    assert spec.output_specs is not None
    names = spec.output_specs(attrs, {n: problem[n] for n in inputs})
    return {name: to_numpy(tensors[name]) for name in names}
