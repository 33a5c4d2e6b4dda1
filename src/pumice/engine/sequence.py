"""A request while the engine works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pumice.engine.pooling import Pool
from pumice.engine.prefix_cache import chain_hash, root_hash
from pumice.engine.request import Request, TokenLogprob
from pumice.engine.sampling_state import SamplingState

if TYPE_CHECKING:
    from pumice.engine.grammar_matcher import Matcher
    from pumice.text.stream import TextStream


class Sequence:
    """
    tokens: int32[longest]; the first `length` are known, the first `computed` are in the cache;
    `draft` guesses follow the known ones while a step is made, of which `accepted` were right.
    blocks: the cache's blocks, in order. table_version: another number whenever `blocks` became
    another list than before with something appended.
    index: which output of its request this is. siblings: the other outputs, until the prompt is
    computed. rank: the scheduler's order, the smallest first. pool: where the hidden states go of a
    prompt that is embedded; None for one that is continued.
    """

    __slots__ = (
        "accepted", "arrival", "blocks", "cached_tokens", "chain", "computed", "draft",
        "first_token_time", "index", "known_blocks", "last", "last_token_time", "length",
        "logprobs", "longest", "matcher", "pieces", "pool", "prompt_length", "rank", "request",
        "request_id", "sampling", "siblings", "stop_ids", "stream", "table_version", "tokens",
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
        index: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        """prompt: int32. longest: tokens of prompt and output together, at most."""
        self.request = request
        self.request_id = request_id
        self.index = index
        self.siblings: list[Sequence] = []
        self.prompt_length = self.length = len(prompt)
        self.longest = longest
        self.tokens = np.empty(longest, dtype=np.int32)
        self.tokens[: self.length] = prompt
        self.last = int(prompt[-1])
        self.computed = self.draft = self.accepted = 0
        self.cached_tokens: int | None = None  # of the prompt, when it was first admitted
        self.blocks: list[int] = []
        self.table_version = 0
        self.chain = [root_hash(request.cache_salt)] if request.use_cache else []
        self.known_blocks = 0  # how many of `blocks` were made known to the prefix cache
        self.sampling = SamplingState(request.params, prompt, vocab_size, index)
        self.matcher = matcher
        self.pool = None if request.pooling is None else Pool(request.pooling)
        self.stop_ids = stop_ids
        self.stream = stream
        self.pieces: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.rank: tuple[float, int, int] = (0.0, -1, index)
        self.arrival = 0.0  # seconds of the engine's clock, like the times below
        self.first_token_time: float | None = None
        self.last_token_time = 0.0

    @property
    def decodes(self) -> bool:
        """Whether only the last token remains to be computed, and then another follows."""
        return self.computed == self.length - 1 and self.pool is None

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


class SequenceGroup:
    """All outputs of a request. `open`: those that have not finished, the first one at first.
    `deadline`: in seconds of the engine's clock.
    """

    def __init__(self, sequences: list[Sequence]) -> None:
        self.request = sequences[0].request
        self.request_id = sequences[0].request_id
        self.prompt_length = sequences[0].prompt_length
        self.lead = sequences[0]
        self.open = list(sequences)
        self.deadline: float | None = None
        self.lead.siblings = sequences[1:]
