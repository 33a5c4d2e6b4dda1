"""Checks a request against the model and the cache, and makes the sequence that will run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pumice.engine.request import Prompt, Request
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.sequence import Sequence, SequenceGroup
from pumice.errors import ContextLengthError, UnsupportedError, UsageError
from pumice.runtime.step import StepLimits

if TYPE_CHECKING:
    from pumice.engine.grammar_matcher import Matcher
    from pumice.text.stream import TextStream
    from pumice.text.tokenizer import Tokenizer


def as_prompts(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list. A list of integers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and np.ndim(cast(Any, prompts[0])) == 0 and not isinstance(prompts[0], str):
        return [cast("SequenceOf[int]", prompts)]
    return list(cast("SequenceOf[Prompt]", prompts))


def make_group(
    request: Request,
    request_id: str,
    limits: StepLimits,
    tokenizer: Tokenizer | None,
    matcher: Matcher | None = None,
) -> SequenceGroup:
    """The sequences of a request. matcher: its grammar at the beginning.

    UsageError for a bad prompt or parameter, ContextLengthError for one that can never fit,
    UnsupportedError for an embedding by an executable that has no hidden states.
    """
    if request.pooling is not None:
        if not limits.hidden_size:
            raise UnsupportedError(
                "the compiled model has logits only; embeddings need its hidden states",
                hint="Compile the model again with `pumice compile`.",
            )
        request = dataclasses.replace(request, use_cache=False)
    prompt = _token_ids(request.prompt, limits.vocab_size, tokenizer)
    params = request.params
    _check_ids(params, limits.vocab_size)
    stop_ids = set(params.stop_token_ids)
    if tokenizer is not None:
        if not params.ignore_eos:
            stop_ids |= tokenizer.eos_ids
    elif params.stop:
        raise UsageError(
            f"stop is {list(params.stop)!r}; an engine without a tokenizer has no text"
        )
    if request.pooling is not None:
        longest = _embedded(len(prompt), limits)
    else:
        longest = _longest(len(prompt), params.max_tokens, limits)
    return SequenceGroup(
        [
            Sequence(
                request,
                request_id,
                prompt,
                longest=longest,
                vocab_size=limits.vocab_size,
                stop_ids=frozenset(stop_ids),
                stream=_stream(request, tokenizer),
                index=index,
                matcher=matcher.copy() if matcher is not None and index else matcher,
            )
            for index in range(request.n)
        ]
    )


def _stream(request: Request, tokenizer: Tokenizer | None) -> TextStream | None:
    if tokenizer is None or request.pooling is not None:
        return None
    from pumice.text.stream import TextStream

    return TextStream(
        tokenizer,
        stop=request.params.stop,
        skip_special=request.params.skip_special,
        strip_leading_space=False if request.continues_text else None,
    )


def _token_ids(prompt: Prompt, vocab_size: int, tokenizer: Tokenizer | None) -> np.ndarray:
    """The prompt as int32."""
    ids: Any = prompt
    if isinstance(prompt, str):
        if tokenizer is None:
            raise UsageError("the prompt is text; an engine without a tokenizer takes token ids")
        encoded = tokenizer.encode(prompt, add_special=False, parse_special=False)
        ids = tokenizer.with_prefix(encoded)
        if not ids and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id]  # nothing to go on from: begin a text
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError):
        raise UsageError(f"the prompt is a {type(prompt).__name__}; allowed: {_PROMPTS}") from None
    if array.size == 0:
        raise UsageError("the prompt is empty; it must have at least one token")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(
            f"the prompt is a {type(prompt).__name__} of {array.dtype} in {array.ndim} dimensions; "
            f"allowed: {_PROMPTS}"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise UsageError(f"the prompt holds token id {bad}; allowed: 0 to {vocab_size - 1}")
    return array.astype(np.int32)


_PROMPTS = "text, or a list of token ids"


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token in ids:
            if token >= vocab_size:
                raise UsageError(f"{name} names token id {token}; allowed: 0 to {vocab_size - 1}")


def _room(limits: StepLimits) -> tuple[int, str]:
    """Tokens that one sequence can have, and what bounds them."""
    room = min(limits.context_length, limits.num_blocks * limits.block_size)
    return room, "the context" if room == limits.context_length else "the whole cache"


def _embedded(prompt: int, limits: StepLimits) -> int:
    room, what = _room(limits)
    if prompt > room:
        raise ContextLengthError(
            f"the prompt has {prompt:,} tokens; {what} holds {room:,}",
            hint="Embed parts of it, or load the model with more context.",
        )
    return prompt


def _longest(prompt: int, max_tokens: int | None, limits: StepLimits) -> int:
    """Tokens of prompt and output together, at most."""
    room, what = _room(limits)
    need = prompt + (1 if max_tokens is None else max_tokens)
    if need > room:
        if max_tokens is None:
            message = (
                f"the prompt has {prompt:,} tokens; {what} holds {room:,}, one of them generated"
            )
        else:
            message = (
                f"the prompt's {prompt:,} tokens and up to {max_tokens:,} generated ones are "
                f"{need:,}; {what} holds {room:,}"
            )
        raise ContextLengthError(
            message, hint="Shorten the prompt, generate less, or load the model with more context."
        )
    return room if max_tokens is None else need
