"""In which form a GPU keeps a weight, and its packing.

w4      4-bit codes, eight a word (`operators/gemm_w4/layout.py`), float16 scales, and minima where
        the format has them
w8      8-bit codes, for formats of five and more bits, and for those whose scales or groups the
        4-bit kernels cannot read; the reason is kept
dense   float16 or bfloat16
vector  float32: norms and inverse frequencies; biases are in the activations' type
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice.artifact import WeightRecord
from pumice.compiler.gpu.values import Value
from pumice.compiler.storage import WeightWriter
from pumice.compiler.weights import Loaded
from pumice.dtypes import numpy_dtype
from pumice.errors import CompileError
from pumice.operators.gemm_w4.layout import best_packing, pack
from pumice.operators.triton.plan import TensorSpec
from pumice.quantization.base import AffineWeight, QuantFormat
from pumice.quantization.pack import concatenate, dequantize
from pumice.targets import Target

OPERATORS = {"w4": "gemm_w4", "w8": "gemm_w8", "dense": "gemm"}


def form_of(fmt: QuantFormat) -> tuple[str, str]:
    """(form, reason) of a format."""
    if not fmt.affine:
        return "dense", "the weights are floats"
    if fmt.code_bits == 8:
        return "w8", "8-bit codes"
    if fmt.scale_dtype != "float16":
        return "w8", f"{fmt.name}: 4-bit kernels read float16 scales, which are too coarse"
    if fmt.group % 32:
        return "w8", f"{fmt.name}: 4-bit kernels read groups of 32, not of {fmt.group}"
    return "w4", "4-bit codes"


@dataclass(frozen=True)
class GpuWeight:
    """One weight as kernels see it: one or more parameters, stacked along N."""

    key: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]  # (N, K), or (length,)
    format: QuantFormat
    form: str
    reason: str
    packing: str
    dtype: str  # of dense weights and vectors

    @property
    def operator(self) -> str:
        """Of the product with it."""
        return OPERATORS[self.form]

    @property
    def attrs(self) -> dict[str, Any]:
        """Of the product and of the embedding."""
        if self.form not in ("w4", "w8"):
            return {}
        zero = 0 if self.format.has_min or self._signed else self.format.zero
        found: dict[str, Any] = {"group": self.format.group, "zero": zero}
        return found | ({"packing": self.packing} if self.form == "w4" else {})

    @property
    def _signed(self) -> bool:
        """Whether 8-bit codes are kept less their zero, as int8."""
        return self.form == "w8" and self.format.zero == 128 and not self.format.has_min

    def specs(self) -> dict[str, TensorSpec]:
        """Argument name → spec. A vector has the single name ""."""
        if self.form == "vector":
            return {"": TensorSpec(self.shape, self.dtype)}
        n, k = self.shape
        if self.form == "dense":
            return {"w": TensorSpec((n, k), self.dtype)}
        groups = TensorSpec((n, k // self.format.group), self.format.scale_dtype)
        codes = TensorSpec((n, k), "int8" if self._signed else "uint8")
        found = {
            "w": TensorSpec((n, k // 8), "int32") if self.form == "w4" else codes,
            "scales": groups,
        }
        if self.format.has_min:
            found["mins"] = groups
        return found

    def values(self) -> dict[str, Value]:
        return {
            name: Value("weight", f"{self.key}.{name}" if name else self.key, spec)
            for name, spec in self.specs().items()
        }

    def records(self) -> list[WeightRecord]:
        """What the manifest says of its tensors."""
        found = []
        for name, value in self.values().items():
            fill: float | None = None  # random bits
            signs = False
            if name in ("scales", "mins"):
                # As `RandomModel` scales its codes: activations keep their size through layers.
                fill = 3.46 / (self.format.code_max * self.shape[-1] ** 0.5)
                fill *= self.format.code_max / 2 if name == "mins" else 1.0
                # Of either sign: codes are not even about their zero, and of weights with a mean
                # all tokens come out alike, which a GPU multiplies with less power, so faster.
                signs = True
            elif self.form == "vector":
                fill = 0.0 if self.key.endswith("bias") else 1.0
            elif self.form == "dense":
                fill = self.shape[-1] ** -1.0
            found.append(WeightRecord(value.name, value.spec.dtype, value.spec.shape, fill, signs))
        return found

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs().values())

    def pack(self, load: Callable[[str], Loaded]) -> dict[str, np.ndarray]:
        """Tensor name → contents; `load` gives a parameter's format and value."""
        values = []
        for part in self.parts:
            fmt, value = load(part)
            if self.form != "vector" and fmt.name != self.format.name:
                raise CompileError(
                    f"weight {part!r} came as {fmt.name} where {self.format.name} was planned"
                )
            values.append(value)
        if self.form == "vector":
            flat = np.concatenate([np.asarray(v, np.float32).reshape(-1) for v in values])
            return {self.key: flat.astype(numpy_dtype(self.dtype))}
        if self.form == "dense":
            dense = [
                dequantize(v, self.format) if isinstance(v, AffineWeight) else v for v in values
            ]
            stacked = dense[0] if len(dense) == 1 else np.concatenate(dense)
            return {f"{self.key}.w": _narrowed(stacked, self.dtype, self.key)}
        affine = concatenate([v for v in values if isinstance(v, AffineWeight)])
        if self.form == "w4":
            words = pack(affine.codes, self.packing)
        elif self._signed:
            words = (affine.codes.astype(np.int16) - 128).astype(np.int8)
        else:
            words = affine.codes
        dtype = numpy_dtype(self.format.scale_dtype)
        found = {"w": words, "scales": affine.scales.astype(dtype, copy=False)}
        if self.format.has_min:
            assert affine.mins is not None
            found["mins"] = affine.mins.astype(dtype, copy=False)
        return {f"{self.key}.{name}": array for name, array in found.items()}


def _narrowed(array: np.ndarray, dtype: str, key: str) -> np.ndarray:
    """A dense weight in a 16-bit type; values beyond it are an error and not an infinity."""
    with np.errstate(over="ignore"):
        out = np.asarray(array, np.float32).astype(numpy_dtype(dtype))
    if not np.isfinite(out.astype(np.float32)).all():
        raise CompileError(
            f"weight {key!r} holds values that {dtype} cannot",
            hint="Compile with --activations bfloat16.",
        )
    return out


def make_weight(
    key: str,
    parts: tuple[str, ...],
    shape: tuple[int, ...],
    fmt: QuantFormat,
    target: Target,
    dtype: str,
) -> GpuWeight:
    """dtype: of the activations."""
    if len(shape) == 1:
        kind = dtype if key.endswith("bias") else "float32"
        return GpuWeight(key, parts, shape, fmt, "vector", "a vector", "", kind)
    form, reason = form_of(fmt)
    packing = best_packing(shape[1], target.api) if form == "w4" else ""
    return GpuWeight(key, parts, shape, fmt, form, reason, packing, dtype)


def write_gpu_weights(
    path: Path,
    uses: Mapping[str, GpuWeight],
    load: Callable[[str], Loaded],
    report: Callable[[int, int], None],
    only_vectors: bool = False,
) -> int:
    """Packs and writes every weight, one at a time; returns the file's size in bytes. only_vectors:
    matrices are left out, to be filled at random where the artifact is loaded."""
    ordered = [use for use in uses.values() if use.form == "vector" or not only_vectors]
    sizes = [(value.name, value.spec.nbytes) for use in ordered for value in use.values().values()]
    writer = WeightWriter(path, sizes)
    with writer:
        for done, use in enumerate(ordered, start=1):
            packed = use.pack(load)
            for value in use.values().values():
                writer.write(value.name, packed[value.name])
            report(done, len(ordered))
    return writer.nbytes
