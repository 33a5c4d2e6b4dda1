"""From an operator's tensors to its outputs: the problem is recognised, its kernel chosen and bound
once, then launched. While PyTorch traces, outputs without data."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pumice.errors import DeviceError, PumiceError, UsageError
from pumice.operators.registry import get_spec, require_gpu_operator
from pumice.operators.signature import check_inputs
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.torch import recipes
from pumice.torch.choose import Chosen, choose
from pumice.torch.launch import architecture_of, dtype_name, spec_of

Tensors = Mapping[str, torch.Tensor]
_UNFIT = (LookupError, TypeError, ValueError)  # of attributes that an operator cannot have
_ALIASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # torch.ops.pumice's name → ours
    "rms_norm": ("norm", {"kind": "rms", "eps": 1e-6}),
    "add_rms_norm_": ("norm", {"kind": "rms", "eps": 1e-6}),
    "layer_norm": ("norm", {"kind": "layer", "eps": 1e-5}),
}
tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("tracing", default=False)


def given_tensors(
    name: str, tensors: Mapping[str, Any], optional: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors that are there, all on one device, with places in memory. optional: those that
    may be None, for what an error says."""
    found: dict[str, Any] = {one: t for one, t in tensors.items() if t is not None}
    for one, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            allowed = "a tensor or None" if one in optional else "a tensor"
            raise UsageError(f"{name}: {one} is a {type(tensor).__name__}; allowed: {allowed}")
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else str(tensor.layout)
            raise UsageError(f"{name}: {one} has the layout {layout}; allowed: torch.strided")
    if not found:
        raise UsageError(f"{name}: no tensor is given")
    devices = {one: tensor.device for one, tensor in found.items()}
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{one} on {device}" for one, device in devices.items())
        raise UsageError(f"{name}: tensors lie on several devices: {places}")
    return found


def _problem(
    name: str, operator: str, attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Problem:
    """UsageError where tensors do not fit each other, or an attribute is no operator's."""
    spec = get_spec(operator)
    try:
        return make_problem(spec, attrs, specs)
    except PumiceError:
        raise
    except _UNFIT as error:
        check_inputs(spec, specs, name)
        raise _unfit(name, attrs, error) from None


def _unfit(name: str, attrs: Mapping[str, Any], error: Exception) -> UsageError:
    why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return UsageError(f"{name} cannot have attributes {dict(attrs)}: {why}")


@functools.lru_cache(maxsize=4096)
def chosen_for(problem: Problem, index: int) -> Chosen:
    """The kernel of a problem on GPU `index`, bound."""
    return choose(problem, architecture_of(index))


@functools.lru_cache(maxsize=4096)
def _checked(problem: Problem, name: str) -> None:
    check_inputs(get_spec(problem.operator), problem.inputs, name)


def check(
    name: str, operator: str, tensors: Mapping[str, torch.Tensor | None], attrs: Mapping[str, Any]
) -> None:
    """UsageError for tensors that cannot be an operator's, on whichever device."""
    given = given_tensors(name, tensors)
    _checked(_problem(name, operator, attrs, {one: spec_of(t) for one, t in given.items()}), name)


def outputs_while_tracing(
    name: str, operator: str, given: Tensors, attrs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Outputs without data, of meta tensors too: shapes, types and strides as `call` makes them."""
    specs = {one: TensorSpec(tuple(t.shape), dtype_name(t.dtype)) for one, t in given.items()}
    spec = get_spec(operator)
    check_inputs(spec, specs, name)
    assert spec.output_specs is not None
    like = next(iter(given.values()))
    return {
        one: given[one]
        if one in given
        else like.new_empty(made.shape, dtype=getattr(torch, made.dtype))
        for one, made in spec.output_specs(attrs, specs).items()
    }


def call(
    operator: str,
    tensors: Mapping[str, torch.Tensor | None],
    attrs: Mapping[str, Any],
    outputs: Mapping[str, torch.Tensor] | None = None,
    *,
    name: str = "",
) -> dict[str, torch.Tensor]:
    """Runs an operator on a GPU; returns its outputs by name, made here unless they are given.

    name: what its caller knows it by. UsageError for tensors on several devices or that do not fit
    each other, UnsupportedError with every kernel's reason when none supports the problem,
    DeviceError for tensors that no GPU holds.
    """
    name = name or f"pumice.{operator}"
    key = None
    if not tracing.get():
        there = {one: tensor for one, tensor in tensors.items() if tensor is not None}
        key = recipes.signature(operator, there, attrs, outputs or {})
        if key is not None and (known := recipes.recall(key)) is not None:
            with _on(next(iter(there.values())).device):
                return known.run(there, outputs or {})
    given = given_tensors(name, tensors)
    first = next(iter(given.values()))
    if tracing.get():
        return outputs_while_tracing(name, operator, given, attrs)
    if first.device.type != "cuda":
        raise _no_gpu(name, given)
    problem = _problem(name, operator, attrs, {one: spec_of(t) for one, t in given.items()})
    _checked(problem, name)
    with _on(first.device):
        recipe = recipes.Recipe(
            tuple(
                (one, tensor.shape, getattr(torch, tensor.dtype))
                for one, tensor in problem.tensors.items()
                if one in problem.outputs
            ),
            tuple(_names(problem, given)),
            chosen_for(problem, torch.cuda.current_device()).call,
        )
        if key is not None:
            recipes.remember(key, recipe)
        return recipe.run(given, outputs or {})


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one, if it is not."""
    if device.index is None or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def _no_gpu(name: str, given: Tensors) -> DeviceError:
    one, first = next(iter(given.items()))
    return DeviceError(
        f"{name} runs on a GPU; {one} is on {first.device}",
        hint="Move the tensors to a ROCm or CUDA device. On the CPU there are pumice.torch.tgemm "
        "(16 and 32-bit floats), torch.ops.pumice.gemm and the modules of pumice.torch.modules.",
    )


def _names(problem: Problem, given: Tensors) -> list[str]:
    spec = get_spec(problem.operator)
    assert spec.output_specs is not None
    return list(spec.output_specs(problem.attrs, {n: problem[n] for n in given}))


def explain(
    operator: str, tensors: Mapping[str, torch.Tensor], attrs: Mapping[str, Any] | None = None
) -> str:
    """Which kernel a call takes, and why: "gemm.triton.tiled {BM: 128, …}: fastest measured …".

    operator: of `torch.ops.pumice` or of `pumice/operators`. UsageError for what is not one, for
    tensors that do not fit each other and for attributes that no case has; DeviceError for tensors
    that no GPU holds.
    """
    from pumice.tuning.shapes import known_attributes

    name = f"explain({operator!r})"
    operator, implied = _ALIASES.get(operator, (operator, {}))
    attrs = {**implied, **(attrs or {})}
    require_gpu_operator(operator)
    given = given_tensors(name, tensors)
    known = known_attributes(get_spec(operator))
    if unknown := sorted(set(attrs) - known):
        raise UsageError(
            f"{name} has no attribute {unknown[0]!r}; its attributes are "
            + (", ".join(sorted(known)) or "none")
        )
    problem = _problem(name, operator, attrs, {one: spec_of(t) for one, t in given.items()})
    _checked(problem, name)
    device = next(iter(given.values())).device
    if device.type != "cuda":
        raise _no_gpu(name, given)
    try:
        chosen = chosen_for(problem, device.index or 0)
    except PumiceError:
        raise
    except _UNFIT as error:
        raise _unfit(name, attrs, error) from None
    config = ", ".join(f"{k}={v}" for k, v in chosen.config.items())
    return f"{chosen.kernel} ({config}): {chosen.reason}"
