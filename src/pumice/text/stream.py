"""Token ids to text while they are generated.

What is shown never changes afterwards: a character whose bytes are not all there is held, and so
is text that may begin a stop string. The whole shown text is what `Tokenizer.decode` gives for
all ids, cut before the first stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from pumice.text.stop import StopMatcher
from pumice.text.tokenizer import Tokenizer


class TextStream:
    """One generated text. Costs are linear in its length."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        skip_special: bool = True,
        strip_leading_space: bool | None = None,
    ) -> None:
        """
        stop: the text ends before the first of these. skip_special: control tokens add no text.
        strip_leading_space: take away the space that a SentencePiece vocabulary puts before the
        first word; None: if the vocabulary does so. False continues a text that stands before
        (raw completion).
        """
        self._tokenizer = tokenizer
        self._hidden = tokenizer.control_ids if skip_special else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop)
        if strip_leading_space is None:
            strip_leading_space = tokenizer.strips_leading_space
        self._at_start = strip_leading_space
        self._finished = False

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._matcher.matched

    def push(self, ids: Iterable[int]) -> str:
        """Takes ids, returns the text that they make certain. After a stop string: nothing."""
        data = b"".join(self._tokenizer.token_bytes(i) for i in ids if i not in self._hidden)
        if self._at_start and data:
            data = data.removeprefix(b" ")
            self._at_start = False
        return self._matcher.push(self._utf8.decode(data))

    def finish(self) -> str:
        """The rest of the text: bytes of an unfinished character become U+FFFD. Once; then
        nothing.
        """
        if self._finished:
            return ""
        self._finished = True
        text = self._matcher.push(self._utf8.decode(b"", final=True))
        return text + self._matcher.finish()
