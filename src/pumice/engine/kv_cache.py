"""The paged key/value cache's bookkeeping: blocks with reference counts, shared by content.

A full block is named by a digest chained over its tokens and all tokens before it, so two sequences that begin alike share blocks
(Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023). A block that nobody holds
keeps its content, and is given away in the order of least recent use when no empty one is left.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np


def block_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block: 16 bytes over its parent's name and its tokens."""
    data = np.asarray(tokens, dtype=np.int32).tobytes()
    return hashlib.blake2b(parent + data, digest_size=16).digest()


class BlockPool:
    """Blocks 0 … num_blocks − 1 of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # unreferenced, content kept; oldest first
        self.evictions = 0

    @property
    def available(self) -> int:
        """Blocks that can be had now."""
        return len(self._empty) + len(self._idle)

    @property
    def in_use(self) -> int:
        return self.num_blocks - self.available

    def take(self) -> int:
        """A block with undefined content, held once. The caller has asked `available`."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._digest_of.pop(block)]
            self.evictions += 1
        self._references[block] = 1
        return block

    def release(self, block: int) -> None:
        """Gives up one hold."""
        assert self._references[block] > 0, f"block {block} is not held"
        self._references[block] -= 1
        if self._references[block] == 0:
            if block in self._digest_of:
                self._idle[block] = None
            else:
                self._empty.append(block)

    def publish(self, block: int, digest: bytes) -> None:
        """Names a full block, so that later sequences find it. The first block of a name keeps it."""
        if self.prefix_cache and digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def match(self, tokens: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Blocks (now held) that already contain a prefix of `tokens`, and their names.

        At least one token is left to compute, because its logits are wanted.
        """
        blocks: list[int] = []
        digests: list[bytes] = []
        if not self.prefix_cache:
            return blocks, digests
        parent = b""
        for index in range((len(tokens) - 1) // self.block_size):
            start = index * self.block_size
            parent = block_digest(parent, tokens[start : start + self.block_size])
            block = self._block_of.get(parent)
            if block is None:
                break
            if self._references[block] == 0:
                del self._idle[block]
            self._references[block] += 1
            blocks.append(block)
            digests.append(parent)
        return blocks, digests

    def clear(self) -> None:
        """Forgets the content of blocks that nobody holds."""
        while self._idle:
            block, _ = self._idle.popitem()
            del self._block_of[self._digest_of.pop(block)]
            self._empty.append(block)

    def check(self, holders: Sequence[Sequence[int]]) -> None:
        """Raises AssertionError unless the counts are exactly those of `holders` (each a list of blocks)."""
        counts = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                counts[block] += 1
        assert counts == self._references, (counts, self._references)
        free = set(self._empty) | set(self._idle)
        assert len(self._empty) + len(self._idle) == len(free), "a block is free twice"
        assert free == {b for b, n in enumerate(counts) if n == 0}
        assert set(self._digest_of) >= set(self._idle)
        assert {b: d for d, b in self._block_of.items()} == self._digest_of
