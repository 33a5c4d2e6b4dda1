"""Runs a job on the engine. Every protocol's answers, streamed or not, come from these steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass, field
from typing import Any

from pumice.engine.request import Delta, TokenLogprob
from pumice.engine.sampling_params import SamplingParams
from pumice.server.context import ServerContext
from pumice.server.core.choice import Choice
from pumice.server.core.job import Job
from pumice.server.core.parsing import Reader, reader_for
from pumice.server.core.prompt import PromptIds, encode, too_long
from pumice.server.errors import ApiError
from pumice.server.metrics import Watch
from pumice.server.parsers.events import ContentDelta, Event
from pumice.server.tally import TALLY


@dataclass(frozen=True)
class End:
    """How a choice ended.

    reason: stop, length, tool_calls, deadline. stop: the stop string, when one was met.
    context_full: it is "length" because the context ended, not because of max_tokens.
    """

    reason: str
    stop: str | None
    output_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    ttft_s: float
    decode_s: float
    context_full: bool = False


@dataclass(frozen=True)
class Step:
    """What a choice gained. token_ids, logprobs: of the tokens that were added, an end token not
    among them.
    """

    index: int
    events: tuple[Event, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    end: End | None = None

    @property
    def is_text(self) -> bool:
        """Whether there is `text` and nothing else to tell but token ids."""
        events = self.events
        if len(events) != 1 or self.end is not None or self.logprobs:
            return False
        return type(events[0]) is ContentDelta

    @property
    def text(self) -> str:
        """Content, of all events."""
        return "".join([event.text for event in self.events if isinstance(event, ContentDelta)])


@dataclass
class Generation:
    """A job that was accepted. steps: to be read once; closing it cancels what runs."""

    prompt: PromptIds
    steps: Steps = field(repr=False)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.ids)


async def start(context: ServerContext, job: Job) -> Generation:
    """Checks and submits a job.

    Waits for its first step, or for `early_error` seconds, so that a refusal (a full queue, a bad
    schema) is an error of the call and not of a stream that has begun.
    """
    if context.draining:
        raise ApiError(
            503, "the server is about to end and takes no more requests", code="shutting_down",
            retry_after=context.settings.retry_after,
        )  # fmt: skip
    watch = context.metrics.watch()
    prompt = await asyncio.to_thread(encode, context, job)
    reader = reader_for(context, job, prompt.ids)
    prompt = PromptIds(reader.prompt, prompt.dropped)
    params = _params(context, job, reader, len(prompt.ids))
    steps = Steps(_run(context, job, prompt, reader, params, watch))
    await steps.begin(context.settings.early_error)
    return Generation(prompt, steps)


class Steps:
    """Steps of a job, of which the first may have come already."""

    def __init__(self, steps: AsyncGenerator[Step, None]) -> None:
        self._steps = steps
        self._first: asyncio.Future[Step] | None = None

    async def begin(self, seconds: float) -> None:
        """Waits for the first step, for so long; raises what it raises."""
        self._first = first = asyncio.ensure_future(anext(self._steps))
        try:
            await asyncio.wait((first,), timeout=seconds)
            if first.done():
                first.result()
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> Steps:
        return self

    def __anext__(self) -> Awaitable[Step]:
        return self._steps.__anext__() if self._first is None else self._next()

    async def _next(self) -> Step:
        first, self._first = self._first, None
        assert first is not None
        try:
            return await first
        except asyncio.CancelledError:
            self._first = first  # aclose ends it
            raise

    async def aclose(self) -> None:
        """Cancels what runs."""
        first, self._first = self._first, None
        if first is not None and not first.done():
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await self._steps.aclose()


async def _run(
    context: ServerContext,
    job: Job,
    prompt: PromptIds,
    reader: Reader,
    params: SamplingParams,
    watch: Watch,
) -> AsyncGenerator[Step, None]:
    choices = [reader.choice(context.hidden) for _ in range(job.n)]
    counts, open_choices = [0] * job.n, set(range(job.n))
    options: dict[str, Any] = {
        "continues_text": job.prompt is not None or job.continue_final,
        "cache_salt": job.salt,
        "priority": job.priority,
        "deadline_s": job.deadline_s,
        "n": job.n,
    }
    deltas = context.engine.stream(prompt.ids, params, **options)
    ended = "cancelled"
    try:
        async for delta in deltas:
            index = delta.index
            if index not in open_choices:
                continue
            choice = choices[index]
            counts[index] += len(delta.token_ids)
            watch.tokens(index, len(delta.token_ids))
            events = choice.push(delta.text, len(delta.token_ids))
            end = None
            if delta.completion is not None or choice.done:
                events += choice.finish()
                end = _end(context, job, prompt, choice, delta, counts[index], watch)
                open_choices.discard(index)
                watch.end(end.reason, len(prompt.ids), counts[index])
            ids, logprobs = _told(delta)
            if events or ids or end is not None:
                yield Step(index, tuple(events), ids, logprobs, end)
            if not open_choices:
                break
    except Exception:  # of any kind: it is only counted here, and goes on
        ended = "error"
        raise
    finally:
        tally = TALLY.get(None)
        if tally is not None:
            tally.prompt += len(prompt.ids)
            tally.output += sum(counts)
        for index in open_choices:
            watch.end(ended, len(prompt.ids), counts[index])
        await deltas.aclose()


def _told(delta: Delta) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
    """Without the end token, which is no part of the text."""
    done = delta.completion
    ids, logprobs = tuple(delta.token_ids), tuple(delta.logprobs)
    if done is not None and isinstance(done.stop, int) and ids and ids[-1] == done.stop:
        return ids[:-1], logprobs[: len(ids) - 1]
    return ids, logprobs


def _end(
    context: ServerContext,
    job: Job,
    prompt: PromptIds,
    choice: Choice,
    delta: Delta,
    tokens: int,
    watch: Watch,
) -> End:
    done = delta.completion
    reason: str = "stop" if done is None else done.finish_reason
    if reason == "error":
        raise ApiError(500, "the model failed on this request", code="generation_failed")
    if reason == "cancelled":
        raise ApiError(503, "the server is ending; the answer was cut off", code="shutting_down")
    stop = choice.stopped_by
    if stop is None and done is not None and isinstance(done.stop, str):
        stop = done.stop
    if choice.tool_calls and reason == "stop" and stop is None:
        reason = "tool_calls"
    elif choice.done:
        reason = "stop"
    started = watch.first
    return End(
        reason=reason,
        stop=stop,
        output_tokens=tokens,
        reasoning_tokens=choice.reasoning_tokens,
        cached_tokens=0 if done is None else done.cached_tokens,
        ttft_s=(started - watch.start) if started is not None else 0.0,
        decode_s=0.0 if done is None else done.decode_s,
        context_full=reason == "length" and len(prompt.ids) + tokens >= context.room,
    )


def _params(context: ServerContext, job: Job, reader: Reader, prompt_tokens: int) -> SamplingParams:
    """max_tokens is an upper bound, so it is cut to what the context has."""
    room = context.room - prompt_tokens
    if room < 1:
        raise too_long(context, prompt_tokens)
    given = dict(job.sampling)
    given["max_tokens"] = room if job.max_tokens is None else min(job.max_tokens, room)
    if reader.grammar is not None:
        given["grammar"] = reader.grammar
    if reader.plain:
        given["stop"] = job.stop
    if reader.show_control:
        given["skip_special"] = False
    return context.engine.engine.sampling(**given)
