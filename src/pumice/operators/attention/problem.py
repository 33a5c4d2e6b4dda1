"""What an attention call has compiled in, and the sizes of register tiles on a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.operators.quantized import CodeForm, code_form
from pumice.operators.tir.quantize_group import FLOAT, QUANTIZED
from pumice.targets import Target

UNIT = 32  # keys that are handled together: a block of the cache, or a part of one


@dataclass(frozen=True)
class Problem:
    """Static sizes. A *row* is a query of one head; the `group` heads that share a kv head are rows
    of one tile."""

    heads: int
    kv_heads: int
    dim: int
    block_size: int
    scale: float
    window: int | None
    softcap: float | None
    form: CodeForm | None  # of a quantized output
    lanes: int  # float32 lanes of a vector register
    registers: int  # accumulators that fit the register file

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def logit_scale(self) -> float:
        """Scale of q·k. Softmax is taken to base 2, so log2(e) is part of it unless a soft cap
        stands between."""
        return self.scale if self.softcap else self.scale * math.log2(math.e)

    def parameters(self) -> dict[str, str]:
        return QUANTIZED if self.form else FLOAT

    def symbol_parts(self) -> dict[str, Any]:
        return {
            "q": self.heads, "k": self.kv_heads, "d": self.dim, "b": self.block_size,
            "scale": self.scale, "window": self.window, "cap": self.softcap, "quantized": self.form,
        }  # fmt: skip


def read_problem(attrs: Mapping[str, Any], target: Target) -> Problem:
    """The problem that a call's attributes describe."""
    dim = int(attrs["head_dim"])
    window, softcap = attrs.get("window"), attrs.get("softcap")
    return Problem(
        heads=int(attrs["heads"]),
        kv_heads=int(attrs["kv_heads"]),
        dim=dim,
        block_size=int(attrs["block_size"]),
        scale=float(attrs.get("scale", dim**-0.5)),
        window=int(window) if window else None,
        softcap=float(softcap) if softcap else None,
        form=code_form(attrs),
        lanes=target.lanes,
        # 16 registers on AVX2, 32 on AVX-512 and Neon; a quarter is left to operands.
        registers=12 if target.vector_bits == 256 else 24,
    )
