"""AITER's kernels of rows: norms, quantization, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pumice.bench.operators.aiter.module import Peer, Prepared, Tensors, function, out_dtype
from pumice.operators.triton.plan import Problem


def _wrote(run: Callable[[Tensors], Any]) -> Peer:
    """A function that fills "out"."""

    def peer(t: Tensors) -> torch.Tensor:
        run(t)
        return t["out"]

    return peer


def norm(problem: Problem) -> Peer | None:
    attrs = problem.attrs
    if attrs.get("weight_offset") or attrs.get("power_of_two") or "weight" not in problem:
        return None
    if "residual" in problem and problem["residual"].dtype != problem["x"].dtype:
        return None
    if attrs.get("quantize") is None and problem["out"].dtype != problem["x"].dtype:
        return None
    return _rms(problem) if attrs["kind"] == "rms" else _layer(problem)


def _rms(problem: Problem) -> Peer | None:
    eps, mode = problem.attrs["eps"], problem.attrs.get("quantize")
    if "bias" in problem:
        return None
    if mode is None and "residual" in problem:
        add = function("rmsnorm", "rmsnorm2d_fwd_with_add")
        return _wrote(
            lambda t: add(t["out"], t["x"], t["residual"], t["residual"], t["weight"], eps)
        )
    if mode is None:
        alone = function("rmsnorm", "rms_norm")
        return lambda t: alone(t["x"], t["weight"], eps)
    if mode == "token" and "residual" in problem:
        dynamic = function("rmsnorm", "rmsnorm2d_fwd_with_add_dynamicquant")
        return _wrote(
            lambda t: dynamic(
                t["out"], t["x"], t["residual"], t["residual"], t["scales"], t["weight"], eps
            )
        )
    if mode == "token":
        token = function("rmsnorm", "rmsnorm2d_fwd_with_dynamicquant")
        return _wrote(lambda t: token(t["out"], t["x"], t["scales"], t["weight"], eps))
    if mode == "group":
        group = function("fused_fp8_quant", "fused_rms_fp8_group_quant")
        dtype = out_dtype(problem)
        return lambda t: group(
            t["x"], t["weight"], eps, None, None, 0.0, 128, dtype, t.get("residual"), False
        )[0][0]
    return None


def _layer(problem: Problem) -> Peer | None:
    eps, mode = problem.attrs["eps"], problem.attrs.get("quantize")
    # It always adds a bias: zeros where there is none.
    bias = Prepared(lambda t: t["bias"] if "bias" in t else torch.zeros_like(t["weight"]))
    if mode is None and "residual" in problem:
        add = function("norm", "layernorm2d_fwd_with_add")
        return _wrote(
            lambda t: add(t["out"], t["x"], t["residual"], t["residual"], t["weight"], bias(t), eps)
        )
    if mode is None:
        alone = function("norm", "layer_norm")
        return lambda t: alone(t["x"], t["weight"], bias(t), eps)
    if mode == "token" and "residual" in problem:
        dynamic = function("norm", "layernorm2d_fwd_with_add_dynamicquant")
        return _wrote(
            lambda t: dynamic(
                t["out"], t["x"], t["residual"], t["residual"], t["scales"], t["weight"], bias(t),
                eps,
            )
        )  # fmt: skip
    if mode == "token":
        token = function("norm", "layernorm2d_fwd_with_dynamicquant")
        return _wrote(lambda t: token(t["out"], t["x"], t["scales"], t["weight"], bias(t), eps))
    return None


def quantize(problem: Problem) -> Peer | None:
    """With a scale that is given it does not saturate: other work."""
    mode = problem.attrs["quantize"]
    if problem.attrs.get("power_of_two"):
        return None
    if mode == "token":
        token = function("quant", "dynamic_per_token_quant_fp8_i8")
        return _wrote(lambda t: token(t["out"], t["x"], t["scales"]))
    if mode == "tensor" and "scale" not in problem:
        tensor = function("quant", "dynamic_per_tensor_quant_fp8_i8")
        # It takes the greatest of what the scale was before, so its callers begin with zeros.
        return _wrote(lambda t: tensor(t["out"], t["x"], t["scales"].zero_()))
    if mode == "group":
        group = function("fused_fp8_quant", "fused_flatten_fp8_group_quant")
        dtype = out_dtype(problem)
        return lambda t: group(t["x"].unsqueeze(1), 128, dtype)[0]
    return None


def activation_mul(problem: Problem) -> Peer | None:
    """It has none that gives floats, or a scale a token."""
    if problem.attrs.get("quantize") != "group" or problem.attrs.get("power_of_two"):
        return None
    run = function("activation", "act_mul_and_fp8_group_quant")
    dtype = out_dtype(problem)
    return lambda t: run(t["x"], problem.attrs["activation"], 128, dtype)[0]


def softmax(problem: Problem) -> Peer | None:
    if problem.attrs:
        return None
    run = function("softmax", "softmax")
    return lambda t: run(t["x"])
