"""Phase 7's weights: which buffers an artifact holds, their sizes before they are made, and their
packing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pumice.compiler.storage import WeightWriter
from pumice.dtypes import itemsize
from pumice.errors import CompileError
from pumice.quantization.base import AffineWeight, PackedLayout, QuantFormat
from pumice.quantization.pack import concatenate, pack_affine, pack_dense

Loaded = tuple[QuantFormat, AffineWeight | np.ndarray]


@dataclass(frozen=True)
class WeightUse:
    """One weight as kernels see it: one or more parameters, stacked along N, in one format and
    layout.

    layout None: a float32 vector (norm, bias, inverse frequencies).
    """

    key: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]  # (N, K) of the stack, or (length,)
    format: QuantFormat
    layout: PackedLayout | None

    def buffers(self) -> list[tuple[str, int]]:
        """(name in weights.safetensors, bytes) of each buffer."""
        if self.layout is None:
            return [(self.key, int(np.prod(self.shape)) * 4)]
        n, k = self.shape
        rows = self.layout.padded(n)
        fmt = self.format
        if not fmt.affine:
            assert fmt.dense_dtype is not None
            return [(f"{self.key}.data", rows * k * itemsize(fmt.dense_dtype))]
        scales = rows * (k // fmt.group) * itemsize(fmt.scale_dtype)
        sizes = [
            (f"{self.key}.codes", rows * k * fmt.code_bits // 8),
            (f"{self.key}.scales", scales),
        ]
        if fmt.has_min:
            sizes.append((f"{self.key}.mins", scales))
        return sizes

    @property
    def nbytes(self) -> int:
        return sum(n for _, n in self.buffers())

    def pack(self, load: Callable[[str], Loaded]) -> dict[str, np.ndarray]:
        """The buffers' contents; `load` gives a parameter's format and value."""
        loaded = [load(part) for part in self.parts]
        if self.layout is None:
            vectors = [np.asarray(value, dtype=np.float32).reshape(-1) for _, value in loaded]
            return {self.key: np.concatenate(vectors)}
        for part, (fmt, _) in zip(self.parts, loaded, strict=True):
            if fmt.name != self.format.name:
                raise CompileError(
                    f"weight {part!r} came as {fmt.name} where {self.format.name} was planned"
                )
        values = [value for _, value in loaded]
        packed: Mapping[str, np.ndarray]
        if self.format.affine:
            affine = [value for value in values if isinstance(value, AffineWeight)]
            packed = pack_affine(concatenate(affine), self.format, self.layout)
        else:
            dense = [value for value in values if isinstance(value, np.ndarray)]
            stacked = dense[0] if len(dense) == 1 else np.concatenate(dense)
            packed = pack_dense(stacked, self.format, self.layout)
        return {f"{self.key}.{name}": array for name, array in packed.items()}


def write_weights(
    path: Path,
    uses: Iterable[WeightUse],
    load: Callable[[str], Loaded],
    report: Callable[[int, int], None] | None = None,
) -> int:
    """Packs and writes every weight, one at a time; returns the file's size in bytes."""
    ordered = list(uses)
    sizes = [size for use in ordered for size in use.buffers()]
    writer = WeightWriter(path, sizes)
    with writer:
        for done, use in enumerate(ordered, start=1):
            packed = use.pack(load)
            for name, _ in use.buffers():
                writer.write(name, packed[name])
            if report is not None:
                report(done, len(ordered))
    return writer.nbytes
