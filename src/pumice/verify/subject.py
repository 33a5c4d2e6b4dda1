"""Which kernel is inspected, and on which problem: from the words of a command line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.dtypes import itemsize
from pumice.errors import UnsupportedError, UsageError
from pumice.operators.base import OperatorSpec
from pumice.operators.registry import (
    GPU_OPERATORS,
    get_spec,
    require_gpu_operator,
    triton_kernels_of,
)
from pumice.operators.triton.plan import Problem, TensorSpec, TritonKernel, make_problem
from pumice.targets import Target
from pumice.verify.runner import problem_of
from pumice.verify.verify import SEED

_SMALL = 1 << 20  # elements of a tensor that gets random numbers; larger ones stay zero


@dataclass(frozen=True)
class Subject:
    """A kernel with a problem. contents: of the tensors that are not left as zeros. checked: the
    contents are a conformance case's, whose results can be compared.
    """

    spec: OperatorSpec
    kernel: TritonKernel
    problem: Problem
    label: str
    contents: Mapping[str, np.ndarray]
    checked: bool


def choose(text: str, target: Target, case: int | None = None, shape: str = "") -> Subject:
    """text: OPERATOR, OPERATOR:KERNEL or a kernel's whole name. case: a conformance case. shape: a
    part of a benchmark row's name, or tensors ("x=16x4096,w=64x4096:float16"). Neither: the first
    benchmark row that the kernel takes, or the smallest case of an operator without any.
    """
    spec, kernels = _kernels(text)
    if case is not None and shape:
        raise UsageError("--case and --shape are given; a case has its shapes")
    if case is not None:
        return _case(spec, kernels, target, case)
    if "=" in shape:
        attrs, inputs = _explicit(spec, shape)
        return _first(spec, kernels, target, [(shape, attrs, inputs)])
    rows = [row for row in _bench(spec) if shape in row[0]]
    if rows:
        return _first(spec, kernels, target, rows)
    if shape:
        raise UsageError(
            f"no benchmark row of {spec.name} has {shape!r} in its name",
            hint=f"There are: {'; '.join(row[0] for row in _bench(spec))}. Tensors can be given "
            "too: x=16x4096,w=64x4096:float16.",
        )
    sizes = [sum(a.size for a in i.values()) for _, i in _cases(spec)]
    order = sorted((size, at) for at, size in enumerate(sizes) if size)
    return _case(spec, kernels, target, order[0][1])


def _kernels(text: str) -> tuple[OperatorSpec, Sequence[TritonKernel]]:
    operator, _, kernel = text.partition(":")
    if not kernel and ".triton" in text:
        operator, kernel = text.split(".")[0], text
    require_gpu_operator(operator)
    known = triton_kernels_of(operator)
    chosen = [k for k in known if kernel in ("", k.name, k.name.rsplit(".", 1)[1])]
    if not chosen:
        raise UsageError(
            f"operator {operator} has no kernel {kernel!r}; it has "
            f"{', '.join(k.name for k in known)}"
        )
    return get_spec(operator), chosen


def _cases(spec: OperatorSpec) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    return spec.cases(np.random.default_rng(SEED))


def _case(
    spec: OperatorSpec, kernels: Sequence[TritonKernel], target: Target, index: int
) -> Subject:
    made = _cases(spec)
    if not 0 <= index < len(made):
        raise UsageError(f"--case is {index}; {spec.name} has cases 0 to {len(made) - 1}")
    attrs, inputs = made[index]
    problem = problem_of(spec, attrs, inputs)
    kernel = _supporting(kernels, problem, target)
    return Subject(spec, kernel, problem, f"case {index}", inputs, True)


def _module(spec: OperatorSpec) -> Any:
    return importlib.import_module(GPU_OPERATORS[spec.name].partition(":")[0])


def _bench(spec: OperatorSpec) -> Sequence[tuple[str, Mapping[str, Any], Any]]:
    module = _module(spec)
    return getattr(module, "BENCH", ()) if getattr(module, "SPEC", None) is spec else ()


def _first(
    spec: OperatorSpec,
    kernels: Sequence[TritonKernel],
    target: Target,
    rows: Sequence[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]]],
) -> Subject:
    """The first row that a kernel takes."""
    refused: UnsupportedError | None = None
    for label, attrs, inputs in rows:
        try:
            problem = make_problem(spec, attrs, inputs)
            kernel = _supporting(kernels, problem, target)
        except UnsupportedError as why:
            refused = refused or why
            continue
        except (KeyError, ValueError, IndexError, ZeroDivisionError) as why:
            raise UsageError(f"{spec.name} can't have tensors {label}: {why!r}") from None
        return Subject(spec, kernel, problem, label, _contents(spec, attrs, inputs), False)
    assert refused is not None
    raise refused


def _supporting(kernels: Sequence[TritonKernel], problem: Problem, target: Target) -> TritonKernel:
    reasons = {kernel.name: kernel.supports(problem, target) for kernel in kernels}
    for kernel in kernels:
        if reasons[kernel.name] is None:
            return kernel
    said = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    raise UnsupportedError(f"on {target.name} no kernel takes this problem: {said}")


def _contents(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """Integers that mean something (block tables, lengths), and random numbers for small floats;
    counts do not depend on the others.
    """
    from pumice.dtypes import numpy_dtype

    rng = np.random.default_rng(0)
    made = getattr(_module(spec), "bench_integers", None)
    found = dict(made(attrs, inputs)) if made is not None else {}
    for name, tensor in inputs.items():
        dtype = numpy_dtype(tensor.dtype)
        if name not in found and dtype.kind not in "iub" and tensor.elements <= _SMALL:
            values = rng.standard_normal(tensor.shape, np.float32)
            found[name] = (np.abs(values) + 0.1 if "scale" in name else values).astype(dtype)
    return found


def _explicit(spec: OperatorSpec, text: str) -> tuple[Mapping[str, Any], dict[str, TensorSpec]]:
    """Tensors by name; types and attributes that are not given are those of the first benchmark
    row or case with just these tensors.
    """
    given: dict[str, tuple[tuple[int, ...], str]] = {}
    for part in text.split(","):
        name, _, rest = part.strip().partition("=")
        sizes, _, dtype = rest.partition(":")
        try:
            given[name] = tuple(int(size) for size in sizes.split("x")), dtype
        except ValueError:
            raise UsageError(
                f"--shape has {part.strip()!r}; tensors are given as name=16x4096 or "
                "name=16x4096:float16"
            ) from None
        if dtype:
            itemsize(dtype)  # UnsupportedError names the types
    bases: list[tuple[Mapping[str, Any], dict[str, TensorSpec]]] = [
        (attrs, dict(inputs)) for _, attrs, inputs in _bench(spec)
    ]
    bases += [
        (attrs, {n: TensorSpec(a.shape, a.dtype.name) for n, a in inputs.items()})
        for attrs, inputs in _cases(spec)
    ]
    for attrs, inputs in bases:
        ranks = {name: len(tensor.shape) for name, tensor in inputs.items()}
        if ranks == {name: len(shape) for name, (shape, _) in given.items()}:
            return attrs, {
                name: TensorSpec(shape, dtype or inputs[name].dtype)
                for name, (shape, dtype) in given.items()
            }
    needed = ", ".join(f"{n} [{', '.join(map(str, t.shape))}]" for n, t in bases[0][1].items())
    raise UsageError(
        f"--shape gives {', '.join(given)}; {spec.name} has no row or case with just these "
        "tensors and so many dimensions",
        hint=f"Its first has {needed}.",
    )
