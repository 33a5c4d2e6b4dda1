"""A sequence takes its tokens, becomes text, and ends."""

from __future__ import annotations

from pumice.engine.request import Completion, Delta, FinishReason, TokenLogprob
from pumice.engine.sequence import Sequence


def take_token(
    sequence: Sequence, token: int, logprob: TokenLogprob | None
) -> tuple[str, FinishReason | None, str | int | None]:
    """Appends a token. Returns the text that became certain and, if it was the last, why and by
    what it ended.
    """
    sequence.append(token)
    if logprob is not None:
        sequence.logprobs.append(logprob)
    if token in sequence.stop_ids:
        return "", "stop", token
    text, stream = "", sequence.stream
    if stream is not None:
        text = stream.push((token,))
        if text:
            sequence.pieces.append(text)
        if stream.stopped_by is not None:
            return text, "stop", stream.stopped_by
    if sequence.length == sequence.longest:
        return text, "length", None
    return text, None, None


def completion(
    sequence: Sequence,
    reason: FinishReason,
    now: float,
    stop: str | int | None = None,
    error: str | None = None,
) -> Completion:
    """The whole, at `now` seconds of the engine's clock; text that was held back is in it, and
    appended to the sequence's pieces.
    """
    if sequence.stream is not None:
        rest = sequence.stream.finish()
        if rest:
            sequence.pieces.append(rest)
    first = sequence.first_token_time
    return Completion(
        request_id=sequence.request_id,
        prompt_tokens=sequence.prompt_length,
        text="".join(sequence.pieces),
        token_ids=sequence.output_ids(),
        finish_reason=reason,
        stop=stop,
        logprobs=sequence.logprobs,
        cached_tokens=sequence.cached_tokens or 0,
        ttft_s=0.0 if first is None else first - sequence.arrival,
        decode_s=0.0 if first is None else now - first,
        error=error,
        index=sequence.index,
        vector=sequence.pool.vector() if sequence.pool and reason == "stop" else None,
    )


def last_delta(done: Completion) -> Delta:
    """That an output has ended without a token."""
    return Delta(
        done.request_id, finish_reason=done.finish_reason, completion=done, index=done.index
    )
