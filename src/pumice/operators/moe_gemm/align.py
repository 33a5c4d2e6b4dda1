"""Launches that sort entries by expert."""

from __future__ import annotations

from pumice.operators.moe_gemm.align_triton import align_count, align_place, align_scan
from pumice.operators.triton.plan import Launch, TensorSpec, cdiv, next_power_of_2

_TILE = 4096  # elements of a program's largest tile
_EXPERTS = 16  # whose counts one program adds up


def most_blocks(entries: int, experts: int, rows: int) -> int:
    """Blocks of `rows` places that any distribution of entries over experts may need."""
    return (entries + min(experts, entries) * (rows - 1)) // rows


def align(
    entries: int, experts: int, rows: int, *, inverse: bool = False
) -> tuple[list[Launch], dict[str, TensorSpec]]:
    """The launches, and the workspaces they fill: order [blocks·rows] (an entry, or `entries` where
    there is none), owners [blocks] (each block's expert), used [1] (places in use); and with
    `inverse` places [entries] (an entry's place, unset where it has no expert here)."""
    blocks = most_blocks(entries, experts, rows)
    places = blocks * rows
    # About 512 programs, each of few steps: on its own a step takes a microsecond.
    chunk = max(64, min(1024, next_power_of_2(cdiv(entries, 512))))
    chunks = cdiv(entries, chunk)
    width = next_power_of_2(experts)
    sub = max(16, min(64, _TILE // width))
    many = max(8, min(64, _TILE // width))
    deep = min(_TILE // _EXPERTS, next_power_of_2(chunks))
    warps = 4 if sub * width >= 1024 else 1
    fill = cdiv(cdiv(places, chunks), 16) * 16
    sizes: dict[str, str | int | float] = {"ENTRIES": entries, "E": experts, "chunk": chunk}
    block = {"BE": width, "SUB": sub}
    launches = [
        Launch(
            align_count, (chunks, 1, 1),
            sizes | {"ids": "ids", "counts": "counts", "order": "order", "P": places, "fill": fill},
            {**block, "FILL": 256}, num_warps=warps, num_stages=1,
        ),
        Launch(
            align_scan, (cdiv(experts, _EXPERTS), 1, 1),
            {"counts": "counts", "totals": "totals", "chunks": chunks, "E": experts,
             **({"taken": "taken"} if inverse else {})},
            {"CB": deep, "EB": _EXPERTS, **({} if inverse else {"taken": None})},
            num_warps=4 if deep * _EXPERTS >= 1024 else 1, num_stages=1,
        ),
        Launch(
            align_place, (chunks, 1, 1),
            {"ids": "ids", "counts": "counts", "totals": "totals", "used": "used",
             "owners": "owners", "order": "order", "blocks": blocks,
             "share": cdiv(blocks, chunks), **sizes, **({"places": "places"} if inverse else {})},
            {**block, "BM": rows, "BB": many, **({} if inverse else {"places": None})},
            num_warps=warps, num_stages=1,
        ),
    ]  # fmt: skip
    noted = {}
    if inverse:
        noted = {"places": TensorSpec((entries,), "int32"), "taken": TensorSpec((2,), "int32")}
    return launches, noted | {
        "counts": TensorSpec((chunks, experts), "int32"),
        "totals": TensorSpec((experts,), "int32"),
        "owners": TensorSpec((blocks,), "int32"),
        "used": TensorSpec((1,), "int32"),
        "order": TensorSpec((places,), "int32"),
    }
