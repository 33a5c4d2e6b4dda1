"""CPU targets: one row a feature level, not a product. A product picks the best row that it
satisfies."""

from __future__ import annotations

from pumice.targets.target import Target

_X86 = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"


def _llvm(triple: str, cpu: str, *attributes: str) -> dict[str, object]:
    keys: dict[str, object] = {"kind": "llvm", "mtriple": triple, "mcpu": cpu}
    if attributes:
        keys["mattr"] = list(attributes)
    return keys


# Ordered best first: detection takes the first row whose features are all there.
CPU_TARGETS: tuple[Target, ...] = (
    Target(
        name="x86-64-v4-vnni", api="cpu", arch="icelake-server",
        description="AVX-512 with VNNI (Ice Lake and later Xeons, Zen 4 and later)",
        features=frozenset({"avx2", "fma", "f16c", "avx512", "vnni"}), vector_bits=512,
        llvm=_llvm(_X86, "x86-64-v4", "+avx512vnni", "-prefer-256-bit"),
    ),
    Target(
        name="x86-64-v3-avxvnni", api="cpu", arch="alderlake",
        description="AVX2 with 256-bit VNNI (Alder Lake and later Core processors)",
        features=frozenset({"avx2", "fma", "f16c", "avxvnni"}), vector_bits=256,
        llvm=_llvm(_X86, "x86-64-v3", "+avxvnni"),
    ),
    Target(
        name="x86-64-v3", api="cpu", arch="x86-64-v3",
        description="AVX2 (Haswell and later, Zen 1 to 3)",
        features=frozenset({"avx2", "fma", "f16c"}), vector_bits=256,
        llvm=_llvm(_X86, "x86-64-v3"),
    ),
    Target(
        name="armv8.2-dotprod", api="cpu", arch="armv8.2-a",
        description="Arm with dot products and fp16 (Neoverse N1 and later, Cortex-A76 and later)",
        features=frozenset({"neon", "dotprod", "fp16"}), vector_bits=128,
        llvm=_llvm(_ARM, "generic", "+v8.2a", "+neon", "+dotprod", "+fullfp16"),
    ),
)  # fmt: skip
