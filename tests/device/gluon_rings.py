"""What Hopper's attention kernels use of Gluon, as NumPy: rings of shared memory that the copy
engine fills box by box, tensors of several axes for it, functions that only a compiler needs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from gluon_numpy import Pointer, Shared, Tensor, poison, tensor
from gluon_warps import Warps

COLUMNS = 64  # the copy engine's swizzle keeps these together: 128 bytes


class Boxes:
    """A ring [slots, rows, columns] as shared memory holds it: of a slot first all rows of 64
    columns, then those of the next."""

    def __init__(self, ring: Ring, shape: Any) -> None:
        self.values, (_, *self.box) = ring.values, [int(n) for n in shape]
        assert self.box[-1] == COLUMNS

    def index(self, place: Any) -> Shared:
        _, rows, columns = self.values.shape
        height = math.prod(self.box[:-1])
        groups = rows // height
        slot, rest = divmod(int(place), columns // COLUMNS * groups)
        part, group = divmod(rest, groups)
        found = self.values[slot, group * height :][:height, part * COLUMNS :][:, :COLUMNS]
        return Shared(found.reshape(self.box))


class Ring(Shared):
    layout = None

    @property
    def dtype(self) -> Any:
        return self.values.dtype


class Descriptor:
    """A tensor of some axes, for the copy engine."""

    layout = None

    def __init__(self, base: Pointer, shape: Any, strides: Any, block: Any, layout: Any) -> None:
        assert all(stride * base.memory.itemsize % 16 == 0 for stride in strides[:-1])
        assert strides[-1] == 1 and len(shape) == len(strides) == len(block) <= 5
        self.base, self.shape, self.strides = base, shape, strides
        self.block_shape, self.dtype = [int(n) for n in block], base.memory.dtype

    def at(self, *start: int) -> tuple[Pointer, Any]:
        places = np.indices(self.block_shape)
        offset: Any = 0
        inside: Any = True
        for axis, first in enumerate(start):
            place = int(first) + places[axis]
            inside = inside & (place >= 0) & (place < self.shape[axis])
            offset = offset + place.astype(np.int64) * self.strides[axis]
        return self.base + offset, inside


class Attention(Warps):
    """Gluon for Hopper with what attention uses."""

    exp2, log2 = np.exp2, np.log2

    def stands(self) -> dict[str, Any]:
        names = super().stands()
        tma = SimpleNamespace(make_tensor_descriptor=Descriptor)
        return names | {
            "tma": tma, "COLUMNS": COLUMNS, "CONSUMERS": 2, "begin_copy": self.copy_shared,
            "reinterpret": self.reinterpret,
            "fresh": lambda values: values, "kept": lambda parameter, start: parameter,
            "advance": self.advance, "await_turn": lambda _: None, "give_turn": lambda _: None,
        }  # fmt: skip

    @staticmethod
    def reinterpret(ring: Ring, dtype: Any, shape: Any, layout: Any) -> Any:
        if shape[-1] == COLUMNS:
            return Boxes(ring, shape)
        count = math.prod(int(n) for n in shape)
        return Ring(ring.values.reshape(-1).view(dtype)[:count].reshape(shape))

    @staticmethod
    def advance(slot: Any, phase: Any, stages: int) -> tuple[Any, Any]:
        return (0, phase ^ 1) if slot + 1 == stages else (slot + 1, phase)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Tensor:
        return tensor(np.where(condition, a, b))

    @staticmethod
    def max(value: Any, axis: int) -> Tensor:
        return tensor(value.max(axis))

    @staticmethod
    def num_warps() -> int:
        return 1

    def program_id(self, axis: int) -> Any:
        return tensor(np.int32(super().program_id(axis)))

    def allocate_shared_memory(self, dtype: Any, shape: Any, layout: Any) -> Shared:
        return Ring(super().allocate_shared_memory(dtype, shape, layout).values)

    def copy_shared(self, buffer: Shared, pointer: Pointer, mask: Any) -> None:
        """Zeros where the mask is false."""
        poison(buffer.values)
        self.begun.append(lambda: buffer.store(pointer.read(mask, 0)))
