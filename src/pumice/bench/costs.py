"""What a test must read and compute, from the artifact's own plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pumice.artifact import Launch, Manifest, evaluate
from pumice.bench.roofline import Roofline
from pumice.bench.tests import ModelTest
from pumice.runtime.gpu_plans import PlanShape, PlanTable


@dataclass(frozen=True)
class Cost:
    """nbytes: weights and cache read. Operations (a multiply-add is two) of the matrix products,
    by the unit that does them.
    """

    nbytes: float = 0.0
    int8_operations: float = 0.0
    fp32_operations: float = 0.0

    @property
    def operations(self) -> float:
        return self.int8_operations + self.fp32_operations

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.nbytes + other.nbytes,
            self.int8_operations + other.int8_operations,
            self.fp32_operations + other.fp32_operations,
        )

    def seconds(self, roofline: Roofline) -> float:
        """The least time on a machine: reading and computing overlap perfectly."""
        compute = (
            self.int8_operations / roofline.int8_ops_per_s
            + self.fp32_operations / roofline.fp32_ops_per_s
        )
        return max(self.nbytes / roofline.read_bytes_per_s, compute)


class PlanCosts:
    """Costs of an artifact's steps."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        cache = manifest.cache
        self._cache_token_bytes = cache.bytes_per_block() / cache.block_size
        self._int8 = {r.symbol for r in manifest.kernels if "int8" in r.kernel}
        self._known: dict[tuple[int, int, int], Cost] = {}
        self._lines: dict[str, tuple[Cost, Cost]] = {}
        self._block = cache.block_size
        self._shaped = PlanTable(manifest) if "extend" not in manifest.entries else None

    def _shaped_step(self, tokens: int, sequences: int, rows: int, context: int) -> Cost:
        """Of a GPU's plan. Its launches read K cached tokens, of all sequences, and compute for
        queries that see K of them: both grow with K on a line.
        """
        assert self._shaped is not None
        shape = PlanShape(tokens, sequences, -(-context // self._block), rows)
        shaped = self._shaped.find(shape)
        if shaped.name not in self._lines:
            fixed, first = (
                self._sum(shaped.plan.launches, shaped.plan.bounds | {"K": keys}) for keys in (0, 1)
            )
            self._lines[shaped.name] = fixed, first
        fixed, first = self._lines[shaped.name]
        window = self._manifest.cache.window
        each = tokens // sequences
        read = context if window is None else min(context, window + each - 1)
        seen = min(read, context - (each - 1) / 2)  # by the average query
        operations = first.operations - fixed.operations
        return Cost(
            fixed.nbytes + sequences * read * (first.nbytes - fixed.nbytes),
            0.0,
            fixed.operations + sequences * seen * operations,
        )

    def _sum(self, launches: Iterable[Launch], symbols: dict[str, int]) -> Cost:
        total = Cost()
        for launch in launches:
            total += self.launch(launch, symbols)
        return total

    def launch(self, launch: Launch, symbols: dict[str, int], seen: float | None = None) -> Cost:
        """A launch under a batch's sizes. seen: keys that the average query sees, of all sequences
        (default: all that are read)."""
        queries = symbols if seen is None else symbols | {"K": round(seen)}
        operations = float(evaluate(launch.operations, queries))
        int8 = launch.kernel in self._int8
        return Cost(
            float(evaluate(launch.bytes_read, symbols)),
            operations if int8 else 0.0,
            0.0 if int8 else operations,
        )

    def step(self, tokens: int, rows: int, context: int, sequences: int = 1) -> Cost:
        """A step of `tokens` tokens that asks for `rows` rows of logits, with `context` tokens
        of each sequence cached after it.
        """
        if self._shaped is not None:
            return self._shaped_step(tokens, sequences, rows, context)
        key = (tokens, rows, sequences)
        if key not in self._known:
            decode = tokens == rows == sequences and "decode" in self._manifest.entries
            plan = self._manifest.entries["decode" if decode else "extend"]
            symbols = {"T": tokens, "S": sequences, "R": rows, "M": 1}
            self._known[key] = self._sum(plan.launches, symbols)
        window = self._manifest.cache.window
        seen = context if window is None else min(context, window + tokens // sequences - 1)
        return self._known[key] + Cost(self._cache_token_bytes * sequences * seen)

    def test(self, test: ModelTest, max_tokens: int) -> tuple[Cost, list[Cost]]:
        """The total of a test's timed steps, and each step."""
        if test.kind == "tg":
            start = test.depth + 1
            steps = [
                self.step(test.batch, test.batch, start + i + 1, test.batch)
                for i in range(test.tokens)
            ]
        else:
            steps = []
            for first in range(0, test.tokens, max_tokens):
                count = min(max_tokens, test.tokens - first)
                last = first + count == test.tokens
                steps.append(self.step(count, int(last), test.depth + first + count))
            steps *= test.batch
        total = Cost()
        for step in steps:
            total += step
        return total, steps
