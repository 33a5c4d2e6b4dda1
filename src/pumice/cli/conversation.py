"""A conversation with a loaded model, as the terminal's loop and `pumice run` need it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from pumice.cli.sampling import OPTIONS, parse_setting
from pumice.errors import DeviceError

if TYPE_CHECKING:
    from pumice.cli.session import ModelRequest
    from pumice.engine.request import Completion, Delta
    from pumice.engine.sampling_params import SamplingParams


def check_sampling(given: Mapping[str, Any]) -> None:
    """UsageError for a value out of range, before anything is fetched or loaded."""
    from pumice.engine.sampling_params import SamplingParams

    SamplingParams.from_model({}, **given)


class ModelConversation:
    """`repl.Conversation` over a model. raw: texts are continued as they are, and nothing is
    remembered.
    """

    def __init__(
        self, request: ModelRequest, *, system: str | None, raw: bool, sampling: dict[str, Any]
    ) -> None:
        from pumice.engine.chat import ChatModule

        request = request.settled()
        self._engine = request.engine(request.prepare(text=True))
        self._raw = raw
        self._sampling = sampling
        self._chat = ChatModule(self._engine, system=system)
        self._last: Completion | None = None

    def ask(self, text: str) -> Generator[str, None, None]:
        """Pieces of the answer, or of the text's continuation. Closing it ends the generation."""
        deltas: Generator[Delta, None, None]
        if self._raw:
            deltas = self._engine.stream(text, self._params())
        else:
            deltas = self._chat.stream(text, **self._sampling)
        self._last = None
        try:
            for delta in deltas:
                if delta.completion is not None:
                    self._last = delta.completion
                    if delta.completion.finish_reason == "error":
                        raise DeviceError(f"the generation failed: {delta.completion.error}")
                if delta.text:
                    yield delta.text
        finally:
            deltas.close()

    def _params(self) -> SamplingParams:
        return self._engine.sampling(**self._sampling)

    def reset(self) -> None:
        self._chat.reset_chat()

    def stats(self) -> str:
        return str(self._engine.stats) if self._raw else self._chat.stats(verbose=True)

    def settings(self) -> dict[str, str]:
        """What is in force: what was given, else what the model recommends."""
        params = self._params()
        return {
            name: f"{getattr(params, name)}" + ("" if name in self._sampling else " (default)")
            for name in OPTIONS
        }

    def set(self, name: str, value: str) -> None:
        parsed = parse_setting(name, value)
        changed = {k: v for k, v in self._sampling.items() if k != name}
        if parsed is not None:
            changed[name] = parsed
        self._engine.sampling(**changed)  # a bad value changes nothing
        self._sampling = changed

    def figures(self) -> dict[str, Any]:
        """Of the last, finished answer, for machines."""
        done = self._last
        if done is None:
            return {}
        after_first = max(len(done.token_ids) - 1, 0)
        return {
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": len(done.token_ids),
            "finish_reason": done.finish_reason,
            "time_to_first_token_s": round(done.ttft_s, 4),
            "tokens_per_s": round(after_first / done.decode_s, 2) if done.decode_s else None,
        }

    def describe(self) -> str:
        """One line on what is loaded."""
        limits = self._engine.limits
        text = f"{self._engine.name}, context {limits.context_length:,} tokens"
        device = getattr(self._engine.executable, "device", None)
        if getattr(device, "api", "cpu") != "cpu":
            text += f" on {device}, cache {limits.num_blocks * limits.block_size:,} tokens"
        return text
