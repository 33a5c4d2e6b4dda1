"""What every request needs: the engine, its tokenizer and template, the settings, the figures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pumice._version import __version__
from pumice.errors import UnsupportedError
from pumice.server.metrics import Metrics
from pumice.server.parsers import Family, choose_family
from pumice.server.settings import ServerSettings
from pumice.server.store import ResponseStore

if TYPE_CHECKING:
    import numpy as np

    from pumice.engine.async_engine import AsyncEngine
    from pumice.text.chat_template import ChatTemplate
    from pumice.text.tokenizer import Tokenizer


def _is_marker(token: str) -> bool:
    """Whether a control token may be what a parser looks for."""
    return any(part in token.lower() for part in ("tool", "think", "python_tag", "call", "args"))


class Embedder(Protocol):
    """Who makes vectors of texts."""

    async def embed(self, ids: list[list[int]], pooling: Literal["mean", "last"]) -> np.ndarray:
        """Token ids of each text → float32[n, hidden], each row of length 1."""
        ...


class EngineEmbedder:
    """The served model itself: a causal model's hidden states, pooled. Nothing is cached, so no
    tenant sees another's.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def embed(self, ids: list[list[int]], pooling: Literal["mean", "last"]) -> np.ndarray:
        import numpy as np

        return np.stack(await self._engine.embed(ids, pooling))


class ServerContext:
    """One model being served.

    template: None when the model has none; it then only completes texts. model_info: what is known
    of the model for /api/show and /v1/models. family: how it writes calls. hidden: its control
    tokens. shows_control: parsers look for some of them. draining: the server is about to end, and
    takes nothing new. embedder: None takes the model, if it has hidden states: 501 if not.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        settings: ServerSettings,
        *,
        model_info: dict[str, Any] | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        tokenizer = engine.engine.tokenizer
        if tokenizer is None:
            raise UnsupportedError("the model has no tokenizer, so it cannot be served")
        self.engine = engine
        self.settings = settings
        self.tokenizer: Tokenizer = tokenizer
        self.template: ChatTemplate | None = None
        if tokenizer.chat_template is not None:
            from pumice.text.chat_template import ChatTemplate

            self.template = ChatTemplate.of(tokenizer)
        self.model_info = dict(model_info or {})
        self.family: Family = choose_family(
            tokenizer.chat_template, str(self.model_info.get("architecture", ""))
        )
        self.hidden = frozenset(tokenizer.control_tokens)
        self.shows_control = any(_is_marker(token) for token in self.hidden)
        self.metrics = Metrics(engine, self.name)
        if embedder is None and engine.engine.limits.hidden_size:
            embedder = EngineEmbedder(engine)
        self.embedder = embedder
        self.store = ResponseStore(settings.max_stored, settings.max_stored_bytes)
        self.created = int(time.time())
        self.draining = False

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.settings.names[0]

    @property
    def fingerprint(self) -> str:
        """Changes with Pumice's version and with the model."""
        return f"pumice-{__version__}-{self.model_info.get('digest', '')[:12] or self.name}"

    @property
    def room(self) -> int:
        """Tokens that one request can have, prompt and output together."""
        limits = self.engine.engine.limits
        return min(limits.context_length, limits.num_blocks * limits.block_size)

    async def drain(self) -> None:
        """Takes no more requests, and ends those that run: whole within `drain_timeout` seconds, or
        as cancelled.
        """
        self.draining = True
        await self.engine.drain(self.settings.drain_timeout)
