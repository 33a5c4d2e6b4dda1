"""The registers of many waves that run together, as NumPy arrays.

Vector registers are rows [waves, lanes]; scalar registers are columns [waves, 1], so an operation
of both broadcasts. `active` says which waves take part at the moment (those at the program counter
that is being executed), `mask` which lanes do (active and set in EXEC).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# An array [waves, lanes], a column [waves, 1] or a constant []: what operations take and give.
Values: TypeAlias = Any

VCC, M0_CDNA, NULL, M0_RDNA, EXEC = 106, 124, 124, 125, 126
ACC = 256  # first row of the accumulation registers
SGPRS = 128
_VIEWS = {
    "u32": np.uint32, "i32": np.int32, "f32": np.float32,
    "u16": np.uint16, "i16": np.int16, "f16": np.float16,
    "u64": np.uint64, "i64": np.int64, "f64": np.float64,
}  # fmt: skip


class State:
    """Registers of `waves` waves of `lanes` lanes each.

    v: uint32 [rows, waves, lanes]; s: uint32 [waves, 128]; scc: bool [waves, 1].
    """

    def __init__(self, arch: str, isa: str, waves: int, lanes: int, vgprs: int) -> None:
        self.arch = arch
        self.isa = isa
        self.waves = waves
        self.lanes = lanes
        self.cdna = isa == "cdna"
        self.v: NDArray[np.uint32] = np.zeros((vgprs, waves, lanes), np.uint32)
        self.s: NDArray[np.uint32] = np.zeros((waves, SGPRS), np.uint32)
        self.s64: NDArray[np.uint64] = self.s.view(np.uint64)
        self.scc: NDArray[np.bool_] = np.zeros((waves, 1), bool)
        self.active: NDArray[np.bool_] = np.ones((waves, 1), bool)
        self.all_active = True
        self.mask: NDArray[np.bool_] = np.ones((waves, lanes), bool)
        self.full = True  # every lane of every wave takes part
        self.every: NDArray[np.int64] = np.arange(waves * lanes)  # flat numbers of all lanes
        self.dirty = True  # EXEC or `active` changed since `mask` was made
        self.flush32 = False  # denormal float32 results become zero
        self.fp16_overflow = False  # MODE.FP16_OVFL: conversions to FP8 saturate
        self._rows: dict[tuple[str, int], Array] = {}

    # -- vector registers -------------------------------------------------------------------------

    def row(self, kind: str, index: int) -> Array:
        """Vector register `index` as [waves, lanes] of a 32-bit kind."""
        key = (kind, index)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self.v[index].view(_VIEWS[kind])
        return found

    def half(self, kind: str, index: int, high: int) -> Array:
        """The low (0) or high (1) 16 bits of a vector register."""
        view: Array = self.v[index].view(_VIEWS[kind])
        return view[:, high::2]

    def column(self, kind: str, index: int) -> Array:
        """Scalar register `index` (a pair for 64-bit kinds) as [waves, 1]."""
        key = (kind, -1 - index)
        found = self._rows.get(key)
        if found is None:
            if kind.endswith("64"):
                wide: Array = self.s64.view(_VIEWS[kind])
                found = wide[:, index // 2 : index // 2 + 1]
            else:
                view: Array = self.s.view(_VIEWS[kind])
                found = view[:, index : index + 1]
            self._rows[key] = found
        return found

    def half_column(self, kind: str, index: int, high: int) -> Array:
        view: Array = self.s.view(_VIEWS[kind])
        return view[:, 2 * index + high : 2 * index + high + 1]

    # -- masks ------------------------------------------------------------------------------------

    def lanes_of(self, register: int) -> NDArray[np.bool_]:
        """The bits of a scalar register (a pair in wave64) as bool [waves, lanes]."""
        if self.lanes == 32:
            packed = np.ascontiguousarray(self.s[:, register])
        else:
            packed = np.ascontiguousarray(self.s64[:, register // 2])
        bits = np.unpackbits(packed.view(np.uint8), bitorder="little")
        return bits.view(np.bool_).reshape(self.waves, self.lanes)

    def pack(self, lanes: NDArray[np.bool_]) -> Array:
        """bool [waves, lanes] → uint32 or uint64 [waves, 1]."""
        packed = np.packbits(lanes.reshape(-1), bitorder="little")
        kind = np.uint32 if self.lanes == 32 else np.uint64
        return packed.view(kind).reshape(self.waves, 1)

    def refresh(self) -> None:
        """Make `mask` and `full` anew after a change of EXEC or of the active waves."""
        self.mask = self.lanes_of(EXEC)
        if not self.all_active:
            self.mask &= self.active
        self.full = bool(self.mask.all())
        self.dirty = False

    def put_scalar(self, register: int, value: Any) -> None:
        """Write a scalar register of the active waves; the null register swallows it."""
        if self.all_active:
            self.s[:, register : register + 1] = value
        else:
            np.copyto(self.s[:, register : register + 1], value, where=self.active)
        if register >= EXEC:
            self.dirty = True
        elif register == NULL and not self.cdna:
            self.s[:, NULL] = 0

    def put_scalar64(self, register: int, value: Any) -> None:
        pair = register // 2
        if self.all_active:
            self.s64[:, pair : pair + 1] = value
        else:
            np.copyto(self.s64[:, pair : pair + 1], value, where=self.active)
        if register >= EXEC:
            self.dirty = True
        elif register == NULL and not self.cdna:
            self.s[:, NULL] = 0

    def put_lanes(self, register: int, lanes: NDArray[np.bool_]) -> None:
        """Write a lane mask; lanes that do not take part become 0."""
        if lanes.shape != self.mask.shape:
            lanes = np.broadcast_to(lanes, self.mask.shape)
        if self.dirty:
            self.refresh()
        packed = self.pack(lanes if self.full else lanes & self.mask)
        if self.lanes == 32:
            self.put_scalar(register, packed)
        else:
            self.put_scalar64(register, packed)

    def put_scc(self, value: Any) -> None:
        if self.all_active:
            self.scc[...] = value
        else:
            np.copyto(self.scc, value, where=self.active)

    def set_active(self, active: NDArray[np.bool_] | None) -> None:
        """The waves [waves] that execute from now on; None for all."""
        if active is None:
            if not self.all_active:
                self.all_active = True
                self.active[...] = True
                self.dirty = True
            return
        self.active = active.reshape(-1, 1)
        self.all_active = False
        self.dirty = True
