"""The table of weight formats."""

from __future__ import annotations

from pumice.errors import UnsupportedError, UsageError
from pumice.quantization import mlc
from pumice.quantization.base import QuantFormat
from pumice.quantization.gguf_families import GGUF_BLOCKS


def _gguf(
    name: str, bits: int, group: int = 32, *, has_min: bool = False, zero: int = 0
) -> QuantFormat:
    dtype = "float32" if name.endswith("_k") else "float16"
    return QuantFormat(
        name,
        bits,
        group,
        has_min=has_min,
        zero=zero,
        scale_dtype=dtype,
        gguf_type=GGUF_BLOCKS[name][0],
    )


F32 = QuantFormat("f32", 32, 1, affine=False, dense_dtype="float32", gguf_type=0)
F16 = QuantFormat("f16", 16, 1, affine=False, dense_dtype="float16", gguf_type=1)
BF16 = QuantFormat("bf16", 16, 1, affine=False, dense_dtype="bfloat16", gguf_type=30)

FORMATS: tuple[QuantFormat, ...] = (
    F32, F16, BF16,
    QuantFormat("q4f16_1", 4, 32, zero=7, quantize=mlc.quantize_q4f16_1),
    QuantFormat("q4f16_1_min", 4, 32, has_min=True, quantize=mlc.quantize_q4f16_1_min),
    QuantFormat("q8f16", 8, 32, zero=128, quantize=mlc.quantize_q8f16),
    _gguf("q4_0", 4, zero=8),
    _gguf("q4_1", 4, has_min=True),
    _gguf("q5_0", 5, zero=16),
    _gguf("q5_1", 5, has_min=True),
    _gguf("q8_0", 8, zero=128),
    _gguf("q2_k", 2, 16, has_min=True),
    _gguf("q3_k", 3, 16, zero=4),
    _gguf("q4_k", 4, has_min=True),
    _gguf("q5_k", 5, has_min=True),
    _gguf("q6_k", 6, 16, zero=32),
)  # fmt: skip

#: GGML type numbers that exist but are not read here, for a clear message.
OTHER_GGML_TYPES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


def get_format(name: str) -> QuantFormat:
    """The format of that name; UsageError lists the known ones."""
    for fmt in FORMATS:
        if fmt.name == name.lower():
            return fmt
    raise UsageError(f"format {name!r} is unknown; known: {', '.join(f.name for f in FORMATS)}")


def quantizable() -> tuple[str, ...]:
    """Names of the formats that float weights can be turned into."""
    return tuple(f.name for f in FORMATS if f.quantize is not None or not f.affine)


def by_gguf_type(number: int) -> QuantFormat:
    """The format of a GGML type number; UnsupportedError names it and the known ones."""
    for fmt in FORMATS:
        if fmt.gguf_type == number:
            return fmt
    known = ", ".join(f.name.upper() for f in FORMATS if f.gguf_type is not None)
    name = OTHER_GGML_TYPES.get(number, "unknown to this version")
    raise UnsupportedError(f"GGML tensor type {number} ({name}) cannot be read; known: {known}")
