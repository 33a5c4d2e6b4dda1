"""Problems that a person writes down: an operator's tensors, and its attributes, as text.

    parse_problem("gemm", "x=16x4096,w=12288x4096:float16,activation=silu")

Types and attributes that are not given are those of the operator's first benchmark row, or case,
with just these tensors.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pumice.dtypes import itemsize
from pumice.errors import UnsupportedError, UsageError
from pumice.operators.base import OperatorSpec
from pumice.operators.registry import GPU_OPERATORS, get_spec, require_gpu_operator
from pumice.operators.signature import check_inputs
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem

_Base = tuple[Mapping[str, Any], Mapping[str, TensorSpec]]


def bench_rows(spec: OperatorSpec) -> Sequence[tuple[str, Mapping[str, Any], Any]]:
    """(label, attributes, inputs) of an operator's benchmark rows; none for a second operator of a
    module, which has no rows of its own. Of rows of one label the first: models share sizes."""
    module = importlib.import_module(GPU_OPERATORS[spec.name].partition(":")[0])
    if getattr(module, "SPEC", None) is not spec:
        return ()
    rows: Sequence[Any] = getattr(module, "BENCH", ())
    return [*{row[0]: row for row in reversed(rows)}.values()][::-1]


def parse_problem(operator: str, text: str) -> Problem:
    """The problem of NAME=SIZExSIZE[:DTYPE] and ATTRIBUTE=VALUE, with commas between. UsageError
    says what is allowed, UnsupportedError names an unknown dtype."""
    require_gpu_operator(operator)
    spec = get_spec(operator)
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    attrs: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, rest = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not rest:
            raise _malformed(part, spec)
        if name in tensors or name in attrs:
            raise UsageError(f"{operator} is given {name!r} twice, the second time as {rest}")
        if name in spec.inputs:
            sizes, _, dtype = rest.partition(":")
            if not all(size.isdecimal() for size in sizes.split("x")):
                raise _malformed(part, spec)
            tensors[name] = tuple(map(int, sizes.split("x"))), dtype
            if dtype:
                itemsize(dtype)
        else:
            attrs[name] = _value(rest)
    base_attrs, base = _base(spec, tensors)
    known = known_attributes(spec)
    if unknown := sorted(set(attrs) - known):
        raise UsageError(
            f"{operator} has neither a tensor nor an attribute {unknown[0]!r}; tensors are "
            f"{', '.join(spec.inputs)}, attributes {', '.join(sorted(known)) or 'none'}"
        )
    inputs = {
        name: TensorSpec(shape, dtype or base[name].dtype)
        for name, (shape, dtype) in tensors.items()
    }
    check_inputs(spec, inputs)
    try:
        return make_problem(spec, {**base_attrs, **attrs}, inputs)
    except UsageError:
        raise
    except (KeyError, ValueError, IndexError, ZeroDivisionError, UnsupportedError) as why:
        raise UsageError(f"{operator} can't have tensors {text}: {why}") from None


def _value(text: str) -> Any:
    """A number, true, false, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _bases(spec: OperatorSpec) -> list[_Base]:
    found: list[_Base] = [(attrs, inputs) for _, attrs, inputs in bench_rows(spec)]
    for attrs, arrays in spec.cases(np.random.default_rng(0)):
        found.append((attrs, {n: TensorSpec(a.shape, a.dtype.name) for n, a in arrays.items()}))
    return found


def known_attributes(spec: OperatorSpec) -> set[str]:
    """Names of the attributes that an operator's benchmark rows and cases have."""
    return {name for attrs, _ in _bases(spec) for name in attrs}


def _base(spec: OperatorSpec, given: Mapping[str, tuple[tuple[int, ...], str]]) -> _Base:
    """A row with just these tensors and ranks."""
    bases = _bases(spec)
    ranks = {name: len(shape) for name, (shape, _) in given.items()}
    for attrs, inputs in bases:
        if ranks == {name: len(tensor.shape) for name, tensor in inputs.items()}:
            return attrs, inputs
    first = ",".join(f"{n}={'x'.join(map(str, t.shape))}:{t.dtype}" for n, t in bases[0][1].items())
    raise UsageError(
        f"{spec.name} has no benchmark row or case with just the tensors "
        f"{', '.join(given) or '(none)'} and so many dimensions",
        hint=f"Its first has {first}.",
    )


def _malformed(part: str, spec: OperatorSpec) -> UsageError:
    return UsageError(
        f"{part.strip()!r} is neither a tensor, as NAME=16x4096 or NAME=16x4096:float16, nor an "
        f"attribute, as NAME=VALUE; tensors of {spec.name} are {', '.join(spec.inputs)}"
    )
