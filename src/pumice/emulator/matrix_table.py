"""What each matrix instruction of AMD's GPUs multiplies: shapes, element types, sparsity.

    V_WMMA_F32_16X16X16_F16           gfx11, gfx12       D = A·B + C
    V_SWMMAC_F32_16X16X32_F16         gfx12              A has 2 of every 4 values along K
    V_MFMA_F32_32X32X4_2B_F16         gfx90a … gfx950    2 blocks: as many independent products
    V_SMFMAC_F32_16X16X32_F16         gfx942, gfx950     A has 2 of every 4 values along K
    V_MFMA_SCALE_F32_16X16X128_F8F6F4 gfx950             8, 6 or 4 bits, a scale per 32 values of K

A name holds everything but the architecture's choice of FP8 (FNUZ on gfx942, OCP's elsewhere), so
the table is a parser. LLVM's older spellings (V_MFMA_F32_32X32X8BF16_1K) parse too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from pumice.errors import UnsupportedError

FLOAT_TYPES = ("f64", "f32", "xf32", "f16", "bf16", "fp8", "bf8")
INTEGER_TYPES = ("i8", "iu8", "iu4")
BITS = MappingProxyType(
    {
        "f64": 64,
        "f32": 32,
        "xf32": 32,
        "i32": 32,
        "f16": 16,
        "bf16": 16,
        "fp8": 8,
        "bf8": 8,
        "i8": 8,
        "iu8": 8,
        "iu4": 4,
        "f8f6f4": 8,
    }
)
# CBSZ (of A) and BLGP (of B) of the F8F6F4 instructions: element formats of numbers.FORMATS.
F8F6F4 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")

# gfx90a's opcodes that mean something else in the later architectures' tables.
GFX90A_OPCODES = MappingProxyType(
    {
        84: "V_MFMA_I32_32X32X8_I8",
        85: "V_MFMA_I32_16X16X16_I8",
        99: "V_MFMA_F32_32X32X4_2B_BF16",
        100: "V_MFMA_F32_16X16X4_4B_BF16",
        101: "V_MFMA_F32_4X4X4_16B_BF16",
        102: "V_MFMA_F32_32X32X8_BF16",
        103: "V_MFMA_F32_16X16X16_BF16",
        104: "V_MFMA_F32_32X32X2_2B_BF16",
        105: "V_MFMA_F32_16X16X2_4B_BF16",
        107: "V_MFMA_F32_4X4X2_16B_BF16",
        108: "V_MFMA_F32_32X32X4_BF16",
        109: "V_MFMA_F32_16X16X8_BF16",
    }
)

_NAME = re.compile(
    r"v_(?P<kind>wmma|swmmac|mfma|mfma_scale|smfmac)_(?P<out>[a-z]+\d+)_"
    r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_?(?:(?P<blocks>\d+)b_)?"
    r"(?P<a>f8f6f4|xf32|f64|f32|f16|bf16|fp8|bf8|iu8|iu4|i8)(?:_(?P<b>fp8|bf8))?(?P<old>_1k)?"
)
# Blocks where a name leaves them out (CDNA2's spellings): type, M, K → blocks.
_UNNAMED_BLOCKS = MappingProxyType(
    {
        ("f32", 32, 1): 2,
        ("f32", 16, 1): 4,
        ("f32", 4, 1): 16,
        ("f16", 32, 4): 2,
        ("f16", 16, 4): 4,
        ("f16", 4, 4): 16,
        ("i8", 32, 4): 2,
        ("i8", 16, 4): 4,
        ("i8", 4, 4): 16,
        ("bf16", 32, 2): 2,
        ("bf16", 16, 2): 4,
        ("bf16", 4, 2): 16,
        ("bf16_1k", 32, 4): 2,
        ("bf16_1k", 16, 4): 4,
        ("bf16_1k", 4, 4): 16,
        ("f64", 4, 4): 4,
    }
)


@dataclass(frozen=True)
class MatrixInstruction:
    """D[blocks, m, n] = A[blocks, m, k] · B[blocks, k, n] + C, by one wave.

    kind: "wmma", "swmmac", "mfma" or "smfmac". a, b, out: element types; `out` is C's and D's.
    sparse: A holds k/2 values a row and src2 holds their places, 2 bits each.
    """

    kind: str
    out: str
    m: int
    n: int
    k: int
    blocks: int
    a: str
    b: str
    scaled: bool = False

    @property
    def sparse(self) -> bool:
        return self.kind in ("swmmac", "smfmac")

    @property
    def integer(self) -> bool:
        return self.out == "i32"


@lru_cache(maxsize=512)
def instruction(mnemonic: str) -> MatrixInstruction:
    """The instruction of a mnemonic, in any case, as ISA documents and LLVM spell it."""
    match = _NAME.fullmatch(mnemonic.lower())
    if match is None:
        raise UnsupportedError(
            f"matrix instruction {mnemonic!r} is not known; allowed: V_WMMA_*, V_SWMMAC_*, "
            "V_MFMA_* and V_SMFMAC_* of gfx11, gfx12, gfx90a, gfx942 and gfx950"
        )
    kind, out, a = match["kind"], match["out"], match["a"]
    m, n, k = int(match["m"]), int(match["n"]), int(match["k"])
    blocks = int(match["blocks"] or 0)
    if blocks == 0:
        blocks = _UNNAMED_BLOCKS.get((a + (match["old"] or ""), m, k), 1) if kind == "mfma" else 1
    return MatrixInstruction(
        "mfma" if kind == "mfma_scale" else kind,
        out,
        m,
        n,
        k,
        blocks,
        a,
        match["b"] or a,
        scaled=kind == "mfma_scale",
    )
