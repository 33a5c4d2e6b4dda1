"""The plan of attention of chunks over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.flash_attention.triton_plan import fitting, long_tiles, short_tiles
from pumice.operators.paged_attention.triton_plan import (
    paged_fault,
    paged_plan,
    split_counts,
    width_of,
)
from pumice.operators.triton.plan import Config, Plan, Problem, cdiv
from pumice.targets import Target


class PagedPrefill:
    """Tiles of queries times the heads of a group; few tiles share out their keys."""

    name = "paged_prefill.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        sequences = problem["context_len"].shape[0]
        if problem["block_table"].shape[0] != sequences:
            return (
                f"block_table has {problem['block_table'].shape[0]} rows, context_len {sequences}"
            )
        if problem["query_start"].shape != (sequences + 1,):
            return f"query_start is {problem['query_start'].shape}; it must be ({sequences + 1},)"
        return paged_fault(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        tokens, heads, dim = problem["q"].shape
        kv_heads, dim_v = problem["v_cache"].shape[2:]
        group, width = heads // kv_heads, width_of(problem)
        sequences = max(problem["context_len"].shape[0], 1)
        rows = cdiv(tokens, sequences) * group
        short = [
            {key: value for key, value in tile.items() if key != "PACK"}
            for tile in short_tiles(target, width)
        ]
        long = [
            {key: value for key, value in tile.items() if key != "PACK"}
            for tile in fitting(target, long_tiles(target, width), dim, dim_v)
        ]
        if rows > 64:
            tiles = [tile for tile in long if tile["BLOCK_M"] >= group]
        else:
            fit = [tile for tile in short if tile["BLOCK_M"] >= max(group, rows)]
            tiles = (fit or short[-1:]) + [tile for tile in long if tile["BLOCK_M"] >= group][:2]
        tiles = tiles or [{**long[0], "BLOCK_M": 128}]
        found: list[Config] = []
        for index, tile in enumerate(tiles):
            programs = kv_heads * (tokens // (tile["BLOCK_M"] // group) + sequences)
            counts = split_counts(problem, target, programs)
            found += [{**tile, "SPLITS": count} for count in counts[: 3 if index == 0 else 1]]
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return paged_plan(problem, target, config)
