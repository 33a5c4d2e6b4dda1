"""The engine: requests in, tokens and text out, one step at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.engine.choose import Choice
from pumice.engine.embedding import pool_states
from pumice.engine.figures import figures, note_token
from pumice.engine.generation import Generation
from pumice.engine.grammar_matcher import GrammarCompiler
from pumice.engine.kv_cache import KVCache
from pumice.engine.outputs import completion, last_delta, take_token
from pumice.engine.plan import StepPlan
from pumice.engine.request import Completion, Delta, FinishReason, Prompt, Request
from pumice.engine.runner import StepRunner
from pumice.engine.sampler import NOT_FINITE
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.scheduler import Scheduler
from pumice.engine.sequence import Sequence, SequenceGroup
from pumice.engine.speculation import Speculation, Speculator, make_speculator
from pumice.engine.stats import EngineStats, Histograms
from pumice.engine.submit import make_group
from pumice.errors import QueueFullError, UsageError
from pumice.runtime.step import Executable

if TYPE_CHECKING:
    from pumice.text.tokenizer import Tokenizer


class LLMEngine(Generation):
    """Runs many requests on one executable. One thread at a time: `AsyncEngine` gives it its own.

    An exception from a step (Ctrl-C included) leaves the engine usable: requests are as they were
    before the step, and may be gone on with or cancelled; `stream` and `generate` cancel their own.
    """

    def __init__(
        self,
        executable: Executable,
        tokenizer: Tokenizer | None,
        *,
        name: str = "",
        prefix_cache: bool = True,
        max_running: int | None = None,
        prefill_chunk: int | None = None,
        mixed_steps: bool = False,
        max_waiting: int | None = None,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        tokenizer: None serves token ids only: no text comes out, and no end token but those of
        `stop_token_ids` is known. name: the model's, for people. prefix_cache: keep blocks for
        later requests. max_running: outputs that run at once; None: as many as a step holds.
        prefill_chunk: tokens of prompts in one step; None: as many as do not delay running streams
        much. mixed_steps: prompts are computed in steps that decode too, rather than by turns:
        perhaps faster, but rounding then depends on what else runs. max_waiting: requests that may
        wait beyond those that find a place; None: any number. speculation: guesses that are checked
        in one step; None makes none. clock: seconds.
        """
        for what, value in (
            ("max_running", max_running),
            ("prefill_chunk", prefill_chunk),
            ("max_waiting", max_waiting),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{what} is {value}; it must be at least 1")
        self.executable = executable
        self.tokenizer = tokenizer
        self.name = name
        self.limits = limits = executable.limits
        self.stats = EngineStats()
        self.histograms = Histograms()
        self.clock = clock
        # Some devices' executables have it.
        self._copy_blocks: Any = getattr(executable, "copy_blocks", None)
        self.cache = KVCache(
            limits.num_blocks,
            limits.block_size,
            prefix_cache=prefix_cache,
            can_copy=self._copy_blocks is not None,
        )
        self.scheduler = Scheduler(
            limits, self.cache, max_running=max_running, chunk=prefill_chunk, mixed=mixed_steps
        )
        self._runner = StepRunner(executable, limits)
        self.speculator: Speculator | None = None
        if speculation is not None:
            self.speculator = make_speculator(speculation, executable)
        self._grammars: GrammarCompiler | None = None
        if tokenizer is not None and tokenizer.eos_ids:
            self._grammars = GrammarCompiler(tokenizer, limits.vocab_size)
        self._max_waiting = max_waiting
        self._alive: dict[str, SequenceGroup] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap, of finished ones too
        self._serial = itertools.count()
        self._undelivered: list[Delta] = []
        self._in_bookkeeping = False

    @staticmethod
    def from_artifact(
        directory: Path,
        *,
        device: str = "auto",
        threads: int | None = None,
        context_length: int | None = None,
        num_blocks: int | None = None,
        contexts: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        library_homes: tuple[Path, ...] = (),
        **options: Any,
    ) -> LLMEngine:
        """Loads a compiled model; arguments and errors are `runtime.load.load`'s, and LLMEngine's.

        num_blocks bounds the context that all requests have together; by default one of
        `context_length` fits, or on a GPU as much as its memory holds.
        """
        from pumice.runtime.load import load
        from pumice.text.tokenizer import TOKENIZER_FILE, Tokenizer

        directory = Path(directory)
        executor = load(
            directory,
            device=device,
            threads=threads,
            context_length=context_length,
            num_blocks=num_blocks,
            contexts=contexts,
            progress=progress,
            library_homes=library_homes,
        )
        there = (directory / TOKENIZER_FILE).is_file()  # models with random weights have none
        tokenizer = Tokenizer.load(directory) if there else None
        return LLMEngine(executor, tokenizer, name=executor.manifest.model.name, **options)

    # Requests

    def sampling(self, **given: Any) -> SamplingParams:
        """Parameters: what is given, then the model's own recommendation, then the defaults."""
        recommended = {} if self.tokenizer is None else self.tokenizer.sampling
        return SamplingParams.from_model(recommended, **given)

    def prepare(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> SequenceGroup:
        """Checks and tokenizes a request without adding it. May be called from any thread.

        options: `Request`'s other fields. UsageError for a bad prompt or parameter,
        GrammarError for a grammar that cannot be enforced, ContextLengthError for a request that
        can never fit, UnsupportedError for `pooling` where there are no hidden states.
        """
        request = Request(prompt, self.sampling() if params is None else params, **options)
        grammar, matcher = request.params.grammar, None
        if grammar is not None:
            if self._grammars is None:
                raise UsageError("grammar is set; an engine without an end token cannot follow one")
            matcher = self._grammars.matcher(grammar)
        if request.n > self.scheduler.max_running:
            raise UsageError(
                f"n is {request.n}; {self.scheduler.max_running} outputs can run at once"
            )
        request_id = request.request_id
        if request_id is None:
            request_id = f"request-{next(self._serial)}"
        return make_group(request, request_id, self.limits, self.tokenizer, matcher)

    def submit(self, group: SequenceGroup) -> str:
        """Adds a prepared request; returns its id.

        UsageError when the id is in use, QueueFullError when `max_waiting` requests wait.
        """
        self._recover()
        request_id = group.request_id
        if request_id in self._alive:
            raise UsageError(f"request id {request_id!r} is in use")
        waiting = len(self.scheduler.waiting) - self.scheduler.free_places
        if self._max_waiting is not None and waiting >= self._max_waiting:
            self.scheduler.decisions.rejected += 1
            raise QueueFullError(waiting, self._max_waiting)
        now = self.clock()
        self._in_bookkeeping = True
        for sequence in group.open:
            sequence.arrival = now
        self._alive[request_id] = group
        self.scheduler.add(group.lead)
        if group.request.deadline_s is not None:
            group.deadline = now + group.request.deadline_s
            heappush(self._deadlines, (group.deadline, request_id))
        self._in_bookkeeping = False
        return request_id

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> str:
        """`prepare` and `submit`."""
        return self.submit(self.prepare(prompt, params, **options))

    def cancel(self, request_id: str) -> list[Completion]:
        """Ends a request; its blocks are free at once. Returns its outputs that had not finished:
        none when no such request is alive.
        """
        self._recover()
        group = self._alive.get(request_id)
        if group is None:
            return []
        self.scheduler.decisions.cancelled += 1
        return self._finish_all(group, "cancelled")

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to tell."""
        return bool(self._alive or self._undelivered)

    @property
    def alive(self) -> list[str]:
        """Ids of the requests that have not finished."""
        return list(self._alive)

    # Steps

    def step(self) -> list[Delta]:
        """Runs one step; returns what it added to which outputs."""
        self._recover()
        self._end_what_is_late()
        if self.scheduler.has_work:
            self._undelivered += self._step()
        deltas, self._undelivered = self._undelivered, []
        return deltas

    def _step(self) -> list[Delta]:
        start = self.clock()
        plan = self._runner.begin() or self._schedule(start)
        ahead = self.speculator is None or self.speculator.allows_ahead()
        choices, parts = self._runner.run(plan, self.scheduler, ahead=ahead)
        self._in_bookkeeping = True
        pooled = pool_states(plan, parts)
        self.scheduler.commit(plan)
        now = self.clock()
        if self.speculator is not None:
            self.speculator.observe(plan, choices, now - start)
        deltas = []
        for choice in choices:
            if choice.sequence.siblings:
                self.scheduler.fork(choice.sequence)
            deltas.append(self._advance(choice, now))
        for sequence, fault in pooled:
            done = self._finish(sequence, "error" if fault else "stop", now, error=fault)
            deltas.append(last_delta(done))
        self._in_bookkeeping = False
        self._runner.end()
        self._record(plan, choices, now - start)
        return deltas

    def _schedule(self, start: float) -> StepPlan:
        """The next step, with its blocks."""
        if self.speculator is not None:
            waiting = bool(self.scheduler.waiting)
            self.speculator.propose(self.scheduler.running, prompts_wait=waiting)
        self._in_bookkeeping = True
        plan = self.scheduler.schedule()
        for sequence in plan.admitted:
            if sequence.first_token_time is None:
                self.histograms.queue_s.observe(start - sequence.arrival)
        self._in_bookkeeping = False
        assert plan.tokens, "the sequence of the best rank can always go on"
        if self.cache.copies:
            self._copy_blocks(self.cache.copies)
            self.cache.copies.clear()
        return plan

    def _record(self, plan: StepPlan, choices: list[Choice], seconds: float) -> None:
        wrong = plan.drafted - sum(len(choice.tokens) - 1 for choice in choices)
        self.stats.record(plan.tokens, plan.decode_tokens, wrong, seconds)
        self.histograms.batch_size.observe(plan.batch_size)
        self.scheduler.pace.observe(plan.decode_tokens, plan.tokens - plan.decode_tokens, seconds)

    def _advance(self, choice: Choice, now: float) -> Delta:
        """Gives a sequence its tokens, and ends it if the last was among them."""
        sequence = choice.sequence
        delta = Delta(sequence.request_id, index=sequence.index)
        for token, logprob in zip(choice.tokens, choice.logprobs, strict=True):
            if token == NOT_FINITE:
                error = f"the logits after token {sequence.length} are not finite"
                self._end(delta, sequence, "error", now, error=error)
                return delta
            matcher = sequence.matcher
            if matcher is not None:
                matcher.consume(token)
                if matcher.error is not None:
                    self._end(delta, sequence, "error", now, error=matcher.error)
                    return delta
            note_token(self.stats, self.histograms, sequence, now)
            text, reason, stop = take_token(sequence, token, logprob)
            delta.text += text
            delta.token_ids.append(token)
            if logprob is not None:
                delta.logprobs.append(logprob)
            if reason is not None:
                self._end(delta, sequence, reason, now, stop)
                return delta
        return delta

    def _end(
        self,
        delta: Delta,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        stop: str | int | None = None,
        error: str | None = None,
    ) -> None:
        written = len(sequence.pieces)
        delta.completion = self._finish(sequence, reason, now, stop, error)
        delta.finish_reason = reason
        delta.text += "".join(sequence.pieces[written:])

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        stop: str | int | None = None,
        error: str | None = None,
    ) -> Completion:
        group = self._alive[sequence.request_id]
        group.open.remove(sequence)
        if not group.open:
            del self._alive[sequence.request_id]
        if sequence in group.lead.siblings:
            group.lead.siblings.remove(sequence)
        else:
            self.scheduler.remove(sequence)
        if self.speculator is not None:
            self.speculator.forget(sequence)
        self.stats.finished += 1
        return completion(sequence, reason, now, stop, error)

    def _finish_all(self, group: SequenceGroup, reason: FinishReason) -> list[Completion]:
        now = self.clock()
        self._in_bookkeeping = True
        # The last first: outputs that have not begun hang on the first one.
        done = [self._finish(sequence, reason, now) for sequence in reversed(group.open)]
        self._in_bookkeeping = False
        return done[::-1]

    def _end_what_is_late(self) -> None:
        """Ends requests whose deadline is over."""
        while self._deadlines and self._deadlines[0][0] <= self.clock():
            deadline, request_id = heappop(self._deadlines)
            group = self._alive.get(request_id)
            if group is not None and group.deadline == deadline:
                self.scheduler.decisions.deadline += 1
                self._undelivered += map(last_delta, self._finish_all(group, "deadline"))

    def _recover(self) -> None:
        """After an exception in the middle of the bookkeeping: empties the cache, and ends all that
        ran as an error that the next step tells.
        """
        if not self._in_bookkeeping:
            return
        self._runner.forget()
        self.scheduler.reset([])
        now = self.clock()
        for group in self._alive.values():
            for sequence in group.open:
                done = completion(sequence, "error", now, error="the engine was interrupted")
                self._undelivered.append(last_delta(done))
                if self.speculator is not None:
                    self.speculator.forget(sequence)
            group.open = []
        self._alive = {}
        self._in_bookkeeping = False

    # State

    def reset_cache(self) -> None:
        """Forgets all cached content; what runs is computed again."""
        self._recover()
        self._in_bookkeeping = True
        self._runner.forget()
        self.scheduler.reset([*self.scheduler.running, *self.scheduler.waiting])
        self._in_bookkeeping = False

    def close(self) -> None:
        """Ends threads. The engine may be used again, and then makes new ones."""
        self._runner.close()

    def audit(self) -> list[str]:
        """Faults in the cache's bookkeeping; an empty list is right."""
        return self.cache.audit(s for group in self._alive.values() for s in group.open)

    def figures(self) -> dict[str, Any]:
        """What a dashboard shows: the stats, and the state of queue and cache now."""
        return figures(self)
