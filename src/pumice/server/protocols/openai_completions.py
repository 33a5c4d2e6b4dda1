"""OpenAI's `/v1/completions`: texts that are continued as they are.

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from pumice.engine.request import TokenLogprob
from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.core.generate import End, Generation
from pumice.server.core.job import Job
from pumice.server.core.merge import collect_all, merged, start_all
from pumice.server.core.result import Result, Usage
from pumice.server.errors import bad_request, body_of, from_exception, unsupported
from pumice.server.protocols.fields import (
    SamplingFields,
    check_choices,
    check_model,
    dropped_header,
    new_id,
    prompts_of,
    stops,
    token_text,
)
from pumice.server.protocols.openai_format import ResponseFormat, StreamOptions, grammar_of
from pumice.server.protocols.openai_usage import usage_body
from pumice.server.responses import Pattern, Stream, json_answer, sse, unless_gone

PATH = "/v1/completions"
_DEFAULT_TOKENS = 16  # OpenAI's


class CompletionRequest(SamplingFields):
    """The fields of OpenAI's request that work here, then ours."""

    prompt: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, description="16 when it is not given.")
    n: int | None = Field(None, ge=1)
    best_of: int | None = Field(None, ge=1, description="No more than n works here.")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    response_format: ResponseFormat | None = None
    truncate_prompt_tokens: int | None = Field(
        None, ge=1, description="Keep so many of the last tokens of a longer prompt."
    )


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "OpenAI")

    @router.post(PATH, summary="Continue texts.")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        jobs = jobs_of(context, body, request.state.salt)
        return await unless_gone(request, _answer(context, body, jobs))

    return router


def jobs_of(context: ServerContext, body: CompletionRequest, salt: bytes) -> list[Job]:
    """One a prompt."""
    check_model(context, body.model)
    count = body.n or 1
    prompts = prompts_of(body.prompt, "prompt")
    check_choices(context, count * len(prompts), "prompt, with n for each,")
    if body.best_of is not None and body.best_of != count:
        raise unsupported("best_of", f"it must equal n, which is {count}: nothing is thrown away")
    if body.suffix:
        prompts = [_infill(context, prompt, body.suffix) for prompt in prompts]
        if body.echo:
            raise unsupported("echo", "it does not go with suffix")
    if body.echo and body.logprobs is not None:
        raise unsupported("echo", "with logprobs it needs those of the prompt, which are not made")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    sampling = body.sampling()
    if body.logprobs is not None:
        sampling |= {"logprobs": True, "top_logprobs": body.logprobs}
    return [
        Job(
            prompt=prompt,
            sampling=sampling,
            stop=stops(context, body.stop, "stop"),
            max_tokens=body.max_tokens or _DEFAULT_TOKENS,
            n=count,
            grammar=grammar_of(body.response_format, context.settings),
            priority=body.priority or 0,
            deadline_s=body.deadline_s,
            keep_last=body.truncate_prompt_tokens,
            salt=salt,
        )
        for prompt in prompts
    ]


def _infill(context: ServerContext, prompt: str | list[int], suffix: str) -> str | list[int]:
    """400 unless the vocabulary has tokens to fill in the middle (Bavarian et al., 2022)."""
    tokenizer = context.tokenizer
    for names in _INFILL:
        before, after, middle = (tokenizer.control_tokens.get(name) for name in names)
        if before is not None and after is not None and middle is not None:
            if isinstance(prompt, str):
                prompt = tokenizer.encode(prompt, add_special=False, parse_special=False)
            behind = tokenizer.encode(suffix, add_special=False, parse_special=False)
            return [before, *prompt, after, *behind, middle]
    raise unsupported("suffix", f"{context.name} was not made to fill in the middle")


_INFILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


async def _answer(context: ServerContext, body: CompletionRequest, jobs: list[Job]) -> Response:
    generations = await start_all(context, jobs)
    headers = dropped_header(*generations)
    answer = _Answer(context, body, jobs, generations)
    if body.stream:
        return Stream(answer.stream(), context.settings, answer.release, headers=headers)
    results = await collect_all(generations, jobs[0].n)
    return json_answer(answer.whole(results), headers)


class _Answer:
    def __init__(
        self,
        context: ServerContext,
        body: CompletionRequest,
        jobs: list[Job],
        generations: list[Generation],
    ) -> None:
        self._context = context
        self._jobs = jobs
        self._generations = generations
        self._count = jobs[0].n
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        self._logprobs = body.logprobs is not None
        self._echo = bool(body.echo)
        options = body.stream_options
        self._usage_wanted = bool(options and options.include_usage)
        self._offsets: dict[int, int] = {}
        self._patterns: dict[int, Pattern] = {}

    async def release(self) -> None:
        for generation in self._generations:
            await generation.steps.aclose()

    def whole(self, results: list[list[Result]]) -> dict[str, Any]:
        choices = []
        usage = Usage(0, 0)
        for p, (generation, several) in enumerate(zip(self._generations, results, strict=True)):
            usage += Usage.of(generation.prompt_tokens, [r.end for r in several])
            for i, result in enumerate(several):
                assert result.end is not None
                index = p * self._count + i
                echo = self._echoed(p)
                choice = self._choice(index, echo + result.content, result.end, len(echo))
                choice["logprobs"] = self._logprobs_of(index, result.logprobs)
                choices.append(choice)
        return self._head() | {"choices": choices, "usage": usage_body(usage)}

    async def stream(self) -> AsyncGenerator[str, None]:
        ends: list[list[End | None]] = [[] for _ in self._generations]
        try:
            if self._echo:
                for p in range(len(self._generations)):
                    for i in range(self._count):
                        index = p * self._count + i
                        echo = self._echoed(p)
                        yield self._chunk(self._choice(index, echo, None, len(echo)))
            async with aclosing(merged([g.steps for g in self._generations])) as steps:
                async for p, step in steps:
                    index = p * self._count + step.index
                    if step.is_text:
                        yield self._text(index, step.text)
                        continue
                    choice = self._choice(index, step.text, step.end)
                    if step.logprobs:
                        choice["logprobs"] = self._logprobs_of(index, list(step.logprobs))
                    if choice["text"] or choice["logprobs"] or step.end:
                        yield self._chunk(choice)
                    ends[p].append(step.end)
            if self._usage_wanted:
                usage = Usage(0, 0)
                for generation, ended in zip(self._generations, ends, strict=True):
                    usage += Usage.of(generation.prompt_tokens, ended)
                yield sse(self._head() | {"choices": [], "usage": usage_body(usage)})
        except Exception as error:
            yield sse(body_of(from_exception(error), PATH))
        yield sse("[DONE]")

    def _echoed(self, p: int) -> str:
        if not self._echo:
            return ""
        prompt = self._jobs[p].prompt
        if isinstance(prompt, str) and not self._generations[p].prompt.dropped:
            return prompt
        return self._context.tokenizer.decode(self._generations[p].prompt.ids)

    def _choice(self, index: int, text: str, end: End | None, echoed: int = 0) -> dict[str, Any]:
        if echoed:
            self._offsets[index] = echoed
        return {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": None if end is None else end.reason,
            "stop_reason": None if end is None else end.stop,
        }

    def _text(self, index: int, text: str) -> str:
        """The chunk of a step that is nothing but text, as nearly all are."""
        pattern = self._patterns.get(index)
        if pattern is None:
            pattern = Pattern(lambda text: self._chunk(self._choice(index, text, None)))
            self._patterns[index] = pattern
        return pattern.fill(text)

    def _chunk(self, choice: dict[str, Any]) -> str:
        chunk = self._head() | {"choices": [choice]}
        if self._usage_wanted:
            chunk["usage"] = None
        return sse(chunk)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._context.name,
            "system_fingerprint": self._context.fingerprint,
        }

    def _logprobs_of(self, index: int, logprobs: list[TokenLogprob]) -> dict[str, Any] | None:
        """OpenAI's older form. text_offset: characters before the token."""
        if not self._logprobs:
            return None
        offset = self._offsets.get(index, 0)
        told: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
        }  # fmt: skip
        for entry in logprobs:
            text, _ = token_text(self._context, entry.token)
            told["tokens"].append(text)
            told["token_logprobs"].append(max(entry.logprob, -9999.0))
            likeliest = [*entry.top, (entry.token, entry.logprob)]
            told["top_logprobs"].append(
                {token_text(self._context, t)[0]: max(value, -9999.0) for t, value in likeliest}
            )
            told["text_offset"].append(offset)
            offset += len(text)
        self._offsets[index] = offset
        return told
