"""llama-bench's tests on a card: steps of an artifact's plans, call by call, added up."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pumice.artifact import Manifest
from pumice.bench.predict.calls import CallCost, PlanCall, calls_of, plan_for, records_of
from pumice.bench.predict.cards import Card
from pumice.bench.predict.measured import Line, line_for
from pumice.bench.predict.model import STEP, CallTime, Shape, call_time, memory_bytes
from pumice.bench.predict.occupancy import Occupancy, occupancy
from pumice.bench.tests import ModelTest
from pumice.targets import get_target

_POINTS = 5  # steps of a generation that are computed; those between lie on a line


@dataclass(frozen=True)
class PredictedCall:
    """One call of a step, all layers' together counted by `call.count`."""

    call: PlanCall
    cost: CallCost
    time: CallTime
    occupancy: Occupancy
    line: Line

    @property
    def seconds(self) -> float:
        """Of all layers."""
        return self.call.count * self.time.seconds


@dataclass(frozen=True)
class PredictedStep:
    """seconds: with what the host takes."""

    plan: str
    calls: tuple[PredictedCall, ...]

    @property
    def seconds(self) -> float:
        return STEP + sum(call.seconds for call in self.calls)

    @property
    def launches(self) -> int:
        return sum(p.call.count * len(p.call.launches) for p in self.calls)

    @property
    def launching(self) -> float:
        """Seconds that launches cost by their number, and the host."""
        return STEP + sum(p.call.count * p.time.launching for p in self.calls)

    @property
    def without_rows(self) -> float:
        """Seconds of calls that no near measured row speaks of."""
        return sum(p.seconds for p in self.calls if not p.line.measured)

    @property
    def nbytes(self) -> float:
        """Weights and cache."""
        return sum(p.call.count * p.cost.nbytes for p in self.calls)

    @property
    def operations(self) -> float:
        return sum(p.call.count * p.cost.operations for p in self.calls)


@dataclass(frozen=True)
class PredictedTest:
    """tokens_per_s: of all sequences together. seconds, nbytes: of the average step of a
    generation, or of the whole prompt. attainable_s: least seconds at the card's attainable
    bandwidth and peak. launching: seconds. without_rows: the part of the time that no measured row
    is near. fits: whether weights, cache and work fit the card's memory."""

    card: Card
    test: ModelTest
    tokens_per_s: float
    seconds: float
    nbytes: float
    attainable_s: float
    launches: int
    launching: float
    without_rows: float
    fits: bool

    @property
    def gb_per_s(self) -> float:
        return self.nbytes / self.seconds / 1e9


class Predictor:
    """Predicts steps of one artifact on one card of its architecture."""

    def __init__(self, manifest: Manifest, card: Card) -> None:
        self.manifest, self.card = manifest, card
        self.target = get_target(str(manifest.target["name"]))
        self._records = records_of(manifest)
        self._calls = functools.cache(self._calls_of)

    def _calls_of(self, name: str) -> list[tuple[PlanCall, Shape, Occupancy]]:
        """Of a plan; of one that generates also those that draw the tokens."""
        plan = self.manifest.entries[name]
        calls = calls_of(plan, self._records)
        drawing = self.manifest.entries.get(f"sample@{plan.bounds['R']}")
        if name.startswith("decode@") and drawing is not None:
            calls += calls_of(drawing, self._records)
        found = []
        for call in calls:
            held = occupancy(call.record, self.target)
            blocks = math.prod(call.main.grid or (1, 1, 1))
            waves = -(-call.record.threads // self.target.wave)
            found.append((call, Shape(blocks, waves, held.blocks), held))
        return found

    def step(
        self,
        entry: str,
        *,
        tokens: int,
        sequences: int,
        context: int,
        mean_keys: float | None = None,
    ) -> PredictedStep:
        """A step after which each sequence has `context` tokens. mean_keys: that a query sees, for
        prompts. UsageError when no plan holds it."""
        name, _ = plan_for(
            self.manifest, entry, tokens=tokens, sequences=sequences, context=context
        )
        window = self.manifest.cache.window
        seen = context if window is None else min(context, window + tokens // sequences - 1)
        mean = seen if mean_keys is None else min(mean_keys, seen)
        keys = sequences * seen
        found = []
        for call, shape, held in self._calls(name):
            cost = call.cost(keys, sequences * mean)
            nbytes = memory_bytes(cost.nbytes, cost.activations, self.card)
            line = line_for(call.kernel, cost.operations / max(1.0, cost.nbytes + cost.activations))
            time = call_time(
                nbytes, cost.operations, shape, line, len(call.launches), self.card, self.target.api
            )
            found.append(PredictedCall(call, cost, time, held, line))
        return PredictedStep(name, tuple(found))

    def test(self, test: ModelTest, max_tokens: int | None = None) -> PredictedTest:
        """UsageError when no plan holds the test."""
        steps = self._generation(test) if test.kind == "tg" else self._prompt(test, max_tokens)
        mean = 1 / len(steps) if test.kind == "tg" else 1.0
        seconds = mean * sum(step.seconds for step in steps)
        tokens = test.batch if test.kind == "tg" else test.batch * test.tokens
        card = self.card
        least = mean * sum(
            max(step.nbytes / card.copy_bandwidth, step.operations / card.matrix_peak)
            for step in steps
        )
        cache = self.manifest.cache
        blocks = test.batch * -(-test.context // cache.block_size)
        need = self.manifest.model.weight_bytes + self.manifest.memory.get("arena", 0)
        need += blocks * cache.bytes_per_block()
        return PredictedTest(
            card=card,
            test=test,
            tokens_per_s=tokens / seconds,
            seconds=seconds,
            nbytes=mean * sum(step.nbytes for step in steps),
            attainable_s=least,
            launches=round(mean * sum(step.launches for step in steps)),
            launching=mean * sum(step.launching for step in steps),
            without_rows=mean * sum(step.without_rows for step in steps) / seconds,
            fits=need < card.memory_bytes,
        )

    def _generation(self, test: ModelTest) -> list[PredictedStep]:
        """Steps at even distances."""
        first, last = test.depth + 2, test.depth + test.tokens + 1
        points = min(_POINTS, test.tokens)
        contexts = [first + round((i + 0.5) / points * (last - first)) for i in range(points)]
        return [
            self.step("decode", tokens=test.batch, sequences=test.batch, context=context)
            for context in contexts
        ]

    def _prompt(self, test: ModelTest, max_tokens: int | None) -> list[PredictedStep]:
        """Chunks as large as the plans allow, one prompt after the other."""
        largest = max(
            plan.bounds["T"]
            for name, plan in self.manifest.entries.items()
            if name.startswith("extend@")
        )
        size = min(largest, max_tokens or largest)
        steps = []
        for start in range(0, test.tokens, size):
            count = min(size, test.tokens - start)
            before = test.depth + start
            steps.append(
                self.step(
                    "extend", tokens=count, sequences=1, context=before + count,
                    mean_keys=before + (count + 1) / 2,
                )
            )  # fmt: skip
        return steps * test.batch


def predict(
    manifest: Manifest, cards: Sequence[Card], tests: Sequence[ModelTest]
) -> list[PredictedTest]:
    """Every test on every card."""
    return [Predictor(manifest, card).test(test) for card in cards for test in tests]
