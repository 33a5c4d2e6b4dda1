"""ChatModule: the classic interface to one conversation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from pumice.engine.engine import LLMEngine
from pumice.engine.request import Delta, SamplingParams
from pumice.engine.stats import EngineStats
from pumice.errors import ContextLengthError, UsageError
from pumice.text.chat_template import ChatTemplate
from pumice.text.prompt import encode_chat

Message = Mapping[str, Any]


class ChatModule:
    """A conversation with a loaded model. Keeps the history; the prefix cache keeps its computation.

    sampling: keyword arguments of `SamplingParams` for every answer; what is not given comes from the model.
    """

    def __init__(self, engine: LLMEngine, *, system: str | None = None, **sampling: Any) -> None:
        if engine.tokenizer is None:
            raise UsageError(f"{engine.name} has no tokenizer, so it cannot chat")
        self.engine = engine
        self.sampling: dict[str, Any] = dict(sampling)
        engine.sampling(**self.sampling)  # a bad value is an error now, not at the first answer
        self._system = system
        self._template: ChatTemplate | None = None
        self.messages: list[Message] = []
        self.reset_chat()

    def reset_chat(self) -> None:
        """Forgets the conversation."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        assert self.engine.tokenizer is not None
        if self._template is None:
            self._template = ChatTemplate.of(self.engine.tokenizer)
        return encode_chat(self.engine.tokenizer, self._template, messages)

    def stream(
        self, prompt: str | Sequence[Message], **sampling: Any
    ) -> Generator[Delta, None, None]:
        """The answer to a message (or to messages, which replace the history), delta by delta.

        The history gains the answer when it is complete, and what was shown of it when the generator is closed early.
        Raises ContextLengthError when the conversation no longer fits.
        """
        if isinstance(prompt, str):
            messages: list[Message] = [*self.messages, {"role": "user", "content": prompt}]
        else:
            messages = list(prompt)
        params = self.engine.sampling(**{**self.sampling, **sampling})
        try:
            deltas = self.engine.stream(self._prompt(messages), params, continues_text=False)
            text = ""
            try:
                for delta in deltas:
                    text += delta.text
                    yield delta
            finally:
                deltas.close()
                if text:
                    self.messages = [*messages, {"role": "assistant", "content": text}]
        except ContextLengthError as error:
            raise ContextLengthError(
                f"the conversation no longer fits: {error.message}",
                hint="Begin anew (reset_chat, or /reset), or load the model with a longer context.",
            ) from None

    def generate(
        self,
        prompt: str | Sequence[Message],
        progress_callback: Callable[[str], None] | None = None,
        **sampling: Any,
    ) -> str:
        """The whole answer. progress_callback is called with each new piece of text."""
        text = ""
        for delta in self.stream(prompt, **sampling):
            text += delta.text
            if progress_callback is not None and delta.text:
                progress_callback(delta.text)
        return text

    def benchmark_generate(self, prompt: str, generate_length: int) -> str:
        """Exactly `generate_length` tokens after the plain prompt, ends of text ignored; `stats()` tells the speed.

        The conversation is neither read nor changed, and nothing of the prompt is taken from the prefix cache.
        """
        self.engine.pool.clear()
        self.engine.stats = EngineStats()
        params = SamplingParams(max_tokens=generate_length, ignore_eos=True)
        (done,) = self.engine.generate([prompt], params)
        if len(done.token_ids) < generate_length:
            raise ContextLengthError(
                f"{done.prompt_tokens} prompt tokens and {generate_length} generated ones do not fit the "
                f"context of {self.engine.limits.context_length:,} tokens",
                hint="Load the model with a longer context.",
            )
        return done.text

    def stats(self, verbose: bool = False) -> str:
        """Speed since the last `benchmark_generate` or since loading, for people."""
        stats = self.engine.stats
        if not verbose:
            return str(stats)
        pool = self.engine.pool
        return (
            f"{stats}\nprompt tokens computed: {stats.prefill_tokens:,}, from the prefix cache: "
            f"{stats.cached_tokens:,}; generated in decode steps: {stats.decode_tokens:,}\n"
            f"first token after {stats.last_ttft_s * 1e3:.0f} ms; cache blocks in use: {pool.in_use} of "
            f"{pool.num_blocks}"
        )

    def stats_dict(self) -> dict[str, Any]:
        """The same for machines."""
        return self.engine.stats.as_dict()
