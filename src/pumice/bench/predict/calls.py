"""A GPU plan's launches as operator calls: what each reads, computes and occupies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pumice.artifact import FILL, Expr, KernelRecord, Launch, Manifest, Plan, evaluate
from pumice.errors import UsageError

_LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class CallCost:
    """Of one call. nbytes: weights and cache. activations: intermediate tensors. operations: a
    multiply-add is two."""

    nbytes: float
    activations: float
    operations: float


@dataclass(frozen=True)
class PlanCall:
    """The launches of one operator call. label: without the layer's number. main: the launch with
    the most threads a block, which does the work where there are several."""

    label: str
    operator: str
    kernel: str
    launches: tuple[Launch, ...]
    main: Launch
    record: KernelRecord
    nbytes: Expr
    activations: int
    operations: Expr
    count: int = 1  # times that the plan has the same call
    key: str = field(default="", compare=False)

    def cost(self, keys: float, mean_keys: float | None = None) -> CallCost:
        """keys: of all sequences together, which attention reads. mean_keys: how many a query sees
        (default: all of them)."""
        return CallCost(
            _at(self.nbytes, keys),
            float(self.activations),
            _at(self.operations, keys if mean_keys is None else mean_keys),
        )


def _at(expr: Expr, keys: float) -> float:
    return float(evaluate(expr, {"K": round(keys)}))


def calls_of(plan: Plan, records: Mapping[str, KernelRecord]) -> list[PlanCall]:
    """Calls in order of their first appearance, equal ones of different layers counted once."""
    found: dict[str, PlanCall] = {}
    counts: Counter[str] = Counter()
    for group in _groups(plan.launches):
        if all(launch.kernel == FILL for launch in group):
            continue  # a few bytes for the whole plan
        call = _call(group, records)
        found.setdefault(call.key, call)
        counts[call.key] += 1
    return [replace(call, count=counts[key]) for key, call in found.items()]


def _groups(launches: Iterable[Launch]) -> list[list[Launch]]:
    """Launches of one call follow each other under one label; the first kernel carries the
    figures, and fills come before it."""
    groups: list[list[Launch]] = []
    for launch in launches:
        last = groups[-1] if groups else []
        again = bool(last) and last[-1].label == launch.label
        counted = bool(launch.bytes_read or launch.operations or launch.activation_bytes)
        begun = any(one.kernel != FILL for one in last)
        if again and not (begun and (counted or launch.kernel == FILL)):
            last.append(launch)
        else:
            groups.append([launch])
    return groups


def _call(group: list[Launch], records: Mapping[str, KernelRecord]) -> PlanCall:
    kernels = [launch for launch in group if launch.kernel != FILL]
    main = max(kernels, key=lambda one: records[one.kernel].threads)
    record = records[main.kernel]
    first = kernels[0]
    label = _LAYER.sub(".*.", first.label)
    shape = [(launch.kernel, launch.grid) for launch in group]
    key = repr((label, shape, first.bytes_read, first.operations, first.activation_bytes))
    return PlanCall(
        label, record.operator, record.kernel, tuple(group), main, record, first.bytes_read,
        first.activation_bytes, first.operations, key=key,
    )  # fmt: skip


def records_of(manifest: Manifest) -> dict[str, KernelRecord]:
    return {record.symbol: record for record in manifest.kernels}


def plan_for(
    manifest: Manifest, entry: str, *, tokens: int, sequences: int, context: int
) -> tuple[str, Plan]:
    """The smallest plan of an entry point for a batch, as the runtime chooses it. UsageError when
    none is large enough."""
    blocks = -(-context // manifest.cache.block_size)
    need = {"T": tokens, "S": sequences, "M": blocks}
    found = [
        (name, plan)
        for name, plan in manifest.entries.items()
        if name.startswith(entry + "@") and all(plan.bounds[k] >= v for k, v in need.items())
    ]
    if not found:
        raise UsageError(
            f"{manifest.model.name} for {manifest.target['name']} has no {entry} plan for {tokens} "
            f"tokens of {sequences} sequences with contexts of {context:,} tokens",
            hint="Its largest plans are in `pumice inspect`; compile it with larger --max-tokens "
            "or --max-sequences.",
        )
    return min(found, key=lambda row: tuple(row[1].bounds[k] for k in "TSMR"))
