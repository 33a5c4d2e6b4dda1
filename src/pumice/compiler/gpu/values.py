"""A tensor argument of a call: where its bytes are, and its spec."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pumice.artifact import BufferRef
from pumice.dtypes import itemsize
from pumice.operators.triton.plan import TensorSpec

ALIGNMENT = 256  # bytes, of every tensor of the arena and of the weights


@dataclass(frozen=True)
class Value:
    """space and name as in `BufferRef`; for the arena, name is the tensor's and its offset is added
    when the arena is laid out. offset: bytes into it."""

    space: str
    name: str
    spec: TensorSpec
    offset: int = 0
    layer: int = 0

    def columns(self, start: int, count: int) -> Value:
        """Columns start … start + count − 1 of a matrix, as a view."""
        rows, _ = self.spec.shape
        size = itemsize(self.spec.dtype)
        offset = self.offset + start * size
        spec = TensorSpec((rows, count), self.spec.dtype, self.spec.stride, offset % 16 == 0)
        return replace(self, spec=spec, offset=offset)

    def heads(self, count: int) -> Value:
        """A matrix [T, count·D] as [T, count, D]."""
        rows, width = self.spec.shape
        dim = width // count
        strides = (self.spec.stride[0], dim, 1)
        return replace(
            self, spec=TensorSpec((rows, count, dim), self.spec.dtype, strides, self.spec.aligned)
        )

    def ref(self, offsets: dict[str, int]) -> BufferRef:
        """As an artifact's launch has it. offsets: of the arena's tensors."""
        if self.space == "arena":
            return BufferRef("arena", offset=offsets[self.name] + self.offset)
        return BufferRef(self.space, self.name, offset=self.offset, layer=self.layer)
