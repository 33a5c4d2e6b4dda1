"""A job's prompt as token ids that leave room for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumice.errors import ContextLengthError, UsageError
from pumice.server.context import ServerContext
from pumice.server.core.enforced import has_strict
from pumice.server.core.job import Job, Message
from pumice.server.core.tool_prompt import describe, knows_calls, knows_tools, spell_out
from pumice.server.errors import bad_request

_TRUNCATION_LEAVES = 16  # tokens of room for an answer, at least


@dataclass(frozen=True)
class PromptIds:
    """ids: what the model reads. dropped: messages (or tokens of a plain prompt) that were left out
    because the job asked for truncation.
    """

    ids: list[int]
    dropped: int = 0


def encode(context: ServerContext, job: Job) -> PromptIds:
    """Renders and tokenizes; may take long, so not for the event loop.

    400 for a conversation that the template does not take; ContextLengthError, with both sizes, for
    a prompt that does not fit.
    """
    limit = context.settings.max_prompt_chars
    size = len(job.prompt or "") + sum(_size(message) for message in job.messages)
    if size > limit:
        raise bad_request(f"the prompt has {size:,} characters; {limit:,} are allowed")
    if job.prompt is not None:
        return _plain(context, job)
    ids = _chat(context, job, list(job.messages))
    if len(ids) < context.room:
        return PromptIds(ids)
    if not job.truncate:
        raise too_long(context, len(ids))
    return _shortened(context, job)


def too_long(context: ServerContext, tokens: int) -> ContextLengthError:
    """Says both sizes."""
    return ContextLengthError(
        f"the prompt has {tokens:,} tokens; the context holds {context.room:,}, at least one of "
        "them generated"
    )


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_size(item) for item in value)
    return 0


def _plain(context: ServerContext, job: Job) -> PromptIds:
    tokenizer = context.tokenizer
    if isinstance(job.prompt, str):
        ids = tokenizer.encode(job.prompt, add_special=False, parse_special=False)
        ids = tokenizer.with_prefix(ids)
        if not ids and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id]
    else:
        ids = list(job.prompt or ())
    if not ids:
        raise bad_request("the prompt is empty; it must have at least one token", "prompt")
    vocabulary = context.engine.engine.limits.vocab_size
    for token in ids:
        if not 0 <= token < vocabulary:
            raise bad_request(
                f"the prompt holds token id {token}; allowed: 0 to {vocabulary - 1}", "prompt"
            )
    if not job.generates:
        return _embedded(context, job, ids)
    keep = job.keep_last
    if keep is not None and len(ids) > keep:
        return PromptIds(ids[len(ids) - keep :], len(ids) - keep)
    if len(ids) < context.room:
        return PromptIds(ids)
    if not job.truncate:
        raise too_long(context, len(ids))
    keep = max(1, context.room - _reserve(context, job))
    return PromptIds(ids[len(ids) - keep :], len(ids) - keep)


def _embedded(context: ServerContext, job: Job, ids: list[int]) -> PromptIds:
    """Truncation keeps the beginning here: it is a text's, and nothing goes on at its end."""
    room = context.room
    if len(ids) <= room:
        return PromptIds(ids)
    if not job.truncate:
        raise ContextLengthError(f"the input has {len(ids):,} tokens; the context holds {room:,}")
    return PromptIds(ids[:room], len(ids) - room)


def _reserve(context: ServerContext, job: Job) -> int:
    """Tokens that truncation keeps free for the answer."""
    wanted = context.room // 4 if job.max_tokens is None else job.max_tokens
    return max(1, min(max(wanted, _TRUNCATION_LEAVES), context.room // 2))


def _chat(context: ServerContext, job: Job, messages: list[Message]) -> list[int]:
    from pumice.text.prompt import encode_chat

    if context.template is None:
        raise bad_request(f"{context.name} has no chat template; use /v1/completions", "messages")
    variables = dict(job.template)
    source, tools = context.template.source, job.tools.shown
    if not knows_calls(source):
        messages = spell_out(messages)
    if tools and not knows_tools(source):
        messages, tools = describe(messages, tools, tagged=has_strict(job.tools)), ()
    if job.continue_final:
        return _continued(context, messages, tools, variables)
    return encode_chat(context.tokenizer, context.template, messages, tools or None, **variables)


def _continued(
    context: ServerContext,
    messages: list[Message],
    tools: tuple[dict[str, Any], ...],
    variables: dict[str, Any],
) -> list[int]:
    """The last message is the beginning of the answer: what the template writes after its text is
    cut off.
    """
    from pumice.text.prompt import encode_chat

    template, tokenizer = context.template, context.tokenizer
    assert template is not None
    before = encode_chat(tokenizer, template, messages[:-1], tools or None, **variables)
    text = messages[-1].get("content") or ""
    if not isinstance(text, str):
        raise UsageError("the message to continue must be a text")
    return before + tokenizer.encode(text, add_special=False, parse_special=False)


def _shortened(context: ServerContext, job: Job) -> PromptIds:
    """Without the oldest turns; system messages and the last turn stay."""
    head = 0
    while head < len(job.messages) and job.messages[head]["role"] in ("system", "developer"):
        head += 1
    starts = [i for i in range(head, len(job.messages)) if job.messages[i]["role"] == "user"]
    most = context.room - _reserve(context, job)
    low, high = 1, len(starts) - 1  # how many turns go; fewer is better
    best: PromptIds | None = None
    while low <= high:
        middle = (low + high) // 2
        kept = [*job.messages[:head], *job.messages[starts[middle] :]]
        ids = _chat(context, job, list(kept))
        if len(ids) <= most:
            best = PromptIds(ids, len(job.messages) - len(kept))
            high = middle - 1
        else:
            low = middle + 1
    if best is None:
        shortest = [*job.messages[:head], *(job.messages[starts[-1] :] if starts else ())]
        raise too_long(context, len(_chat(context, job, list(shortest or job.messages))))
    return best
