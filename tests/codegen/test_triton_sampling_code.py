"""sample_tokens, softmax and token_embedding compile for GPUs, nothing spilled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_code import compiled, problem_of

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import Target, get_target

SOME = [get_target(name) for name in ("gfx942", "gfx1100", "sm_90")]


def _compile(
    name: str, attrs: dict[str, Any], inputs: dict[str, TensorSpec], target: Target, kernel: int = 0
) -> None:
    problem = problem_of(get_spec(name), attrs, inputs)
    compiled(triton_kernels_of(name)[kernel], problem, target)


@pytest.mark.parametrize("target", [*SOME, get_target("gfx1201")], ids=lambda t: t.name)
def test_every_filter_and_penalty(target: Target) -> None:
    cases = get_spec("sample_tokens").cases(np.random.default_rng(1))
    attrs, arrays = next(case for case in cases if len(case[1]) == 12)
    inputs = {}
    for name, array in arrays.items():
        shape = (64, 128256) if array.ndim == 2 else (64,)
        inputs[name] = TensorSpec(shape, array.dtype.name)
    _compile("sample_tokens", attrs, inputs, target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("width", [4096, 128256])
def test_softmax(width: int, target: Target) -> None:
    for kernel in range(2):
        _compile("softmax", {}, {"x": TensorSpec((64, width), "float16")}, target, kernel)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
def test_embedding(target: Target) -> None:
    inputs = {"tokens": TensorSpec((64,), "int32"), "weight": TensorSpec((1000, 4096), "bfloat16")}
    _compile("token_embedding", {}, inputs, target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("packing", ["rows", "blocks", "bytes"])
def test_embedding_of_codes(packing: str, target: Target) -> None:
    attrs = {"group": 32, "out_dtype": "float32"}
    inputs = {"tokens": TensorSpec((64,), "int32"), "weight": TensorSpec((1000, 4096), "int8")}
    if packing != "bytes":
        attrs["packing"] = packing
        inputs["weight"] = TensorSpec((1000, 512), "int32")
    inputs |= {name: TensorSpec((1000, 128), "float16") for name in ("scales", "mins")}
    _compile("token_embedding", attrs, inputs, target)
