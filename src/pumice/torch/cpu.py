"""Products of CPU tensors by the compiler's TensorIR kernels.

A kernel is compiled for this CPU when it is first needed (about a second) and serves all sizes.
A weight is packed once and kept as long as it lives and does not change.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pumice.operators.base import OperatorCall

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_ROWS = 8  # activations and outputs come in multiples of this many rows
_FEW = 1 << 16  # elements of a weight that is compared in full


@dataclass
class _Packed:
    alive: weakref.ref[Tensor]  # an id is used again when its tensor is gone
    state: tuple[Any, ...]
    sample: Tensor
    data: Tensor


_packed: dict[int, _Packed] = {}
_lock = threading.RLock()  # of what is made once, and of a weight that several threads pack
_forked: ThreadPoolExecutor | None = None


def _after_fork() -> None:
    """A child has none of the threads that its parent's pool waits for: it computes on a thread of
    its own, which gets a new pool."""
    global _forked, _lock
    _forked, _lock = ThreadPoolExecutor(1, "pumice"), threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _device() -> Any:
    from pumice.runtime.devices.cpu import CpuDevice, allowed_cpus

    return CpuDevice(min(torch.get_num_threads(), len(allowed_cpus())))


@functools.cache
def _kernel(name: str, bias: bool) -> tuple[Any, Any, Any, Any]:
    """(library, kernel source, format, layout) of a weight's format."""
    from pumice.compiler.codegen import build_library
    from pumice.operators.linear import layout_for
    from pumice.operators.linear.kernel_tir_float import LinearFloat
    from pumice.quantization import get_format
    from pumice.targets.detect import detect_cpu

    target, fmt = detect_cpu(), get_format(name)
    layout = layout_for(target, fmt)
    attrs = {"bias": bias, "residual": False, "activations": "float32"}
    call = OperatorCall("linear", attrs, {"w": (fmt, layout)})
    kernel = LinearFloat()
    source = kernel.source(call, target, kernel.configs(call, target)[0])
    with tempfile.TemporaryDirectory(prefix="pumice-") as folder:
        path = Path(folder) / "model.so"
        build_library([source], target, path, workers=1)
        return _device().load_kernels(path), source, fmt, layout


def _state(weight: Tensor) -> tuple[Any, ...]:
    """What is another when a weight was written to as autograd sees it, or was given other memory.
    Tensors of inference mode have no version."""
    version = None if weight.is_inference() else weight._version
    return version, weight.data_ptr(), weight.shape, weight.stride(), weight.is_neg()


def _sample(weight: Tensor) -> Tensor:
    """Elements that tell most writes that autograd does not see (through `.data`, NumPy, or in
    inference mode): all of a small weight, else one in each row and column."""
    if weight.numel() <= _FEW:
        return weight.detach().clone()
    n, k = weight.shape
    along = torch.arange(max(n, k))
    return weight.detach()[along % n, along % k]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    whole = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.resolve_neg().view(whole), b.resolve_neg().view(whole))


def _pack(weight: Tensor, fmt: Any, layout: Any) -> Tensor:
    """The weight in the kernel's layout; made again when it was written to."""
    from pumice.quantization.pack import pack_dense

    key, state = id(weight), _state(weight)
    kept = _packed.get(key)
    if kept is not None and kept.alive() is weight and kept.state == state:
        if _same_bits(kept.sample, _sample(weight)):
            return kept.data
    with _lock:
        sample = _sample(weight)
        plain = weight.detach().resolve_neg().contiguous()
        if fmt.name == "bf16":
            from pumice.dtypes import numpy_dtype

            array = plain.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        else:
            array = plain.numpy()
        packed = np.ascontiguousarray(pack_dense(array, fmt, layout)["data"]).view(np.uint8)
        data = torch.empty(packed.size, dtype=torch.uint8)  # PyTorch aligns as kernels need it
        data.numpy()[:] = packed.reshape(-1)
        alive = weakref.ref(weight, lambda _: _packed.pop(key, None))
        _packed[key] = _Packed(alive, state, sample, data)
        return data


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x[M, K] · weight[N, K]ᵀ + bias[N], float32[M, N]."""
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0 or k == 0:
        empty = torch.zeros((m, n))
        return empty if bias is None else empty + bias.float()
    if _forked is not None:
        return _forked.submit(_run, x, weight, bias).result()
    return _run(x, weight, bias)


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from pumice.runtime.devices.cpu import CapturedPlan

    (m, k), n = x.shape, weight.shape[0]
    with _lock:
        device = _device()
        device.ready()
        library, source, fmt, layout = _kernel(_FORMATS[weight.dtype], bias is not None)
    data = _pack(weight, fmt, layout)
    padded = -(-m // _ROWS) * _ROWS
    rows = torch.empty((padded, k), dtype=torch.float32)
    rows[:m] = x.detach()
    rows[m:] = 0
    out = torch.empty((padded, n), dtype=torch.float32)
    pointers = {"x": rows.data_ptr(), "w.data": data.data_ptr(), "out": out.data_ptr()}
    if bias is not None:
        added = torch.empty(n, dtype=torch.float32)
        added[:] = bias.detach()
        pointers["bias"] = added.data_ptr()
    integers = {"T": m, "N": n, "K": k}
    plan = CapturedPlan(library, [source.symbol], [[pointers.get(a) for a in source.arguments]])
    for index, argument in enumerate(source.arguments):
        if argument in integers:
            plan.set_integers(np.array([index]), integers[argument])
    plan.replay()
    return out[:m]


def gemm(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str,
    out_dtype: torch.dtype | None,
) -> Tensor:  # fmt: skip
    """`operators/gemm` in float32 arithmetic."""
    out = linear(x, w, bias)
    if activation == "gelu_tanh":
        out = F.gelu(out, approximate="tanh")
    elif activation != "none":
        out = getattr(F, activation)(out)
    if residual is not None:
        out = out + residual
    dtype = x.dtype if out_dtype is None else out_dtype
    return out.to(dtype, memory_format=torch.contiguous_format)
