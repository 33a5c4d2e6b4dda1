"""The engine: requests in, tokens and text out, one step at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from pumice.engine.batch import BatchBuilder
from pumice.engine.kv_cache import KVCache
from pumice.engine.outputs import completion, take_token
from pumice.engine.request import Completion, Delta, FinishReason, Prompt, Request, TokenLogprob
from pumice.engine.sampler import NOT_FINITE, Sampler
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.scheduler import Scheduler
from pumice.engine.sequence import Sequence
from pumice.engine.stats import EngineStats
from pumice.engine.submit import as_prompts, make_sequence
from pumice.errors import QueueFullError, UnsupportedError, UsageError
from pumice.runtime.step import Executable

if TYPE_CHECKING:
    from pumice.text.tokenizer import Tokenizer

Params = SamplingParams | SequenceOf[SamplingParams]


class LLMEngine:
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
        max_waiting: int | None = None,
    ) -> None:
        """
        tokenizer: None serves token ids only: no text comes out, and no end token but those of
        `stop_token_ids` is known. name: the model's, for people. prefix_cache: keep blocks for
        later requests. max_running: requests that run at once, prefill_chunk: tokens of prompts in
        one step; None: as many as a step holds. max_waiting: requests that may wait beyond those
        that run; None: any number.
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
        self.cache = KVCache(limits.num_blocks, limits.block_size, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(limits, self.cache, max_running=max_running, chunk=prefill_chunk)
        self._builder = BatchBuilder(limits)
        self._sampler = Sampler(limits.vocab_size)
        self._max_waiting = max_waiting
        self._alive: dict[str, Sequence] = {}
        self._serial = itertools.count()
        self._undelivered: list[Delta] = []
        self._in_bookkeeping = False

    @staticmethod
    def from_artifact(
        directory: Path,
        *,
        device: str = "cpu",
        threads: int | None = None,
        context_length: int | None = None,
        num_blocks: int | None = None,
        **options: Any,
    ) -> LLMEngine:
        """Loads a compiled model; arguments and errors are `runtime.load.load`'s, and LLMEngine's.

        num_blocks bounds the context that all requests have together; by default one of
        `context_length` fits.
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
        )
        tokenizer = None  # models with random weights have none
        if (directory / TOKENIZER_FILE).is_file():
            tokenizer = Tokenizer.load(directory)
        return LLMEngine(executor, tokenizer, name=executor.manifest.model.name, **options)

    # Requests

    def sampling(self, **given: Any) -> SamplingParams:
        """Parameters: what is given, then the model's own recommendation, then the defaults."""
        recommended = {} if self.tokenizer is None else self.tokenizer.sampling
        return SamplingParams.from_model(recommended, **given)

    def prepare(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Sequence:
        """Checks and tokenizes a request without adding it. May be called from any thread.

        options: `Request`'s other fields. UsageError for a bad prompt or parameter,
        ContextLengthError for a request that can never fit.
        """
        request = Request(prompt, self.sampling() if params is None else params, **options)
        if request.n > 1 or request.params.grammar is not None or request.deadline_s is not None:
            raise UnsupportedError("n, grammar and deadline_s do not work yet")
        request_id = request.request_id
        if request_id is None:
            request_id = f"request-{next(self._serial)}"
        return make_sequence(request, request_id, self.limits, self.tokenizer)

    def submit(self, sequence: Sequence) -> str:
        """Adds a prepared request; returns its id.

        UsageError when the id is in use, QueueFullError when `max_waiting` requests wait.
        """
        self._recover()
        request_id = sequence.request_id
        if request_id in self._alive:
            raise UsageError(f"request id {request_id!r} is in use")
        waiting = len(self.scheduler.waiting) - self.scheduler.free_places
        if self._max_waiting is not None and waiting >= self._max_waiting:
            raise QueueFullError(waiting, self._max_waiting)
        sequence.arrival = time.perf_counter()
        self._in_bookkeeping = True
        self._alive[request_id] = sequence
        self.scheduler.add(sequence)
        self._in_bookkeeping = False
        return request_id

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> str:
        """`prepare` and `submit`."""
        return self.submit(self.prepare(prompt, params, **options))

    def cancel(self, request_id: str) -> Completion | None:
        """Ends a request; its blocks are free at once. None when no such request is alive."""
        self._recover()
        sequence = self._alive.get(request_id)
        if sequence is None:
            return None
        self._in_bookkeeping = True
        done = self._finish(sequence, "cancelled")
        self._in_bookkeeping = False
        return done

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
        """Runs one step; returns what it added to which requests."""
        self._recover()
        if self.scheduler.has_work:
            self._undelivered += self._step()
        deltas, self._undelivered = self._undelivered, []
        return deltas

    def _step(self) -> list[Delta]:
        start = time.perf_counter()
        self._in_bookkeeping = True
        plan = self.scheduler.schedule()
        self._in_bookkeeping = False
        assert plan.sequences, "the earliest request can always go on"
        logits = self.executable.step(self._builder.build(plan))
        tokens, logprobs = self._sampler.sample(logits, [s.sampling for s in plan.sampled])
        self._in_bookkeeping = True
        self.scheduler.commit(plan)
        deltas = []
        for index, sequence in enumerate(plan.sampled):
            logprob = None if logprobs is None else logprobs[index]
            deltas.append(self._advance(sequence, tokens[index], logprob))
        self._in_bookkeeping = False
        self.stats.record(plan.tokens, plan.decode_tokens, time.perf_counter() - start)
        return deltas

    def _advance(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> Delta:
        """Gives a sequence its token, and ends it if that was the last."""
        if token == NOT_FINITE:
            error = f"the logits after token {sequence.length} are not finite"
            return self._failed(sequence, self._finish(sequence, "error", error=error))
        if sequence.first_token_time is None:
            sequence.first_token_time = now = time.perf_counter()
            self.stats.first_token(
                now - sequence.arrival, sequence.prompt_length, sequence.cached_tokens or 0
            )
        text, reason, stop = take_token(sequence, token, logprob)
        delta = Delta(sequence.request_id, text, [token])
        if logprob is not None:
            delta.logprobs.append(logprob)
        if reason is not None:
            written = len(sequence.pieces)
            delta.completion = self._finish(sequence, reason, stop)
            delta.finish_reason = reason
            delta.text += "".join(sequence.pieces[written:])
        return delta

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop: str | int | None = None,
        error: str | None = None,
    ) -> Completion:
        del self._alive[sequence.request_id]
        self.scheduler.remove(sequence)
        self.stats.finished += 1
        return completion(sequence, reason, stop, error)

    @staticmethod
    def _failed(sequence: Sequence, done: Completion) -> Delta:
        return Delta(sequence.request_id, finish_reason=done.finish_reason, completion=done)

    def _recover(self) -> None:
        """After an exception in the middle of the bookkeeping: empties the cache, and ends all that
        ran as an error that the next step tells.
        """
        if not self._in_bookkeeping:
            return
        self.scheduler.reset([])
        for sequence in self._alive.values():
            done = completion(sequence, "error", None, "the engine was interrupted")
            self._undelivered.append(self._failed(sequence, done))
        self._alive = {}
        self._in_bookkeeping = False

    # Whole generations

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Generator[Delta, None, None]:
        """One request, delta by delta, checked at once. Closing the generator cancels the request.

        Other requests go on meanwhile; their deltas come with the next `step`.
        """
        return self._run_one(self.prepare(prompt, params, **options))

    def _run_one(self, sequence: Sequence) -> Generator[Delta, None, None]:
        deltas = self._run([sequence])
        try:
            for _, delta in deltas:
                yield delta
        finally:
            deltas.close()

    @overload
    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: Params | None = None,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> Generator[tuple[int, Delta], None, None]: ...

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: Params | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> list[Completion] | Generator[tuple[int, Delta], None, None]:
        """Completes prompts as one batch: texts or lists of token ids, one or several.

        params: for all, or one for each. Returns the completions in the prompts' order or, with
        stream, an iterator of (index of the prompt, `Delta`). All prompts are checked before any
        runs. An exception, or closing the iterator, cancels what has not finished.
        """
        several = as_prompts(prompts)
        each: SequenceOf[SamplingParams | None]
        each = (
            [params] * len(several)
            if params is None or isinstance(params, SamplingParams)
            else params
        )
        if len(each) != len(several):
            raise UsageError(f"{len(several)} prompts came with {len(each)} sampling parameters")
        sequences = [self.prepare(p, one, **options) for p, one in zip(several, each, strict=True)]
        if stream:
            return self._run(sequences)
        done: dict[int, Completion] = {}
        deltas = self._run(sequences)
        try:
            for index, delta in deltas:
                if delta.completion is not None:
                    done[index] = delta.completion
        finally:
            deltas.close()
        return [done[index] for index in range(len(sequences))]

    def _run(self, sequences: list[Sequence]) -> Generator[tuple[int, Delta], None, None]:
        mine: dict[str, int] = {}
        try:
            for index, sequence in enumerate(sequences):
                mine[self.submit(sequence)] = index
            while mine:
                deltas = self.step()
                self._undelivered += [d for d in deltas if d.request_id not in mine]
                for delta in deltas:
                    index = mine.get(delta.request_id, -1)
                    if index >= 0:
                        if delta.completion is not None:
                            del mine[delta.request_id]
                        yield index, delta
        finally:
            for request_id in mine:
                self.cancel(request_id)

    # State

    def reset_cache(self) -> None:
        """Forgets all cached content; what runs is computed again."""
        self._recover()
        self._in_bookkeeping = True
        self.scheduler.reset(self._alive.values())
        self._in_bookkeeping = False

    def audit(self) -> list[str]:
        """Faults in the cache's bookkeeping; an empty list is right."""
        return self.cache.audit(self._alive.values())

    def figures(self) -> dict[str, Any]:
        """What a dashboard shows: the stats, and the state of queue and cache now."""
        return {
            **self.stats.as_dict(),
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "preemptions": self.scheduler.preemptions,
            "blocks": self.cache.num_blocks,
            "blocks_in_use": self.cache.in_use,
            "blocks_cached": self.cache.cached,
        }
