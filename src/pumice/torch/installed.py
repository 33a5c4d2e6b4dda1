"""AITER (ROCm/aiter) and FlashInfer as providers, where they are installed and on a GPU of theirs.

Nobody has run these calls on hardware yet: they follow the libraries' documented signatures
(amd-aiter 0.1.7, flashinfer 0.6), and a measured row must name one before it is used.
"""

from __future__ import annotations

from typing import Any

import torch

from pumice.operators.triton.plan import Problem
from pumice.torch.provider import Call, Provider, Tensors, import_fault, member

_AITER_ARCHS = ("gfx942", "gfx950")
_HALF = ("float16", "bfloat16")
_ACTIVATIONS = {
    "silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul",
}  # fmt: skip


def hip_arch() -> str | None:
    """The current AMD GPU's architecture, None without one."""
    if torch.version.hip is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_properties().gcnArchName.split(":")[0])


def cuda_capability() -> tuple[int, int] | None:
    """The current NVIDIA GPU's compute capability, None without one."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability()


def _no_aiter() -> str | None:
    arch = hip_arch()
    if arch not in _AITER_ARCHS:
        return f"it is made for {' and '.join(_AITER_ARCHS)}; the GPU here is {arch or 'none'}"
    return import_fault("aiter")


def _no_flashinfer() -> str | None:
    capability = cuda_capability()
    if capability is None or capability < (8, 0):
        here = "none" if capability is None else "sm_{}{}".format(*capability)
        return f"it is made for sm_80 and later; the NVIDIA GPU here is {here}"
    return import_fault("flashinfer")


def _missing(package: str, name: str) -> str:
    return f"this version of {package} has no {name}"


def _plain(problem: Problem) -> str | None:
    """What both libraries' rows need."""
    for name, tensor in problem.tensors.items():
        if tensor.dtype not in _HALF or not tensor.contiguous:
            return f"{name} must be contiguous float16 or bfloat16"
    return None


def _aiter_gemm(problem: Problem) -> Call | str:
    if problem.attrs or "residual" in problem:
        return "a product without an epilogue is needed"
    if (fault := _plain(problem)) is not None:
        return fault
    tuned = member("aiter.tuned_gemm", "tgemm")
    if tuned is None:
        return _missing("aiter", "tuned_gemm.tgemm")

    def run(t: Tensors) -> None:
        t["out"].copy_(tuned.mm(t["x"], t["w"], t.get("bias")))

    return run


def _norm_fault(problem: Problem) -> str | None:
    attrs = problem.attrs
    if attrs["kind"] != "rms" or attrs.get("weight_offset") or attrs.get("quantize"):
        return "a plain RMSNorm is needed"
    if "bias" in problem:
        return "it has no bias"
    return _plain(problem)


def _aiter_norm(problem: Problem) -> Call | str:
    if (fault := _norm_fault(problem)) is not None:
        return fault
    eps = problem.attrs["eps"]
    if "residual" in problem:
        add = member("aiter", "rmsnorm2d_fwd_with_add")
        if add is None:
            return _missing("aiter", "rmsnorm2d_fwd_with_add")
        return lambda t: add(t["out"], t["x"], t["residual"], t["residual"], t["weight"], eps)
    norm = member("aiter", "rms_norm")
    if norm is None:
        return _missing("aiter", "rms_norm")
    return lambda t: _copy(t["out"], norm(t["x"], t["weight"], eps))


def _copy(out: torch.Tensor, value: torch.Tensor) -> None:
    out.copy_(value)


def _flashinfer_norm(problem: Problem) -> Call | str:
    if (fault := _norm_fault(problem)) is not None:
        return fault
    eps = problem.attrs["eps"]
    name = "fused_add_rmsnorm" if "residual" in problem else "rmsnorm"
    norm = member("flashinfer", name)
    if norm is None:
        return _missing("flashinfer", name)
    if "residual" not in problem:
        return lambda t: norm(t["x"], t["weight"], eps, out=t["out"])

    def run(t: Tensors) -> None:
        t["out"].copy_(t["x"])  # it changes its input in place, which a call here may not
        norm(t["out"], t["residual"], t["weight"], eps)

    return run


def _activation(package: str) -> Any:
    def make(problem: Problem) -> Call | str:
        if problem.attrs.get("quantize"):
            return "it has no such quantization"
        if (fault := _plain(problem)) is not None:
            return fault
        name = _ACTIVATIONS[problem.attrs["activation"]]
        function = member(package, name)
        if function is None:
            return _missing(package, name)
        if package == "aiter":
            return lambda t: function(t["out"], t["x"])
        return lambda t: function(t["x"], out=t["out"])

    return make


def _attention(package: str) -> Any:
    name = "flash_attn_varlen_func" if package == "aiter" else "single_prefill_with_kv_cache"

    def make(problem: Problem) -> Call | str:
        attrs = problem.attrs
        used = {k for k, v in attrs.items() if v not in (None, False, 0, 0.0, -1)}
        if used - {"causal", "scale"} or "sinks" in problem or "lse" in problem:
            return "windows, caps, sinks and lse are not passed on"
        # A batch's longest sequence is not to be seen from the sizes; one sequence is.
        if problem["cu_seqlens_q"].shape[0] != 2:
            return "one sequence is passed on"
        if any(problem[n].dtype not in _HALF for n in ("q", "k", "v")):
            return "float16 or bfloat16 is needed"
        function = member(package, name)
        if function is None:
            return _missing(package, name)
        q, k = problem["q"], problem["k"]
        scale = attrs.get("scale") or q.shape[2] ** -0.5
        causal = bool(attrs.get("causal"))
        if package == "aiter":
            return lambda t: _copy(
                t["out"],
                function(
                    t["q"], t["k"], t["v"], t["cu_seqlens_q"], t["cu_seqlens_k"], q.shape[0],
                    k.shape[0], softmax_scale=scale, causal=causal,
                ),
            )  # fmt: skip
        return lambda t: _copy(
            t["out"], function(t["q"], t["k"], t["v"], causal=causal, sm_scale=scale)
        )

    return make


AITER = Provider(
    "vendor.aiter",
    {
        "activation_mul": _activation("aiter"),
        "flash_attention": _attention("aiter"),
        "gemm": _aiter_gemm,
        "norm": _aiter_norm,
    },
    _no_aiter,
)
FLASHINFER = Provider(
    "vendor.flashinfer",
    {
        "activation_mul": _activation("flashinfer"),
        "flash_attention": _attention("flashinfer"),
        "norm": _flashinfer_norm,
    },
    _no_flashinfer,
)
