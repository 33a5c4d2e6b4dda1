"""What all peers need of AITER's package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch

from pumice.operators.triton.plan import Problem

Tensors = Mapping[str, torch.Tensor]
Peer = Callable[[Tensors], torch.Tensor]
T = TypeVar("T")
_TILES_OF = "MI350X"  # AITER's files of tile sizes go by the card's name


def function(module: str, name: str) -> Any:
    """A function of `aiter.ops.triton`. ImportError when this version has no such module."""
    facts = importlib.import_module("aiter.ops.triton.utils._triton.arch_info")
    if not hasattr(facts, "get_device"):  # a stand-in, where there is no AMD card
        vars(facts)["get_device"] = lambda: _TILES_OF
    return getattr(importlib.import_module(f"aiter.ops.triton.{module}"), name)


def out_dtype(problem: Problem) -> Any:
    """Of "out", as PyTorch has it."""
    return getattr(torch, problem["out"].dtype)


class Prepared(Generic[T]):
    """What a peer wants in another form than the operator's inputs, made once for each of them.

    A graph in capture would record the making: it takes the form of the inputs before. They have
    the same shapes and the same integers; only random values differ.
    """

    def __init__(self, make: Callable[[Tensors], T]) -> None:
        self._make = make
        self._found: dict[int, T] = {}
        self._last: T | None = None

    def __call__(self, tensors: Tensors) -> T:
        found = self._found.get(id(tensors))
        if found is None and self._last is not None and _capturing():
            found = self._last
        if found is None:
            found = self._last = self._found[id(tensors)] = self._make(tensors)
        return found


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
