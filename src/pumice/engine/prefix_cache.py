"""Which blocks of the cache hold which content, after the requests that wrote them have gone.

A full block is known by a hash of its tokens chained to the hash of the block before it, so equal
hashes mean equal content at equal positions (vLLM's automatic prefix caching). A block that was
only begun when its request ended is kept as the *tail* of the block before it: a conversation's
next turn goes on in it. Tails are never shared; who takes one owns it.

Prompts that begin alike, as those after one system prompt do, mostly part within a block. A full
block is therefore found by its first tokens too: who needs only those takes a copy.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np

_DIGEST_BYTES = 16
_STARTS = 4  # a block is found by its first quarter, half and three quarters


def root_hash(salt: bytes) -> bytes:
    """The hash before the first block. Contents of different salts never meet."""
    return hashlib.blake2b(salt, digest_size=_DIGEST_BYTES, person=b"pumice.kv").digest()


def chain_hash(parent: bytes, tokens: np.ndarray) -> bytes:
    """The hash of a full block: tokens int32[block_size] after the content `parent` stands for."""
    return hashlib.blake2b(parent + tokens.tobytes(), digest_size=_DIGEST_BYTES).digest()


class PrefixCache:
    """The index, and the idle blocks (known content, no owner) in order of their last use."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._tails: dict[bytes, tuple[int, np.ndarray]] = {}  # parent's hash → block, its tokens
        self._parent_of: dict[int, bytes] = {}  # of tails
        self._idle: OrderedDict[int, None] = OrderedDict()  # the least recently used one first
        self._tokens: dict[int, np.ndarray] = {}  # of full blocks
        self._starting: dict[bytes, int] = {}  # a hash of parent and first tokens → the latest
        self._starts_of: dict[int, list[bytes]] = {}

    def __len__(self) -> int:
        """Idle blocks."""
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        """Whether a block's content is known."""
        return block in self._hash_of or block in self._parent_of

    def idle_blocks(self) -> list[int]:
        return list(self._idle)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def is_tail(self, block: int) -> bool:
        return block in self._parent_of

    def find(self, content: bytes) -> int | None:
        """The block of that chained hash."""
        return self._block_of.get(content)

    def find_tail(self, parent: bytes, tokens: np.ndarray) -> tuple[int, int]:
        """The tail after `parent`, and how many tokens it has in common with `tokens`.

        (-1, 0) when there is none.
        """
        tail = self._tails.get(parent)
        if tail is None:
            return -1, 0
        block, held = tail
        common = _common(held, tokens)
        return (block, common) if common else (-1, 0)

    def find_start(self, parent: bytes, tokens: np.ndarray, size: int) -> tuple[int, int]:
        """A full block after `parent` that begins as `tokens` do, and how many they have in common.

        size: of a block. (-1, 0) when there is none, or none with a quarter of a block in common.
        """
        for key in reversed(_starts(parent, tokens, size)):
            block = self._starting.get(key)
            if block is not None:
                return block, _common(self._tokens[block], tokens)
        return -1, 0

    def add(self, block: int, parent: bytes, content: bytes, tokens: np.ndarray) -> None:
        """Makes an owned, full block known: its tokens, after what `parent` stands for. Of two
        blocks with one content the first stays.
        """
        if content in self._block_of:
            return
        self._block_of[content] = block
        self._hash_of[block] = content
        self._tokens[block] = tokens
        self._starts_of[block] = starts = _starts(parent, tokens, len(tokens))
        self._starting.update(dict.fromkeys(starts, block))

    def add_tail(self, block: int, parent: bytes, tokens: np.ndarray) -> int | None:
        """Makes a begun block known. Returns the tail that was there before: it is forgotten."""
        before = self._tails.get(parent)
        self._tails[parent] = (block, tokens)
        self._parent_of[block] = parent
        if before is None:
            return None
        del self._parent_of[before[0]]
        self._idle.pop(before[0])
        return before[0]

    def park(self, block: int) -> None:
        """A known block lost its last owner."""
        self._idle[block] = None

    def touch(self, block: int) -> None:
        """An idle block was of use, so it is not the next to go."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def take(self, block: int) -> None:
        """An idle block gets an owner. A tail's content will change, so it is no longer known."""
        del self._idle[block]
        parent = self._parent_of.pop(block, None)
        if parent is not None:
            del self._tails[parent]

    def evict(self) -> int:
        """Forgets the least recently used idle block and returns it."""
        block, _ = self._idle.popitem(last=False)
        content = self._hash_of.pop(block, None)
        if content is not None:
            del self._block_of[content], self._tokens[block]
            for key in self._starts_of.pop(block):
                if self._starting.get(key) == block:
                    del self._starting[key]
        else:
            del self._tails[self._parent_of.pop(block)]
        return block


def _starts(parent: bytes, tokens: np.ndarray, size: int) -> list[bytes]:
    """Hashes of `parent` with so many first tokens, the fewest first."""
    counts = sorted({i * size // _STARTS for i in range(1, _STARTS)} - {0})
    return [chain_hash(parent, tokens[:n]) for n in counts if n <= len(tokens)]


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many first elements are the same."""
    count = min(len(a), len(b))
    differs = np.flatnonzero(a[:count] != b[:count])
    return int(differs[0]) if len(differs) else count
