# mypy: ignore-errors
"""Loads into the second-level cache of an NVIDIA GPU, which nobody waits for."""

import triton
import triton.language as tl


@triton.jit
def to_cache_line(at):
    """Asks for the lines of these addresses in the second-level cache; waits for nothing."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@triton.jit
def ask_for_tile(
    w, scales, row, words, scale_columns, LINES: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """A tile's words and scales to the cache. LINES: of 128 bytes, of a row's words."""
    line = tl.minimum(tl.arange(0, LINES) * 32, words - 1)
    to_cache_line(w + (row[:, None] * words + line[None, :]))
    SCALE_LINES: tl.constexpr = max(1, LINES // 8)
    line = tl.minimum(tl.arange(0, SCALE_LINES) * 64, scale_columns - 1)
    to_cache_line(scales + (row[:, None] * scale_columns + line[None, :]))
