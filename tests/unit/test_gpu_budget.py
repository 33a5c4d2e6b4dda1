"""What a GPU's memory is given to, and the choice of a plan for a batch."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from pumice.artifact import BufferRef, CacheSpec, Manifest, ModelInfo, Plan
from pumice.errors import (
    ArtifactError,
    ContextLengthError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from pumice.runtime.devices.driver.memory import MemoryInfo
from pumice.runtime.gpu_budget import CachePlan, FixedNeed, headroom, plan_cache
from pumice.runtime.gpu_inputs import PackedInputs, write_batch
from pumice.runtime.gpu_load import runs_on
from pumice.runtime.gpu_plans import PlanShape, PlanTable
from pumice.runtime.step import StepBatch, StepLimits

GB = 10**9
LIMITS = StepLimits(10, 32, 4, 4, 2048, 32, 100)
NEED = FixedNeed(weights=4 * GB, arena=GB // 10, inputs=1 << 20, code=1 << 20)


def _plan(tokens: int, sequences: int, blocks: int, rows: int) -> Plan:
    bounds = {"T": tokens, "S": sequences, "M": blocks, "R": rows}
    return Plan((), 1024, bounds, BufferRef("arena"))


def manifest(*names: str, context: int = 2048) -> Manifest:
    """A block of the cache has 2 MiB, a token 64 KiB."""
    entries = {}
    for name in names:
        tokens, sequences, blocks = (int(n) for n in name.partition("@")[2].split("x"))
        entries[name] = _plan(tokens, sequences, blocks, sequences)
    return Manifest(
        pumice="0",
        target={"name": "gfx1100", "api": "rocm", "arch": "gfx1100", "features": []},
        model=ModelInfo("m", "llama", 10, context, 8 * GB, 4 * GB, 4 * GB, "q4f16_1"),
        cache=CacheSpec(16, 32, (32, 8, 128), (32, 8, 128)),
        entries=entries,
        kernels=(),
    )


MODEL = manifest("extend@32x4x64", "decode@4x4x64")
WIDEST = PlanShape(32, 4, 64, 4)


def budget(free: float, **asked: int) -> CachePlan:
    memory = MemoryInfo(int(free * GB), 24 * GB)
    return plan_cache(MODEL, WIDEST, memory, NEED, device="rocm:0", **asked)


def test_the_cache_takes_what_is_left_up_to_all_sequences() -> None:
    assert MODEL.cache.bytes_per_block() == 2 << 20
    assert budget(24).num_blocks == 4 * 64 + 1
    left = budget(4.85)
    spare = 4.85 * GB - headroom(MemoryInfo(0, 24 * GB)) - NEED.total
    assert left.num_blocks == spare // (2 << 20) < 64
    assert left.context_length == left.num_blocks * 32 < 2048
    assert "at most" in left.notes[0]
    assert budget(24, contexts=2).num_blocks == 2 * 64 + 1


def test_what_is_asked_for_is_what_one_gets() -> None:
    assert budget(24, context_length=1000).num_blocks == 32 + 1
    assert budget(24, context_length=1000).context_length == 1000
    assert budget(24, context_length=1000, contexts=3).num_blocks == 3 * 32 + 1
    assert budget(24, num_blocks=77).num_blocks == budget(24, num_blocks=77).least == 77
    assert budget(24, num_blocks=77).context_length == 2048


def test_too_little_memory_says_what_fits() -> None:
    with pytest.raises(OutOfMemoryError, match=r"weights 4.00.*4.85 of 24.00 GB are free") as error:
        budget(4.85, context_length=2048)
    fits = int(str(error.value.hint).split()[3].replace(",", ""))
    assert budget(4.85, context_length=fits).num_blocks * 32 == fits + 32
    with pytest.raises(OutOfMemoryError, match="rocm:0"):
        budget(4.85, context_length=fits + 33)
    with pytest.raises(OutOfMemoryError) as error:
        budget(3)
    assert "bits a parameter (these have 4.0)" in str(error.value.hint)
    with pytest.raises(OutOfMemoryError) as error:
        budget(0.5)
    assert "No format" in str(error.value.hint)


def test_a_cache_that_does_not_fit_is_told_what_does() -> None:
    with pytest.raises(OutOfMemoryError) as error:
        budget(24, num_blocks=10**12)
    told = re.search(r"A cache of ([\d,]+) tokens fits: serve --cache-tokens", str(error.value))
    assert told is not None
    most = int(told[1].replace(",", "")) // 32
    assert budget(24, num_blocks=most).num_blocks == most
    with pytest.raises(OutOfMemoryError):
        budget(24, num_blocks=most + 1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"context_length": 0}, "context is 0"),
        ({"num_blocks": 0}, "at least 1"),
    ],
)
def test_what_is_not_allowed(asked: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        budget(24, **asked)


def test_a_context_longer_than_the_model_s() -> None:
    with pytest.raises(ContextLengthError, match=r"2,049 .*2,048 are allowed, the model's own"):
        budget(24, context_length=2049)


def test_a_context_that_the_plans_do_not_hold() -> None:
    long = dataclasses.replace(MODEL.model, context_length=8192)
    memory = MemoryInfo(24 * GB, 24 * GB)
    with pytest.raises(ContextLengthError, match=r"compiled for \(the model has 8,192\)"):
        plan_cache(
            dataclasses.replace(MODEL, model=long), WIDEST, memory, NEED, device="d",
            context_length=4096,
        )  # fmt: skip


def test_a_smaller_cache_ends_at_the_least() -> None:
    plan: CachePlan | None = CachePlan(100, 90, 3200)
    assert plan is not None
    plan = plan.smaller(32)
    assert plan is not None and plan.num_blocks == 90 and plan.context_length == 2880
    assert "2,880 tokens instead of 3,200" in plan.notes[0]
    assert plan.smaller(32) is None


# Plans


def batch(counts: list[int], contexts: list[int], rows: int, columns: int = 64) -> StepBatch:
    tokens = sum(counts)
    start = np.cumsum([0, *counts]).astype(np.int32)
    table = np.zeros((len(counts), columns), np.int32)
    a, b, c = np.zeros((3, tokens), np.int32)
    return StepBatch(
        a, b, c, start, np.array(contexts, np.int32), table, np.arange(rows, dtype=np.int32)
    )


def test_the_smallest_plan_that_holds_a_batch() -> None:
    table = PlanTable(
        manifest(
            "extend@32x4x64", "extend@8x4x64", "decode@1x1x4", "decode@1x1x64", "decode@4x4x64",
            "extend@8x1x4",
        )
    )  # fmt: skip
    names = [
        table.choose(batch(*sizes), LIMITS).name
        for sizes in (
            ([1], [128], 1),
            ([1], [129], 1),
            ([1, 1], [5, 6], 2),
            ([1], [5], 0),
            ([7], [7], 1),
            ([7, 1], [7, 300], 2),
            ([9], [9], 1),
        )
    ]
    assert names == [
        "decode@1x1x4", "decode@1x1x64", "decode@4x4x64", "extend@8x1x4", "extend@8x1x4",
        "extend@8x4x64", "extend@32x4x64",
    ]  # fmt: skip
    assert table.widest == PlanShape(32, 4, 64, 4)
    with pytest.raises(UsageError, match=r"33 tokens.*max_tokens=32"):
        table.choose(batch([33], [33], 1), LIMITS)
    with pytest.raises(UnsupportedError, match="hidden states"):
        table.choose_embedding(batch([3], [3], 3), LIMITS, "m")


def test_bounds_that_differ_from_the_name() -> None:
    wrong = dataclasses.replace(MODEL, entries={"extend@8x1x4": _plan(8, 1, 5, 1)})
    with pytest.raises(ArtifactError, match="not those of its name"):
        PlanTable(wrong)
    with pytest.raises(ArtifactError, match="at least one extend"):
        PlanTable(manifest("decode@1x1x4"))


def test_arrays_of_a_plan_are_filled_up() -> None:
    layout = PackedInputs(PlanShape(5, 3, 2, 4))
    assert all(offset % 256 == 0 for offset in layout.offsets.values())
    memory = np.full(layout.nbytes, 0xAB, np.uint8)
    views = layout.views(memory)
    given = batch([2, 1], [40, 9], 2, columns=7)
    given.tokens[:], given.slots[:], given.sample_rows[:] = 9, 8, [1, 2]
    given.block_table[:] = np.arange(14).reshape(2, 7)
    write_batch(views, given)
    assert views["tokens"].tolist() == [9, 9, 9, 0, 0]
    assert views["slots"].tolist() == [8, 8, 8, -1, -1]
    assert views["query_start"].tolist() == [0, 2, 3, 3]
    assert views["context_len"].tolist() == [40, 9, 0]
    assert views["block_table"].tolist() == [[0, 1], [7, 8], [0, 0]]
    assert views["sample_rows"].tolist() == [1, 2, 0, 0]
    write_batch(views, dataclasses.replace(given, block_table=given.block_table[:, :1]))
    assert views["block_table"].tolist() == [[0, 0], [7, 0], [0, 0]]


@pytest.mark.parametrize(
    ("arch", "device", "fine"),
    [
        ("gfx1100", "gfx1100", True), ("gfx1100", "gfx1101", False), ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False), ("sm_80", "sm_90", False), ("sm_90", "sm_90", True),
        ("sm_100", "sm_103", False), ("sm_120", "sm_121", False),
    ],
)  # fmt: skip
def test_code_and_devices(arch: str, device: str, fine: bool) -> None:
    assert runs_on(arch, device) is fine
