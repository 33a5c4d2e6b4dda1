"""The next turn's prompt in the very tokens of the turns before, so that the cache knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumice.text.tokenizer import Tokenizer


def continue_tokens(tokenizer: Tokenizer, before: list[int], ids: list[int]) -> list[int]:
    """`ids`, but beginning with `before` when both say the same.

    before: prompt and answer of the last turn, as the model saw and made them. ids: the whole
    conversation, tokenized anew. A model need not spell its answer as the tokenizer would, and then
    nothing after that place would be found in the cache. Where the texts differ (the template
    dropped or changed something) `ids` are right and come back as they are.
    """
    if ids[: len(before)] == before:
        return ids
    target = b"".join(_mark(tokenizer, i) for i in before)
    length = 0
    for index, i in enumerate(ids):
        if length == len(target):
            return before + ids[index:]
        piece = _mark(tokenizer, i)
        if target[length : length + len(piece)] != piece:
            return ids
        length += len(piece)
    return ids


def _mark(tokenizer: Tokenizer, token: int) -> bytes:
    """A token's bytes; a control token's are such that no text is equal to them."""
    if token in tokenizer.control_ids:
        return b"\xff%d\xfe" % token
    return tokenizer.token_bytes(token)
