"""Products of CPU tensors by the compiler's TensorIR kernels.

A kernel is compiled for this CPU when it is first needed (about a second) and serves all sizes.
A weight is packed once and kept as long as it lives and does not change.
"""

from __future__ import annotations

import functools
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pumice.operators.base import OperatorCall

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_ROWS = 8  # activations and outputs come in multiples of this many rows


@dataclass
class _Packed:
    alive: weakref.ref[Tensor]  # an id is used again when its tensor is gone
    version: int
    data: np.ndarray


_packed: dict[int, _Packed] = {}


@functools.cache
def _device() -> Any:
    from pumice.runtime.devices.cpu import CpuDevice

    return CpuDevice(torch.get_num_threads())


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


def _pack(weight: Tensor, fmt: Any, layout: Any) -> np.ndarray:
    """The weight in the kernel's layout; made again when it was written to."""
    from pumice.quantization.pack import pack_dense

    key = id(weight)
    kept = _packed.get(key)
    if kept is not None and kept.alive() is weight and kept.version == weight._version:
        return kept.data
    plain = weight.detach().contiguous()
    if fmt.name == "bf16":
        from pumice.dtypes import numpy_dtype

        array = plain.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    else:
        array = plain.numpy()
    data = np.ascontiguousarray(pack_dense(array, fmt, layout)["data"])
    alive = weakref.ref(weight, lambda _: _packed.pop(key, None))
    _packed[key] = _Packed(alive, weight._version, data)
    return data


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    """x[M, K] · weight[N, K]ᵀ + bias[N] in float32 arithmetic."""
    from pumice.runtime.devices.cpu import CapturedPlan

    device = _device()
    device.ready()
    m, k = x.shape
    n = weight.shape[0]
    dtype = x.dtype if out_dtype is None else out_dtype
    if m == 0 or n == 0 or k == 0:
        empty = x.new_zeros((m, n), dtype=dtype)
        return empty if bias is None else empty + bias
    library, source, fmt, layout = _kernel(_FORMATS[weight.dtype], bias is not None)
    data = _pack(weight, fmt, layout)
    padded = -(-m // _ROWS) * _ROWS
    rows = torch.empty((padded, k), dtype=torch.float32)
    rows[:m] = x.detach()
    rows[m:] = 0
    out = torch.empty((padded, n), dtype=torch.float32)
    added = None if bias is None else bias.detach().float().contiguous()
    pointers = {"x": rows.data_ptr(), "w.data": data.ctypes.data, "out": out.data_ptr()}
    if added is not None:
        pointers["bias"] = added.data_ptr()
    integers = {"T": m, "N": n, "K": k}
    plan = CapturedPlan(library, [source.symbol], [[pointers.get(a) for a in source.arguments]])
    for index, argument in enumerate(source.arguments):
        if argument in integers:
            plan.set_integers(np.array([index]), integers[argument])
    plan.replay()
    return out[:m].to(dtype)
