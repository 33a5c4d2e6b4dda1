"""One engine for one loaded model: requests in, text out, all of them batched step by step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pumice.engine import sampler
from pumice.engine.batch import BatchBuilder
from pumice.engine.kv_cache import BlockPool
from pumice.engine.request import Completion, Delta, FinishReason, SamplingParams
from pumice.engine.scheduler import Scheduler
from pumice.engine.sequence import Sequence as Running
from pumice.engine.stats import EngineStats
from pumice.errors import UsageError
from pumice.runtime.step import Executable
from pumice.text.stream import TextStream
from pumice.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class LLMEngine:
    """Runs requests on an executable. Not thread-safe: `AsyncEngine` gives it a thread of its own.

    executable: a loaded model (`runtime.step.Executable`). tokenizer: None allows prompts of token ids and gives no text.
    """

    def __init__(
        self,
        executable: Executable,
        tokenizer: Tokenizer | None,
        *,
        name: str = "",
        prefix_cache: bool = True,
    ) -> None:
        self.executable = executable
        self.tokenizer = tokenizer
        self.name = name
        self.limits = executable.limits
        self.pool = BlockPool(
            self.limits.num_blocks, self.limits.block_size, prefix_cache=prefix_cache
        )
        self.scheduler = Scheduler(self.limits, self.pool)
        self.stats = EngineStats()
        self._batch = BatchBuilder(self.limits)
        self._serial = itertools.count()
        self._requests: dict[str, Running] = {}
        self._streams: dict[str, TextStream] = {}

    @staticmethod
    def from_artifact(
        directory: Path,
        *,
        device: str = "cpu",
        threads: int | None = None,
        context_length: int | None = None,
        num_blocks: int | None = None,
        prefix_cache: bool = True,
    ) -> LLMEngine:
        """Loads a compiled artifact; see `runtime.load.load` for the arguments and errors."""
        from pumice.runtime.load import load

        executor = load(
            Path(directory),
            device=device,
            threads=threads,
            context_length=context_length,
            num_blocks=num_blocks,
        )
        tokenizer = None
        if (Path(directory) / "tokenizer.json").is_file():
            tokenizer = Tokenizer.load(Path(directory))
        name = executor.manifest.model.name
        return LLMEngine(executor, tokenizer, name=name, prefix_cache=prefix_cache)

    # -- requests ----------------------------------------------------------------------------

    def sampling(self, **given: Any) -> SamplingParams:
        """Parameters: what is given, then the model's own recommendation, then the defaults."""
        recommended = {} if self.tokenizer is None else self.tokenizer.sampling
        return SamplingParams.from_model(recommended, **given)

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        continues_text: bool = True,
    ) -> str:
        """Queues a request and returns its id.

        prompt: text (special tokens are added, none are parsed) or token ids.
        continues_text: the output goes on a text (a completion) rather than beginning one (an answer), so that a leading
        space is kept.
        Raises UsageError (bad ids, no tokenizer, id in use) and ContextLengthError.
        """
        params = params or self.sampling()
        tokens = self._tokens(prompt)
        request_id = request_id if request_id is not None else f"request-{next(self._serial)}"
        if request_id in self._requests:
            raise UsageError(f"a request with the id {request_id!r} is running")
        if params.stop and self.tokenizer is None:
            raise UsageError("stop strings need a tokenizer; this model was loaded without one")
        longest = self.limits.context_length
        if params.max_tokens is not None:
            longest = min(longest, len(tokens) + params.max_tokens)
        sequence = Running(
            request_id,
            tokens,
            len(tokens),
            params,
            np.random.default_rng(params.seed),
            max_length=longest,
        )
        self.scheduler.submit(sequence)
        self._requests[request_id] = sequence
        if self.tokenizer is not None:
            self._streams[request_id] = TextStream(
                self.tokenizer,
                stop=tuple(params.stop),
                strip_leading_space=False if continues_text else None,
            )
        return request_id

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise UsageError("a text prompt needs a tokenizer; give token ids")
            tokens = self.tokenizer.encode(prompt, add_special=True, parse_special=False)
            if not tokens:  # nothing to go on from: begin a text
                start = self.tokenizer.bos_id
                if start is None:
                    raise UsageError("the prompt is empty, and the model has no token to begin with")
                tokens = [start]
            return tokens
        tokens = [int(t) for t in prompt]
        if not tokens:
            raise UsageError("the prompt is empty: it has no token ids")
        bad = [t for t in tokens if not 0 <= t < self.limits.vocab_size]
        if bad:
            raise UsageError(
                f"token id {bad[0]} is outside the vocabulary of {self.limits.vocab_size:,} tokens"
            )
        return tokens

    def cancel(self, request_id: str) -> None:
        """Ends a request now and frees its blocks. An id that is not running is ignored: it may just have finished."""
        sequence = self._requests.pop(request_id, None)
        self._streams.pop(request_id, None)
        if sequence is not None:
            sequence.finish_reason = "cancelled"
            self.scheduler.finish(sequence)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    # -- the loop ----------------------------------------------------------------------------

    def step(self) -> list[Delta]:
        """Computes one batch; returns what each request gained. Empty when there is nothing to do."""
        schedule = self.scheduler.schedule()
        if not schedule:
            return []
        started = time.perf_counter()
        batch, sampled = self._batch.build(schedule)
        logits = self.executable.step(batch)
        for sequence, count in schedule:
            sequence.advance(self.pool, count)
        deltas = [self._take(sequence, row) for sequence, row in zip(sampled, logits, strict=True)]
        self._count(schedule, time.perf_counter() - started)
        return deltas

    def _count(self, schedule: list[tuple[Running, int]], seconds: float) -> None:
        stats = self.stats
        stats.steps += 1
        if all(count == 1 for _, count in schedule):
            stats.decode_tokens += len(schedule)
            stats.decode_s += seconds
        else:
            stats.prefill_tokens += sum(count for _, count in schedule)
            stats.prefill_s += seconds

    def _take(self, sequence: Running, row: np.ndarray) -> Delta:
        """Chooses a sequence's next token and decides whether it was the last."""
        params = sequence.params
        token = sampler.choose(row, sequence)
        delta = Delta(sequence.request_id, token_ids=[token])
        if params.logprobs is not None:
            delta.logprobs = [sampler.logprob(row, token, params.logprobs)]
            sequence.logprobs += delta.logprobs
        sequence.last_token = time.perf_counter()
        if len(sequence.tokens) == sequence.prompt_length:
            sequence.first_token = sequence.last_token
            self.stats.last_ttft_s = sequence.first_token - sequence.submitted
            self.stats.cached_tokens += sequence.cached
        sequence.tokens.append(token)
        stream = self._streams.get(sequence.request_id)
        reason: FinishReason | None = None
        if self._ends(token, params):
            reason = "stop"
        else:
            if stream is not None:
                delta.text = stream.push((token,))
                if stream.stopped_by is not None:
                    reason = "stop"
            if reason is None and len(sequence.tokens) >= sequence.max_length:
                reason = "length"
        if reason is not None:
            if stream is not None:
                delta.text += stream.finish()
            delta.finish_reason = sequence.finish_reason = reason
            self.scheduler.finish(sequence)
            self._requests.pop(sequence.request_id)
            self._streams.pop(sequence.request_id, None)
        return delta

    def _ends(self, token: int, params: SamplingParams) -> bool:
        if token in params.stop_token_ids:
            return True
        return not params.ignore_eos and self.tokenizer is not None and token in self.tokenizer.eos_ids

    # -- whole generations -------------------------------------------------------------------

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, continues_text: bool = True
    ) -> Generator[Delta, None, None]:
        """One request, delta by delta. Closing the generator, or an exception in it, cancels the request.

        Other requests of the engine go on meanwhile; their deltas are lost, so do not mix this with `step`.
        """
        request_id = self.add_request(prompt, params, continues_text=continues_text)
        try:
            while request_id in self._requests:
                for delta in self.step():
                    if delta.request_id == request_id:
                        yield delta
        finally:
            self.cancel(request_id)

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Completes all prompts as one batch; the results are in the prompts' order.

        An exception (Ctrl-C too) cancels what is unfinished: the engine stays usable.
        """
        if isinstance(prompts, str):
            raise UsageError("prompts is one text; a list of prompts is expected")
        if params is None or isinstance(params, SamplingParams):
            each: Sequence[SamplingParams | None] = [params] * len(prompts)
        else:
            each = params
        if len(each) != len(prompts):
            raise UsageError(f"{len(prompts)} prompts came with {len(each)} sampling parameters")
        ids: list[str] = []
        try:
            for prompt, one in zip(prompts, each, strict=True):
                ids.append(self.add_request(prompt, one))
            sequences = {i: self._requests[i] for i in ids}
            texts = dict.fromkeys(ids, "")
            while any(i in self._requests for i in ids):
                for delta in self.step():
                    if delta.request_id in texts:
                        texts[delta.request_id] += delta.text
        finally:
            for request_id in ids:
                self.cancel(request_id)
        return [completion(sequences[i], texts[i]) for i in ids]


def completion(sequence: Running, text: str) -> Completion:
    """A finished sequence for its caller."""
    assert sequence.finish_reason is not None
    return Completion(
        request_id=sequence.request_id,
        prompt_tokens=sequence.prompt_length,
        text=text,
        token_ids=sequence.output,
        finish_reason=sequence.finish_reason,
        logprobs=sequence.logprobs,
        cached_tokens=sequence.cached,
        ttft_s=sequence.first_token - sequence.submitted,
        decode_s=sequence.last_token - sequence.first_token,
    )
