"""A GPU artifact's manifest of one layer, without files: for costs and predictions."""

from __future__ import annotations

from pumice.artifact import (
    FILL,
    BufferRef,
    CacheSpec,
    Expr,
    KernelRecord,
    Launch,
    Manifest,
    ModelInfo,
    Plan,
)

LAYERS, BLOCK, HEADS, DIM, WIDTH, VOCABULARY = 3, 16, 4, 64, 256, 1000
WEIGHT = WIDTH * WIDTH // 2 + WIDTH * WIDTH // 32 * 2  # bytes of a 4-bit matrix with its scales
KEY = 2 * HEADS * DIM * 2  # bytes of a key and its value

GEMV = KernelRecord(
    "gemv_1", "gemm_w4", "gemm_w4.triton.gemv", "measured", {"rows": 4}, threads=64,
    resources={"vgprs": 40, "spills": 0}, shared_bytes=64,
)  # fmt: skip
NORM = KernelRecord("norm_1", "norm", "norm.triton.rows", "first", threads=256)
SPLIT = KernelRecord(
    "attention_1", "paged_attention", "paged_attention.triton.split", "first", threads=128,
    shared_bytes=32768, resources={"vgprs": 100, "spills": 0},
)  # fmt: skip
COMBINE = KernelRecord("combine_1", "paged_attention", "paged_attention.triton.split", "first",
                       threads=32)  # fmt: skip


def _plan(entry: str, tokens: int, sequences: int, blocks: int) -> Plan:
    keys: Expr = ["*", "K", 4 * HEADS * DIM]
    if entry == "extend":
        keys = ["*", keys, tokens]
    launches = []
    for layer in range(LAYERS):
        at = f"layers.{layer}"
        launches += [
            Launch("norm_1", (), f"rms_norm model.{at}.norm.weight", (tokens, 1, 1),
                   activation_bytes=12 * WIDTH * tokens),
            Launch("gemv_1", (), f"linear model.{at}.proj.weight", (WIDTH // 4, 1, 1), WEIGHT,
                   2 * tokens * WIDTH * WIDTH, 4 * WIDTH * tokens),
            Launch(FILL, (BufferRef("arena"), 64, 0), "attention"),
            Launch("attention_1", (), "attention", (HEADS * sequences, 2, 1), ["*", "K", KEY], keys,
                   2 * WIDTH * tokens),
            Launch("combine_1", (), "attention", (tokens, 1, 1)),
        ]  # fmt: skip
    bounds = {"T": tokens, "S": sequences, "M": blocks, "R": sequences}
    return Plan(tuple(launches), 1 << 20, bounds, BufferRef("arena"))


def manifest(target: str = "gfx1100", api: str = "rocm", window: int | None = None) -> Manifest:
    shapes = [("decode", n, n, m) for n in (1, 4) for m in (8, 64)]
    shapes += [("extend", n, 1, m) for n in (16, 64) for m in (8, 64)]
    return Manifest(
        "0",
        {"name": target, "api": api, "arch": target},
        ModelInfo("toy", "llama", VOCABULARY, 1024, 10**6, 600_000, LAYERS * WEIGHT, "q4f16_1"),
        CacheSpec(LAYERS, BLOCK, (BLOCK, HEADS, DIM), (BLOCK, HEADS, DIM), window=window),
        {f"{e}@{t}x{s}x{m}": _plan(e, t, s, m) for e, t, s, m in shapes},
        (GEMV, NORM, SPLIT, COMBINE),
        memory={"arena": 1 << 20},
    )
