"""Grammars at work: which tokens may come next. The parsing is llguidance's.

It is imported when the first grammar is used. A token may come when the grammar can go on after its
bytes; those are our own tokenizer's, so what is enforced is the very text that is shown.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.engine.grammar import Grammar
from pumice.engine.grammar_check import blame, check_escapes, read_schema
from pumice.errors import GrammarError

if TYPE_CHECKING:
    from pumice.text.tokenizer import Tokenizer

_KEPT = 64  # compiled grammars
_NOTHING = "no output matches it"
_JSON_OPTIONS = {
    # Without a bound, a model that likes line breaks writes nothing else until its context is full.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}",
    # Otherwise \\u could only begin the escape of a control character, and models would be led to
    # write one where they meant a letter.
    "json_allow_general_unicode_escapes": True,
}


class Matcher:
    """How far one output has come in its grammar.

    masks: bool[V] each, True for tokens that may not come: [0] after the tokens that were consumed,
    [i] after i guesses more. error: why the output cannot go on; None usually.
    """

    def __init__(self, inner: Any, vocab_size: int) -> None:
        self._inner = inner
        self._vocab_size = vocab_size
        self.masks: list[np.ndarray] = []
        self.error: str | None = None

    def copy(self) -> Matcher:
        """Another output that has come as far."""
        return Matcher(self._inner.deep_copy(), self._vocab_size)

    def allowed(self, tokens: SequenceOf[int]) -> int:
        """How many of the tokens could come, one after the other."""
        count: int = self._inner.validate_tokens(list(tokens))
        return count

    def compute(self, guesses: SequenceOf[int] = ()) -> None:
        """Makes the masks. guesses: tokens that could come."""
        masks = [self._mask()]
        taken = 0
        for token in guesses:
            if not self._inner.consume_token(token):
                break
            taken += 1
            masks.append(self._mask())
        self._note_error()
        masks += masks[-1:] * (len(guesses) - taken)  # only after an error, which ends the output
        if taken:
            self._inner.rollback(taken)
        self.masks = masks

    def _mask(self) -> np.ndarray:
        bits = np.frombuffer(self._inner.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=self._vocab_size)
        mask = allowed.view(np.bool_)
        np.logical_not(mask, out=mask)
        return mask

    def consume(self, token: int) -> None:
        """A token was generated."""
        self._inner.consume_token(token)
        self._note_error()

    def _note_error(self) -> None:
        if self.error is None and self._inner.is_error():
            self.error = f"the grammar cannot be followed: {_first_line(self._inner.get_error())}"


class GrammarCompiler:
    """Matchers for one vocabulary. May be used from any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._compiled: OrderedDict[tuple[str, str], Matcher] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """At the grammar's beginning. GrammarError when it is wrong or cannot be enforced."""
        schema = read_schema(grammar.value) if grammar.kind == "json_schema" else None
        text = json.dumps(schema) if grammar.kind == "json_schema" else str(grammar.value)
        key = (grammar.kind, text)
        with self._lock:
            if key not in self._compiled:
                try:
                    self._compiled[key] = self._compile(grammar, schema)
                except GrammarError:
                    raise
                except ValueError as error:  # half a surrogate pair, for one
                    raise GrammarError(f"the grammar cannot be read: {error}") from None
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
            return self._compiled[key].copy()

    def _compile(self, grammar: Grammar, schema: Any) -> Matcher:
        from llguidance import LLMatcher

        if grammar.kind in ("json_object", "json_schema"):
            source = {"type": "object"} if grammar.kind == "json_object" else schema
            error = self._fault(_json_grammar(source))
            if error:
                raise blame(schema, error, lambda part: self._fault(_json_grammar(part)))
            compiled = _json_grammar(source)
        else:
            value = str(grammar.value)
            if grammar.kind == "regex":
                check_escapes(value, "the regular expression")
                compiled = LLMatcher.grammar_from_regex(value)
            else:
                compiled = LLMatcher.grammar_from_lark(value)
            error = self._fault(compiled)
            if error:
                what = "regular expression" if grammar.kind == "regex" else "Lark grammar"
                raise GrammarError(f"the {what} cannot be enforced: {error}")
        return Matcher(self._start(compiled), self._vocab_size)

    def _start(self, compiled: str) -> Any:
        """llguidance's matcher. Without verbose errors, as those hold the parser's whole state."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        return LLMatcher(self._known_vocabulary(), compiled, log_level=0, limits=limits)

    def _fault(self, compiled: str) -> str:
        """What is wrong with a grammar of llguidance's, warnings too; empty usually."""
        from llguidance import LLMatcher

        _, messages = LLMatcher.validate_grammar_with_warnings(compiled, self._known_vocabulary())
        if not messages:
            # Some limits show only when the first tokens are looked for.
            probe = self._start(compiled)
            if not probe.is_error():
                probe.compute_bitmask()
            if probe.is_error():
                error = _first_line(probe.get_error())
                messages = [_NOTHING if error.startswith("NoExtension") else error]
        return "; ".join(messages)

    def _known_vocabulary(self) -> Any:
        if self._vocabulary is None:
            import llguidance

            words = _Words(self._tokenizer, self._vocab_size)
            self._vocabulary = llguidance.LLTokenizer(
                llguidance.TokenizerWrapper(words),
                n_vocab=self._vocab_size,
                eos_token=sorted(self._tokenizer.eos_ids),
            )
        return self._vocabulary


class _Words:
    """A vocabulary in llguidance's terms."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(tokenizer.control_ids)
        self.tokens = [tokenizer.token_bytes(i) for i in range(vocab_size)]

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return self._tokenizer.encode(text, add_special=False, parse_special=False)


def _json_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    options: Any = _JSON_OPTIONS
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]
