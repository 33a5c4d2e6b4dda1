"""ChatModule: the classic interface to one conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from pumice.engine.engine import LLMEngine
from pumice.engine.history import continue_tokens
from pumice.engine.request import Completion, Delta
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.stats import EngineStats
from pumice.errors import ContextLengthError, DeviceError, UsageError

if TYPE_CHECKING:
    from pumice.text.chat_template import ChatTemplate
    from pumice.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


class ChatModule:
    """A conversation with a loaded model.

    messages: the history, objects with `role` and `content`. sampling: fields of `SamplingParams`
    for every answer; what is not there comes from the model. The prefix cache keeps what was
    computed, so a turn computes its own message only.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        system: str | None = None,
        template: ChatTemplate | None = None,
        **sampling: Any,
    ) -> None:
        """system: the first message of every conversation. template: None takes the tokenizer's.

        UsageError for a bad sampling parameter, or an engine without a tokenizer.
        """
        if engine.tokenizer is None:
            raise UsageError(f"{engine.name or 'the model'} has no tokenizer, so it cannot chat")
        self.engine = engine
        self.sampling: dict[str, Any] = dict(sampling)
        engine.sampling(**self.sampling)  # a bad value is an error now, not at the first answer
        self._tokenizer: Tokenizer = engine.tokenizer
        self._template = template
        self._system = system
        self._start = dataclasses.replace(engine.stats)  # as they were before the last answer
        self.messages: list[Message] = []
        self._tokens: list[int] = []  # the history as the model saw it
        self.reset_chat()

    def reset_chat(self) -> None:
        """Forgets the conversation; the system message stays."""
        self.messages = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})
        self._tokens = []

    def stream(
        self, prompt: str | SequenceOf[Message], **sampling: Any
    ) -> Generator[Delta, None, None]:
        """The answer, delta by delta. sampling: fields of `SamplingParams` for this answer.

        prompt: a message, or messages which replace the history. The history gains message and
        answer; closing the generator early ends the answer there. When nothing of an answer was
        made, or it failed, the history stays as it was. ContextLengthError, now and not later, when
        the conversation does not fit.
        """
        from pumice.text.chat_template import ChatTemplate
        from pumice.text.prompt import encode_chat

        if isinstance(prompt, str):
            messages: list[Message] = [*self.messages, {"role": "user", "content": prompt}]
        else:
            messages = list(prompt)
        params = self.engine.sampling(**{**self.sampling, **sampling})
        if self._template is None:
            self._template = ChatTemplate.of(self._tokenizer)
        ids = encode_chat(self._tokenizer, self._template, messages)
        ids = continue_tokens(self._tokenizer, self._tokens, ids)
        try:
            deltas = self.engine.stream(ids, params, continues_text=False)
        except ContextLengthError as error:
            raise ContextLengthError(
                f"the conversation no longer fits: {error.message}",
                hint="Begin anew (reset_chat, or /reset), or load the model with a longer context.",
            ) from None
        return self._answer(messages, ids, deltas)

    def _answer(
        self, messages: list[Message], ids: list[int], deltas: Generator[Delta, None, None]
    ) -> Generator[Delta, None, None]:
        self._start = dataclasses.replace(self.engine.stats)
        text, made, ended_by = "", list[int](), None
        try:
            for delta in deltas:
                done = delta.completion
                if done is not None and done.finish_reason == "error":
                    text = ""
                    raise DeviceError(f"the answer failed: {done.error}")
                text += delta.text
                made += delta.token_ids
                ended_by = None if done is None else done.stop
                yield delta
        finally:
            deltas.close()
            if text:
                self.messages = [*messages, {"role": "assistant", "content": text}]
                # An end token is the template's to write; it was not computed either.
                self._tokens = ids + (made[:-1] if isinstance(ended_by, int) else made)

    def generate(
        self,
        prompt: str | SequenceOf[Message],
        progress_callback: Callable[[str], None] | None = None,
        **sampling: Any,
    ) -> str:
        """The whole answer, else as `stream`. progress_callback gets each new piece of text."""
        text = ""
        deltas = self.stream(prompt, **sampling)
        try:
            for delta in deltas:
                text += delta.text
                if progress_callback is not None and delta.text:
                    progress_callback(delta.text)
        finally:
            deltas.close()
        return text

    def benchmark_generate(self, prompt: str, generate_length: int) -> str:
        """Exactly `generate_length` tokens after the plain prompt; `stats()` tells the speed.

        No template, no end of text, no cached blocks; sampling as configured. A short run comes
        first, so that a device that has just been woken is not what is measured. The conversation
        is neither read nor changed.
        """
        if isinstance(generate_length, bool) or not isinstance(generate_length, int):
            raise UsageError(f"generate_length is {generate_length!r}; allowed: an integer")
        if generate_length < 1:
            raise UsageError(f"generate_length is {generate_length}; it must be at least 1")
        params = self.engine.sampling(**self.sampling).replace(
            max_tokens=generate_length, ignore_eos=True, stop=(), stop_token_ids=(),
        )  # fmt: skip
        self._complete(prompt, params.replace(max_tokens=min(2, generate_length)))
        self._start = dataclasses.replace(self.engine.stats)
        return self._complete(prompt, params).text

    def _complete(self, prompt: str, params: SamplingParams) -> Completion:
        (done,) = self.engine.generate(prompt, params, use_cache=False)
        if done.finish_reason == "error":
            raise DeviceError(f"the generation failed: {done.error}")
        return done

    def _last_stats(self) -> EngineStats:
        return self.engine.stats.since(self._start)

    def stats(self, verbose: bool = False) -> str:
        """Speed of the last answer (or `benchmark_generate`), for people."""
        stats = self._last_stats()
        if not verbose:
            return str(stats)
        cache = self.engine.cache
        products = getattr(self.engine.executable, "products", "")
        return (
            f"{stats}\n"
            f"prompt: {stats.prompt_tokens:,} tokens, {stats.cached_tokens:,} of them from the "
            f"cache; first token after {stats.last_ttft_s * 1e3:.0f} ms\n"
            f"decoded: {stats.decode_tokens:,} tokens in {stats.decode_s:.2f} s\n"
            f"cache: {cache.in_use} of {cache.num_blocks} blocks in use, {cache.cached} kept"
            + (f"\n{products}" if products else "")
        )

    def stats_dict(self) -> dict[str, Any]:
        """The same for machines."""
        return self._last_stats().as_dict()
