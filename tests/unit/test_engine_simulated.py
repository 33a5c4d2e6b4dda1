"""The engine under random load, with simulated time: arrivals, cancels, deadlines, priorities,
sizes, several outputs. Checked after every step: the cache's accounting. At the end: everybody
finished, in time, fairly, and with the tokens that a request has alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from engine_toy import CopyingToy, ToyExecutable, check, hashed_logits, small_limits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumice.engine import LLMEngine, SamplingParams
from pumice.engine.plan import StepPlan
from pumice.engine.request import Completion
from pumice.engine.scheduler import AGEING_S
from pumice.runtime.step import StepLimits

VOCAB = 23
MODEL = hashed_logits(VOCAB)
LONGEST = 30
STEP_S = 0.4
SEEN = {"preempted": 0, "deadline": 0, "cancelled": 0, "forked": 0, "copied": 0, "cached": 0}


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int | None
    n: int
    priority: int
    arrives: int  # before which step
    cancelled: int | None
    deadline_s: float | None
    use_cache: bool
    salt: bytes

    def params(self, index: int = 0) -> SamplingParams:
        if self.seed is None:
            return SamplingParams(max_tokens=self.max_tokens)
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=1.2, top_p=0.95, seed=self.seed + index
        )


# Few beginnings, so that requests share blocks and part inside of them.
prompts = st.builds(
    lambda head, count, tail: tuple(([head] * count + tail)[:18]),
    st.integers(0, 1),
    st.integers(1, 15),
    st.lists(st.integers(0, 3), max_size=3),
)
jobs = st.builds(
    Job,
    prompt=prompts,
    max_tokens=st.integers(1, LONGEST - 18),
    seed=st.none() | st.integers(0, 3),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    priority=st.sampled_from([0, 0, 0, 1, -1, 7]),
    arrives=st.integers(0, 25),
    cancelled=st.none() | st.none() | st.integers(0, 20),
    deadline_s=st.none() | st.none() | st.floats(0.1, 12.0),
    use_cache=st.sampled_from([True, True, True, False]),
    salt=st.sampled_from([b"", b"", b"other"]),
)
bounds = st.builds(
    lambda size, spare, tokens, sequences, rows: small_limits(
        vocab_size=VOCAB,
        block_size=size,
        num_blocks=-(-LONGEST // size) + spare,
        context_length=LONGEST,
        max_tokens=max(tokens, 3),
        max_sequences=max(sequences, 3),
        max_rows=max(rows, 3),
    ),
    st.integers(1, 7),
    st.integers(0, 6),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 6),
)


@functools.cache
def alone(prompt: tuple[int, ...], seed: int | None, count: int) -> list[int]:
    room = small_limits(vocab_size=VOCAB, max_tokens=64, max_sequences=1)
    engine = LLMEngine(ToyExecutable(room, MODEL), None, prefix_cache=False)
    params = Job(prompt, count, seed, 1, 0, 0, None, None, True, b"").params()
    return engine.generate(prompt, params)[0].token_ids


class Simulation:
    def __init__(self, load: list[Job], engine: LLMEngine) -> None:
        self.load, self.engine = load, engine
        self.now = 0.0
        self.submitted: dict[int, float] = {}
        self.first: dict[int, float] = {}  # when a request first ran
        self.ended: dict[int, float] = {}
        self.done: dict[tuple[int, int], Completion] = {}
        self.streamed: dict[tuple[int, int], list[int]] = {}
        schedule = engine.scheduler.schedule

        def note() -> StepPlan:
            plan = schedule()
            for sequence in plan.admitted:
                self.first.setdefault(int(sequence.request_id), self.now)
            return plan

        engine.scheduler.schedule = note  # type: ignore[method-assign]

    def take(self, number: int, completion: Completion) -> None:
        key = (number, completion.index)
        assert key not in self.done, "an output ended twice"
        self.done[key] = completion
        self.ended[number] = self.now

    def play(self) -> None:
        step = 0
        while self.engine.has_work or any(job.arrives >= step for job in self.load):
            for number, job in enumerate(self.load):
                self._events(number, job, step)
            for delta in self.engine.step():
                number = int(delta.request_id)
                self.streamed.setdefault((number, delta.index), []).extend(delta.token_ids)
                if delta.completion is not None:
                    self.take(number, delta.completion)
            check(self.engine)
            self.now += STEP_S
            step += 1
            assert step < 3000, "no progress"

    def _events(self, number: int, job: Job, step: int) -> None:
        if job.arrives == step:
            self.engine.add_request(
                job.prompt,
                job.params(),
                request_id=str(number),
                n=job.n,
                priority=job.priority,
                deadline_s=job.deadline_s,
                use_cache=job.use_cache,
                cache_salt=job.salt,
            )
            self.submitted[number] = self.now
        if job.cancelled is not None and job.arrives + job.cancelled == step:
            for completion in self.engine.cancel(str(number)):
                self.take(number, completion)
            check(self.engine)

    def check_end(self) -> None:
        engine = self.engine
        assert engine.cache.available == engine.limits.num_blocks and engine.audit() == []
        assert sorted(self.done) == [
            (i, index) for i, job in enumerate(self.load) for index in range(job.n)
        ]
        for (number, index), completion in self.done.items():
            job, ids = self.load[number], completion.token_ids
            seed = None if job.seed is None else job.seed + index
            expected = alone(job.prompt, seed, job.max_tokens)
            assert ids == expected[: len(ids)]
            assert ids == self.streamed.get((number, index), [])
            reason = completion.finish_reason
            assert reason == "length" or job.cancelled is not None or job.deadline_s is not None
            assert (reason == "length") == (len(ids) == job.max_tokens)
            late = self.ended[number] - self.submitted[number]
            if reason == "deadline":
                assert job.deadline_s is not None and late >= job.deadline_s - 1e-6
            elif job.deadline_s is not None:
                assert late < job.deadline_s + STEP_S

    def check_fairness(self) -> None:
        """Of two that waited together, the one of better rank did not run later."""
        for a, first_a in self.first.items():
            for b, first_b in self.first.items():
                if first_b < self.submitted[a]:
                    continue
                ahead = self.submitted[b] - self.submitted[a]
                worse = self.load[a].priority - self.load[b].priority
                if ahead > AGEING_S * worse + 1e-6:
                    assert first_a <= first_b, (a, b)


@given(
    st.lists(jobs, min_size=1, max_size=9),
    bounds,
    st.sampled_from([True, True, False]),
    st.none() | st.integers(1, 5),
    st.booleans(),
)
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_random_load(
    load: list[Job], limits: StepLimits, prefix_cache: bool, chunk: int | None, copies: bool
) -> None:
    toy = (CopyingToy if copies else ToyExecutable)(limits, MODEL)
    simulation: Simulation
    engine = LLMEngine(
        toy,
        None,
        prefix_cache=prefix_cache,
        prefill_chunk=chunk,
        clock=lambda: simulation.now,
    )
    simulation = Simulation(load, engine)
    simulation.play()
    simulation.check_end()
    simulation.check_fairness()
    decisions = engine.scheduler.decisions
    for name in ("preempted", "deadline", "cancelled"):
        SEEN[name] += getattr(decisions, name)
    SEEN["forked"] += sum(job.n > 1 for job in load)
    SEEN["copied"] += engine.cache.copied
    SEEN["cached"] += engine.stats.cached_tokens


def test_the_load_was_worth_it() -> None:
    """After the test above: every kind of decision was made many times."""
    if any(SEEN.values()):
        assert min(SEEN.values()) > 10, SEEN
