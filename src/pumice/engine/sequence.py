"""A request while the engine works on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from pumice.engine.prefix_cache import chain_hash, root_hash
from pumice.engine.request import Request, TokenLogprob
from pumice.engine.sampling_state import SamplingState

if TYPE_CHECKING:
    from pumice.text.stream import TextStream


class Sequence:
    """
    tokens: int32[longest]; the first `length` are known, the first `computed` are in the cache.
    blocks: the cache's blocks, in order. table_version: another number whenever `blocks` became
    another list than before with something appended.
    """

    __slots__ = (
        "arrival", "blocks", "cached_tokens", "chain", "computed", "first_token_time",
        "known_blocks", "last", "length", "logprobs", "longest", "order", "pieces", "prompt_length",
        "request", "request_id", "sampling", "stop_ids", "stream", "table_version", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        request_id: str,
        prompt: np.ndarray,
        *,
        longest: int,
        vocab_size: int,
        stop_ids: frozenset[int] = frozenset(),
        stream: TextStream | None = None,
    ) -> None:
        """prompt: int32. longest: tokens of prompt and output together, at most."""
        self.request = request
        self.request_id = request_id
        self.prompt_length = self.length = len(prompt)
        self.longest = longest
        self.tokens = np.empty(longest, dtype=np.int32)
        self.tokens[: self.length] = prompt
        self.last = int(prompt[-1])
        self.computed = 0
        self.cached_tokens: int | None = None  # of the prompt, when it was first admitted
        self.blocks: list[int] = []
        self.table_version = 0
        self.chain = [root_hash(request.cache_salt)] if request.use_cache else []
        self.known_blocks = 0  # how many of `blocks` were made known to the prefix cache
        self.sampling = SamplingState(request.params, prompt, vocab_size)
        self.stop_ids = stop_ids
        self.stream = stream
        self.pieces: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.order = -1  # of arrival; the scheduler's
        self.arrival = time.perf_counter()
        self.first_token_time: float | None = None

    def append(self, token: int) -> None:
        """A token was generated."""
        self.tokens[self.length] = token
        self.length += 1
        self.last = token
        if self.sampling.history is not None:
            self.sampling.history.append(token)

    def content(self, blocks: int, block_size: int) -> list[bytes]:
        """Chained hashes: [0] before the first block, [i] after i full blocks, up to `blocks`.

        Tokens never change, so hashes are made once.
        """
        chain = self.chain
        while len(chain) <= blocks:
            start = (len(chain) - 1) * block_size
            chain.append(chain_hash(chain[-1], self.tokens[start : start + block_size]))
        return chain

    def output_ids(self) -> list[int]:
        ids: list[int] = self.tokens[self.prompt_length : self.length].tolist()
        return ids
