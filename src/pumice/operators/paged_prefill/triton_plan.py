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
from pumice.operators.triton.plan import Config, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target

_MIXED = 64  # rows of a tile up to which keys of a sequence with few rows come from memory in time


_MOST_SPARE = 8  # shares that tiles with rows may have for those without


def _unpacked(tile: Config) -> dict[str, int]:
    return {key: value for key, value in tile.items() if key != "PACK"}


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
        short = [_unpacked(tile) for tile in short_tiles(target, width)]
        long = [
            _unpacked(tile)
            for tile in fitting(target, long_tiles(target, width), dim, dim_v)
            if tile["BLOCK_M"] >= group
        ]
        rows = cdiv(tokens, sequences) * group
        fit = [tile for tile in short if tile["BLOCK_M"] >= max(group, rows)] or short[-1:]
        if rows > _MIXED:
            tiles = long
        else:
            tiles = fit + long[:2]
            if sequences > 1:
                # A batch of new tokens and of one chunk that has nearly all rows: tiles for the
                # chunk, of so few rows that memory still decides for a token alone.
                wanted = max(min(next_power_of_2(tokens * group), _MIXED), next_power_of_2(group))
                tiles = [tile for tile in (*long, *fit) if tile["BLOCK_M"] == wanted] + tiles
                tiles = [tile for at, tile in enumerate(tiles) if tile not in tiles[:at]]
        tiles = tiles or [{**short[-1], "BLOCK_M": 128}]
        found: list[Config] = []
        measured = (tiles[0], fit[0]) if rows <= _MIXED else tiles[:1]  # with more shares
        for tile in tiles:
            programs = kv_heads * (tokens // (tile["BLOCK_M"] // group) + sequences)
            counts = split_counts(problem, target, programs)
            found += [{**tile, "SPLITS": count} for count in counts[: 3 if tile in measured else 1]]
        if sequences > 1 and rows <= _MIXED:
            # In a batch padded with empty sequences most tiles have no rows.
            whole = max(tokens // (tiles[0]["BLOCK_M"] // group), 1)
            most = min(_MOST_SPARE, (whole + sequences) // whole)
            if most > 1:
                spare = {**tiles[0], "SPLITS": 1 << (most.bit_length() - 1), "SPARE": 1}
                found.insert(0 if most == _MOST_SPARE else 1, spare)
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return paged_plan(problem, target, config)
