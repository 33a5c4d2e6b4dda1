"""What a launch may have done wrong, found while it runs.

Kinds of fault: "out-of-bounds", "misaligned", "uninitialized-lds", "race", "divergent-barrier",
"nan" (NaN out of finite numbers), "nan-from-infinity" (infinity minus infinity and the like).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.state import Array, State

_LIMIT = 100  # faults kept; more are only counted


@dataclass(frozen=True)
class Fault:
    """One finding. `line` is "file:line" of the source when the code object has debug info."""

    kind: str
    message: str
    kernel: str
    instruction: str
    pc: int
    line: str | None
    workgroup: tuple[int, int, int]
    wave: int
    lane: int

    def __str__(self) -> str:
        place = self.line or f"byte 0x{self.pc:x}"
        return (
            f"{self.kind}: {self.message}; kernel {self.kernel}, {place}, {self.instruction}, "
            f"workgroup {self.workgroup}, wave {self.wave}, lane {self.lane}"
        )


@dataclass
class Watch:
    """Collects faults. `where` gives (workgroup, wave in it) of a wave of the batch."""

    kernel: str
    state: State
    line_of: Callable[[int], str | None]
    where: Callable[[int], tuple[tuple[int, int, int], int]]
    faults: list[Fault] = field(default_factory=list)
    count: int = 0
    invalid: bool = False  # set by NumPy when an operation made a NaN out of numbers
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def write(self, _message: str) -> None:
        """NumPy calls this (errstate "log") for every invalid operation."""
        self.invalid = True

    def report(
        self,
        kind: str,
        inst: Instruction,
        flat: Array,
        describe: str | Callable[[int], str],
    ) -> None:
        """Add a fault for the first of the flat lane numbers; one an instruction and kind.

        describe: the message, or a function of a place in `flat` that makes it.
        """
        if not flat.size:
            return
        self.count += int(flat.size)
        key = (kind, inst.pc)
        if key in self._seen or len(self.faults) >= _LIMIT:
            return
        self._seen.add(key)
        wave, lane = divmod(int(flat[0]), self.state.lanes)
        workgroup, number = self.where(wave)
        text = describe if isinstance(describe, str) else describe(0)
        self.faults.append(
            Fault(
                kind, text, self.kernel, str(inst), inst.pc, self.line_of(inst.pc),
                workgroup, number, lane,
            )
        )  # fmt: skip

    def nan(self, inst: Instruction, result: Any, values: list[Any]) -> None:
        """Look where a float operation made a NaN in a lane whose inputs held none."""
        self.invalid = False
        state = self.state
        shape = (state.waves, state.lanes)
        made = np.isnan(np.broadcast_to(result, shape))
        if state.dirty:
            state.refresh()
        if not state.full:
            made = made & state.mask
        finite = np.ones(shape, bool)
        for value in values:
            if np.issubdtype(np.asarray(value).dtype, np.floating):
                made = made & ~np.isnan(value)
                finite = finite & np.isfinite(value)
        if not made.any():
            return
        for kind, lanes in (("nan", made & finite), ("nan-from-infinity", made & ~finite)):
            flat = np.flatnonzero(lanes)
            self.report(kind, inst, flat, self._numbers(values, flat, shape))

    @staticmethod
    def _numbers(values: list[Any], flat: Array, shape: tuple[int, int]) -> Callable[[int], str]:
        def describe(at: int) -> str:
            found = [np.broadcast_to(v, shape).reshape(-1)[flat[at]] for v in values]
            return f"NaN out of {', '.join(f'{float(v):g}' for v in found)}"

        return describe
