"""How much of a GPU's memory the key/value cache takes, decided before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pumice.artifact import Manifest
from pumice.errors import OutOfMemoryError, UsageError
from pumice.runtime.devices.driver.memory import MemoryInfo
from pumice.runtime.gpu_inputs import PackedInputs
from pumice.runtime.gpu_kernels import code_bytes
from pumice.runtime.gpu_plans import PlanShape, PlanTable
from pumice.runtime.gpu_weights import WeightLayout
from pumice.runtime.memory import check_context

# What stays free: captured graphs, the driver's own needs, a desktop on the same card.
_HEADROOM_BYTES = 256 << 20
_HEADROOM_PART = 64  # of the device's memory, one in …
_LEAST_CONTEXT = 512  # tokens: with fewer, a model that could hold more is not loaded by itself


@dataclass(frozen=True)
class FixedNeed:
    """Bytes that a model takes whatever its cache: weights, arena, inputs, kernels' code."""

    weights: int
    arena: int
    inputs: int
    code: int

    @property
    def total(self) -> int:
        return self.weights + self.arena + self.inputs + self.code


def fixed_need(directory: Path, manifest: Manifest, plans: PlanTable) -> FixedNeed:
    """What a model takes on the device besides its cache."""
    return FixedNeed(
        weights=WeightLayout(manifest.weights).nbytes,
        arena=max(plan.arena_bytes for plan in manifest.entries.values()),
        inputs=max(PackedInputs(p.shape).nbytes for p in plans.all()),
        code=code_bytes(directory, manifest),
    )


@dataclass(frozen=True)
class CachePlan:
    """num_blocks may be made smaller, down to `least`, when the device then has less than it said.

    context_length: longest sequence, in tokens. notes: for a person.
    """

    num_blocks: int
    least: int
    context_length: int
    notes: tuple[str, ...] = ()

    def smaller(self, block_size: int) -> CachePlan | None:
        """The next plan to try when this one's allocation failed; None when there is none."""
        blocks = max(self.least, self.num_blocks * 7 // 8)
        if blocks == self.num_blocks:
            return None
        note = (
            f"the cache was made smaller, {blocks * block_size:,} tokens instead of "
            f"{self.num_blocks * block_size:,}: the device had less memory than its driver said"
        )
        context = min(self.context_length, blocks * block_size)
        return CachePlan(blocks, self.least, context, (*self.notes, note))


def headroom(memory: MemoryInfo) -> int:
    """Bytes that a model leaves free."""
    return _HEADROOM_BYTES + memory.total // _HEADROOM_PART


def longest_context(manifest: Manifest, widest: PlanShape) -> int:
    """Tokens: what both the model and the artifact's plans allow."""
    return min(manifest.model.context_length, widest.blocks * manifest.cache.block_size)


def plan_cache(
    manifest: Manifest,
    widest: PlanShape,
    memory: MemoryInfo,
    need: FixedNeed,
    *,
    device: str,
    num_blocks: int | None = None,
    context_length: int | None = None,
    contexts: int | None = None,
) -> CachePlan:
    """The cache of a model whose plans hold `widest`, on a device with that memory.

    num_blocks: exactly so many. Else context_length: as many contexts of that length as `contexts`
    says (1), as far as they fit. Else: what is left, up to `contexts` (all that run at once) of the
    longest. ContextLengthError for more than the model allows, OutOfMemoryError for what does not
    fit, with what would.
    """
    size, block_bytes = manifest.cache.block_size, manifest.cache.bytes_per_block()
    longest = longest_context(manifest, widest)
    if context_length is not None:
        own = longest == manifest.model.context_length
        check_context(
            context_length,
            longest,
            "the model's own"
            if own
            else "what the artifact was compiled for (the model has "
            f"{manifest.model.context_length:,})",
        )
    if num_blocks is not None and num_blocks < 1:
        raise UsageError(f"num_blocks is {num_blocks}; it must be at least 1")
    room = memory.free - headroom(memory) - need.total
    fits = max(0, room // block_bytes)
    context = context_length or longest
    one = -(-context // size) + 1
    if num_blocks is not None:
        wanted = least = num_blocks
    else:
        least = one if context_length else min(one, _LEAST_CONTEXT // size + 1)
        several = contexts or (1 if context_length else widest.sequences)
        wanted = max(least, min(fits, several * (one - 1) + 1))
    if wanted > fits:
        error = _too_little(manifest, memory, need, fits, wanted, device)
        if num_blocks is not None and fits > 0:
            tokens = fits * size
            error.hint = (
                f"A cache of {tokens:,} tokens fits: serve --cache-tokens, or a shorter --context."
            )
        raise error
    notes = []
    if num_blocks is None and wanted * size < context:
        context = wanted * size
        notes.append(
            f"contexts are at most {context:,} tokens, not {longest:,}: {device} has memory for no "
            "more"
        )
    return CachePlan(wanted, least, context, tuple(notes))


def _too_little(
    manifest: Manifest, memory: MemoryInfo, need: FixedNeed, fits: int, wanted: int, device: str
) -> OutOfMemoryError:
    size, block_bytes = manifest.cache.block_size, manifest.cache.bytes_per_block()
    total = need.total + wanted * block_bytes + headroom(memory)
    message = (
        f"{manifest.model.name} needs {_gb(total)} GB on {device} (weights {_gb(need.weights)}, "
        f"cache of {wanted * size:,} tokens {_gb(wanted * block_bytes)}, work "
        f"{_gb(need.total - need.weights)}, headroom {_gb(headroom(memory))}); "
        f"{_gb(memory.free)} of {_gb(memory.total)} GB are free"
    )
    if fits >= 2:
        tokens = (fits - 1) * size
        return OutOfMemoryError(message, hint=f"A context of {tokens:,} tokens fits (--context).")
    spare = memory.free - headroom(memory) - (need.total - need.weights)
    weights = spare - (_LEAST_CONTEXT // size + 1) * block_bytes
    bits = 8 * weights / max(1, manifest.model.parameters)
    if bits < 1:
        hint = "No format of this model fits: free memory on the device, or use a smaller model."
    else:
        hint = (
            f"With a context of {_LEAST_CONTEXT} tokens, weights of {_gb(weights)} GB would fit: "
            f"{bits:.1f} bits a parameter (these have "
            f"{8 * need.weights / max(1, manifest.model.parameters):.1f}). Free memory on the "
            "device, choose a smaller --quant, or a smaller model."
        )
    return OutOfMemoryError(message, hint=hint)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f}"
