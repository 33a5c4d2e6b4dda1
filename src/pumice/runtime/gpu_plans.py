"""A GPU artifact's plans by shape: the choice of one for a batch, and what the choice allows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pumice.artifact import AGAIN, Manifest, Plan
from pumice.errors import ArtifactError, UnsupportedError, UsageError
from pumice.runtime.step import StepBatch, StepLimits

_NAME = re.compile(r"([a-z_]+)@(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, order=True)
class PlanShape:
    """What one plan holds: tokens, sequences, blocks a sequence, rows of the result."""

    tokens: int
    sequences: int
    blocks: int
    rows: int

    def holds(self, other: PlanShape) -> bool:
        return (
            other.tokens <= self.tokens
            and other.sequences <= self.sequences
            and other.blocks <= self.blocks
            and other.rows <= self.rows
        )

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens, {self.sequences} sequences, contexts of {self.blocks} blocks "
            f"and {self.rows} rows"
        )


def shape_of(batch: StepBatch, block_size: int) -> PlanShape:
    """The sizes of a batch. Columns of the block table that no context reaches don't count."""
    longest = int(batch.context_len.max()) if len(batch.context_len) else 0
    return PlanShape(
        len(batch.tokens),
        len(batch.context_len),
        -(-longest // block_size),
        len(batch.sample_rows),
    )


@dataclass(frozen=True)
class ShapedPlan:
    """A plan of the manifest: its whole name, its entry point and its shape."""

    name: str
    entry: str
    shape: PlanShape
    plan: Plan


class PlanTable:
    """All plans of an artifact, by entry point and from small to large."""

    def __init__(self, manifest: Manifest) -> None:
        self._block_size = manifest.cache.block_size
        self._entries: dict[str, list[ShapedPlan]] = {}
        for name, plan in manifest.entries.items():
            shaped = _shaped(name, plan)
            if shaped is not None:
                self._entries.setdefault(shaped.entry, []).append(shaped)
        for plans in self._entries.values():
            plans.sort(key=lambda p: p.shape)
        if "extend" not in self._entries:
            raise ArtifactError(
                f"the artifact has plans for {', '.join(manifest.entries) or 'nothing'}; at least "
                "one extend@… is needed",
                hint=AGAIN,
            )
        most = max((p.shape.rows for p in self.of("decode")), default=0)
        self._order = np.arange(most, dtype=np.int32)
        # The plan whose batches every batch of an engine stays within.
        self.widest = max(
            self._entries["extend"],
            key=lambda p: (p.shape.blocks, p.shape.sequences, p.shape.tokens, p.shape.rows),
        ).shape

    @property
    def context_length(self) -> int:
        """Tokens of the longest sequence that plans allow."""
        return self.widest.blocks * self._block_size

    def has(self, entry: str) -> bool:
        return entry in self._entries

    def of(self, entry: str) -> list[ShapedPlan]:
        """An entry point's plans, the smallest first."""
        return self._entries.get(entry, [])

    def all(self) -> Iterable[ShapedPlan]:
        return (plan for plans in self._entries.values() for plan in plans)

    def choose(self, batch: StepBatch, limits: StepLimits) -> ShapedPlan:
        """The smallest plan for a batch's logits: of "decode" when every sequence has one token and
        one row, in their order, else of "extend". UsageError when none is large enough.
        """
        shape = shape_of(batch, self._block_size)
        ordered = shape.rows <= len(self._order) and bool(
            (batch.sample_rows == self._order[: shape.rows]).all()
        )
        try:
            return self.find(shape, ordered=ordered)
        except LookupError:
            raise UsageError(
                f"a step of {shape} is larger than every plan; the limits are {limits}"
            ) from None

    def find(self, shape: PlanShape, *, ordered: bool = True) -> ShapedPlan:
        """The smallest plan for logits of those sizes; LookupError when none is large enough.
        ordered: whether rows of the result are the tokens' in their order.
        """
        if ordered and shape.tokens == shape.sequences == shape.rows:
            found = self._smallest("decode", shape)
            if found is not None:
                return found
        found = self._smallest("extend", shape)
        if found is None:
            raise LookupError(f"no plan holds {shape}")
        return found

    def choose_embedding(self, batch: StepBatch, limits: StepLimits, model: str) -> ShapedPlan:
        """The smallest plan for hidden states. UnsupportedError when the artifact has none."""
        if not self.has("embed"):
            raise UnsupportedError(
                f"the artifact of {model} has no entry point for hidden states",
                hint="Compile the model again with `pumice compile`.",
            )
        shape = shape_of(batch, self._block_size)
        found = self._smallest("embed", shape)
        if found is None:
            raise UsageError(
                f"hidden states of {shape} are more than every plan holds; the limits are {limits}"
            )
        return found

    def _smallest(self, entry: str, shape: PlanShape) -> ShapedPlan | None:
        return next((p for p in self.of(entry) if p.shape.holds(shape)), None)


def _shaped(name: str, plan: Plan) -> ShapedPlan | None:
    """None for entry points of another form, which others read."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    sizes = [int(n) for n in match.groups()[1:]]
    bounds = [plan.bounds.get(symbol) for symbol in "TSM"]
    rows = plan.bounds.get("R")
    if bounds != sizes or not rows:
        raise ArtifactError(
            f"plan {name!r} has the bounds {plan.bounds}, which are not those of its name",
            hint=AGAIN,
        )
    return ShapedPlan(name, match[1], PlanShape(sizes[0], sizes[1], sizes[2], rows), plan)
