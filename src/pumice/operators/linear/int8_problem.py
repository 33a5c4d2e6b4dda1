"""What the loops of an int8 linear kernel share: sizes, code vectors, and how integer sums become
floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.linear.dot import DotUnit
from pumice.operators.linear.epilogue import Epilogue
from pumice.operators.tir.vector import cast, let, load, splat, splat_int
from pumice.quantization.base import QuantFormat

GROUP = 32  # activation group
WORDS = GROUP // 4  # 32-bit words of a group's codes


@dataclass(frozen=True)
class Problem:
    """Run-time values: groups, activation groups of a row; blocks, row blocks of the weight;
    inputs, always GROUP, but LLVM cannot know it.
    """

    k: Any
    fmt: QuantFormat
    rows: int
    unit: DotUnit
    planes: int
    epilogue: Epilogue
    groups: Any
    blocks: Any
    inputs: Any

    @property
    def subs(self) -> int:
        """Weight groups of an activation group."""
        return GROUP // self.fmt.group

    @property
    def zero(self) -> int:
        """What is subtracted from a prepared code of a symmetric format."""
        return self.fmt.zero - self.unit.zero_shift

    @property
    def needs_sums(self) -> bool:
        return self.fmt.has_min or self.zero != 0

    def unpack(self, block: Any, group: Any) -> list[Any]:
        """The 8 code vectors (4 k each) of a row block and activation group, in the order of k."""
        r, codes = self.rows, self.k["w.codes"]
        if self.fmt.code_bits == 8:
            base = let((block * self.groups + group) * (WORDS * r))
            return [let(load(codes, base + j * r, r)) for j in range(WORDS)]
        mask = splat_int(0x0F0F0F0F, r, "uint32")
        base = let((block * self.groups + group) * (WORDS // 2 * r))
        per = self.fmt.group // 8  # packed vectors of a weight group
        out: list[Any] = []
        for sub in range(self.subs):
            packed = [let(load(codes, base + (sub * per + j) * r, r)) for j in range(per)]
            out += [let(p & mask) for p in packed]
            out += [let((p >> splat_int(4, r, "uint32")) & mask) for p in packed]
        return out

    def scale(self, block: Any, group: Any, sub: int) -> tuple[Any, Any | None]:
        """(scales, what multiplies the code sum or None) of a weight group as float32 vectors.

        The second is −m for a format with minima, −zero·s for a symmetric one.
        """
        r = self.rows
        where = let((block * (self.groups * self.subs) + group * self.subs + sub) * r)
        scales = let(cast(load(self.k["w.scales"], where, r), "float32", r))
        if self.fmt.has_min:
            mins = cast(load(self.k["w.mins"], where, r), "float32", r)
            return scales, let(splat(-1.0, r) * mins)
        return scales, let(splat(float(-self.zero), r) * scales) if self.zero else None

    def word(self, token: Any, group: Any, plane: int, j: Any) -> Any:
        """Four activation codes in every lane."""
        per_group = WORDS * self.planes
        row = token * (self.groups * per_group)
        word = self.k["x_codes"][row + group * per_group + (plane * WORDS + j)]
        return let(T.broadcast(word, self.rows))

    def activation(self, token: Any, group: Any, sub: int) -> tuple[Any | None, Any | None]:
        """(scale, code sum or None) of an activation group in every lane; no scale where the row
        has one, which the epilogue multiplies by."""
        r = self.rows
        scale = None
        if self.planes == 1:
            scale = let(T.broadcast(self.k["x_scales"][token * self.groups + group], r))
        if not self.needs_sums:
            return scale, None
        where = token * (self.groups * self.subs) + group * self.subs + sub
        return scale, let(T.broadcast(self.k["x_sums"][where], r))

    def add(self, acc: Any, total: Any, weight: Any, activation: Any) -> Any:
        """acc + xs·(s·dot + c·isum), without xs where there is none."""
        scales, offsets = weight
        xs, sums = activation
        if xs is None:
            acc = T.fma(scales, cast(total, "float32", self.rows), acc)
            return acc if offsets is None else T.fma(offsets, sums, acc)
        value = scales * cast(total, "float32", self.rows)
        if offsets is not None:
            value = T.fma(offsets, sums, value)
        return T.fma(xs, value, acc)

    def widen(self, partial: Any, plane: int) -> Any:
        """A plane's partial sum as int32, times its weight."""
        return self.unit.widen(partial, 128 if plane < self.planes - 1 else 1)
