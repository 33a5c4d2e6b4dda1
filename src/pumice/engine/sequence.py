"""A request while the engine works on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pumice.engine.kv_cache import BlockPool, block_digest
from pumice.engine.request import FinishReason, SamplingParams, TokenLogprob


@dataclass(eq=False)
class Sequence:
    """tokens: prompt and output. computed: how many of them are in the cache. blocks: where."""

    request_id: str
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    rng: np.random.Generator
    max_length: int  # tokens at which the generation ends with "length"
    computed: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache at admission
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)
    first_token: float = 0.0
    last_token: float = 0.0
    preemptions: int = 0

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet: 1 while decoding, more in a prompt."""
        return len(self.tokens) - self.computed

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def reserve(self, pool: BlockPool, count: int) -> bool:
        """Takes the blocks that `count` more tokens need; False (and nothing taken) when there are too few."""
        need = -(-(self.computed + count) // pool.block_size) - len(self.blocks)
        if need > pool.available:
            return False
        for _ in range(need):
            self.blocks.append(pool.take())
        return True

    def advance(self, pool: BlockPool, count: int) -> None:
        """Notes that `count` more tokens are in the cache, and publishes the blocks that this filled."""
        self.computed += count
        if not pool.prefix_cache:
            return
        size = pool.block_size
        while (len(self.digests) + 1) * size <= self.computed:
            index = len(self.digests)
            parent = self.digests[-1] if self.digests else b""
            digest = block_digest(parent, self.tokens[index * size : (index + 1) * size])
            self.digests.append(digest)
            pool.publish(self.blocks[index], digest)

    def drop(self, pool: BlockPool) -> None:
        """Gives all blocks back; the tokens must be computed again to go on."""
        # The end goes first, so that the beginning, which others may share, is evicted last.
        for block in reversed(self.blocks):
            pool.release(block)
        self.blocks.clear()
        self.digests.clear()
        self.computed = 0
