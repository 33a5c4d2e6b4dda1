"""The paged key/value cache's bookkeeping: which sequence owns which blocks. No device is touched.

Every block is in exactly one state: blank (nobody needs its content), idle (no owner, content known
to the prefix cache, may be evicted), or owned by one sequence or by several. Outputs of one prompt
share its last, partly filled block too: who is to write there first takes a copy (copy-on-write, as
in Kwon et al., "PagedAttention", 2023). A prompt that parts from what is known within a block goes
on in a copy of that one (as in the radix tree of Zheng et al., "SGLang", 2024, to a token).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pumice.engine.prefix_cache import PrefixCache
from pumice.engine.sequence import Sequence


class KVCache:
    """The blocks of one executable."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool = True,
        can_copy: bool = False,
    ) -> None:
        """can_copy: the device copies blocks (`take_copies`); else a shared block that was only
        begun is computed again by those that need one of their own.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.copied = 0  # blocks, since the cache was made
        self._can_copy = can_copy
        self._prefix_enabled = prefix_cache
        self._version = 0
        self.reset()

    def reset(self) -> None:
        """All blocks are blank. Sequences that had some must be told."""
        self._blank = list(range(self.num_blocks - 1, -1, -1))  # a stack: the first is block 0
        self._owners = [0] * self.num_blocks
        self._prefix = PrefixCache()
        self._copies: list[tuple[int, int]] = []

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def copies(self) -> list[tuple[int, int]]:
        """(from, to): blocks to copy, in this order, before anything else is written. Whoever has
        done it clears the list.
        """
        return self._copies

    @property
    def available(self) -> int:
        """Blocks that can be had without taking one from a sequence."""
        return len(self._blank) + len(self._prefix)

    @property
    def cached(self) -> int:
        """Blocks without an owner whose content is known."""
        return len(self._prefix)

    @property
    def in_use(self) -> int:
        """Blocks that sequences own."""
        return self.num_blocks - self.available

    def admit(self, sequence: Sequence, reserve: int) -> bool:
        """Gives a sequence blocks for all its tokens, known content first.

        False, and nothing changed, when fewer than `reserve` blocks would remain available.
        """
        assert not sequence.blocks
        size = self.block_size
        needed = self.blocks_for(sequence.length)
        found: list[int] = []
        tail, common, start = -1, 0, -1
        if self._prefix_enabled and sequence.request.use_cache:
            found, tail, common = self._find(sequence)
            if self._can_copy:
                start, alike = self._find_start(sequence, len(found))
                if alike > common:
                    tail, common = -1, alike
                else:
                    start = -1
        idle = sum(self._prefix.is_idle(block) for block in found) + (tail >= 0)
        fresh = needed - len(found) - (tail >= 0)
        if self.available - idle - fresh < reserve:
            return False
        for block in found:
            if self._prefix.is_idle(block):
                self._prefix.take(block)
            self._owners[block] += 1
        if tail >= 0:
            self._prefix.take(tail)
            self._owners[tail] = 1
        blocks = found + [tail] * (tail >= 0)
        if start >= 0:
            self._prefix.touch(start)
        while len(blocks) < needed:
            blocks.append(self._fresh())
        if start >= 0:
            self._copies.append((start, blocks[len(found)]))
            self.copied += 1
        sequence.blocks = blocks
        sequence.known_blocks = len(found)
        sequence.computed = len(found) * size + common
        self._version += 1
        sequence.table_version = self._version
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        return True

    def _find(self, sequence: Sequence) -> tuple[list[int], int, int]:
        """Known full blocks of the sequence's beginning; the tail after them and what of it counts.

        The last token is never among them: its logits are needed. Nor is the one before it, as a
        token alone would be computed by other kernels than it is in its prompt.
        """
        size, usable = self.block_size, _usable(sequence)
        most = usable // size
        chain = sequence.content(most, size)
        found: list[int] = []
        while len(found) < most:
            block = self._prefix.find(chain[len(found) + 1])
            if block is None:
                break
            found.append(block)
        start = len(found) * size
        rest = sequence.tokens[start : min(usable, start + size)]
        return found, *self._prefix.find_tail(chain[len(found)], rest)

    def _find_start(self, sequence: Sequence, after: int) -> tuple[int, int]:
        """A known full block that begins as the sequence goes on after so many blocks, and how many
        tokens that is: worth a copy when there is no better.
        """
        size = self.block_size
        parent = sequence.content(after, size)[after]
        rest = sequence.tokens[after * size : min(_usable(sequence), (after + 1) * size)]
        return self._prefix.find_start(parent, rest, size)

    def grow(self, sequence: Sequence) -> bool:
        """Makes room for the sequence's last token; False when no block is available."""
        at, offset = divmod(sequence.computed, self.block_size)
        if at == len(sequence.blocks):
            if not self.available:
                return False
            sequence.blocks.append(self._fresh())
        elif self._owners[sequence.blocks[at]] > 1:
            if not self.available:
                return False
            shared, own = sequence.blocks[at], self._fresh()
            self._owners[shared] -= 1
            sequence.blocks[at] = own
            self._version += 1
            sequence.table_version = self._version
            if self._can_copy:
                self._copies.append((shared, own))
                self.copied += 1
            else:
                sequence.computed -= offset
        return True

    def stretch(self, sequence: Sequence, tokens: int, reserve: int) -> int:
        """Room for so many tokens after the last, or for fewer: `reserve` blocks stay available."""
        while len(sequence.blocks) * self.block_size < sequence.length + tokens:
            if self.available <= reserve:
                return max(0, len(sequence.blocks) * self.block_size - sequence.length)
            sequence.blocks.append(self._fresh())
        return tokens

    def share(self, lead: Sequence, sibling: Sequence) -> None:
        """Gives a sequence of the same content all blocks of another."""
        for block in lead.blocks:
            self._owners[block] += 1
        sibling.blocks = list(lead.blocks)
        sibling.computed, sibling.known_blocks = lead.computed, lead.known_blocks
        sibling.cached_tokens, sibling.chain = lead.cached_tokens, list(lead.chain)
        self._version += 1
        sibling.table_version = self._version

    def _fresh(self) -> int:
        block = self._blank.pop() if self._blank else self._prefix.evict()
        self._owners[block] = 1
        return block

    def learn(self, sequence: Sequence) -> None:
        """Makes blocks known that were filled since. Call when `computed` has advanced."""
        full = sequence.computed // self.block_size
        if full == sequence.known_blocks or not sequence.request.use_cache:
            return
        if self._prefix_enabled:
            chain = sequence.content(full, self.block_size)
            for index in range(sequence.known_blocks, full):
                tokens = sequence.tokens[index * self.block_size :][: self.block_size]
                self._prefix.add(
                    sequence.blocks[index], chain[index], chain[index + 1], tokens.copy()
                )
        sequence.known_blocks = full

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's blocks away. Known content stays until its place is needed."""
        blocks = sequence.blocks
        if not blocks:
            return
        if self._prefix_enabled and sequence.request.use_cache:
            self._keep_tail(sequence)
        for block in reversed(blocks):  # a beginning outlives what follows: it can serve more
            self._owners[block] -= 1
            if self._owners[block] == 0:
                if block in self._prefix:
                    self._prefix.park(block)
                else:
                    self._blank.append(block)
        sequence.blocks = []
        sequence.known_blocks = 0
        sequence.computed = 0

    def _keep_tail(self, sequence: Sequence) -> None:
        full, count = divmod(sequence.computed, self.block_size)
        if count == 0 or self._owners[sequence.blocks[full]] > 1:
            return
        start = full * self.block_size
        parent = sequence.content(full, self.block_size)[full]
        held = sequence.tokens[start : start + count].copy()
        displaced = self._prefix.add_tail(sequence.blocks[full], parent, held)
        if displaced is not None:
            self._blank.append(displaced)

    def audit(self, sequences: Iterable[Sequence]) -> list[str]:
        """What is wrong with the bookkeeping, given all living sequences; usually nothing."""
        owners = Counter(block for sequence in sequences for block in sequence.blocks)
        blank, idle = Counter(self._blank), set(self._prefix.idle_blocks())
        faults = []
        for block in range(self.num_blocks):
            states = blank[block] + (block in idle) + (owners[block] > 0)
            if states != 1:
                faults.append(f"block {block} is in {states} states")
            if owners[block] != self._owners[block]:
                faults.append(
                    f"block {block} has {owners[block]} owners and a count of {self._owners[block]}"
                )
            if owners[block] and self._prefix.is_tail(block):
                faults.append(f"block {block} is owned, but known as a tail")
            if block in idle and block not in self._prefix:
                faults.append(f"block {block} is idle, but its content is not known")
            if blank[block] and block in self._prefix:
                faults.append(f"block {block} is blank, but its content is known")
        return faults


def _usable(sequence: Sequence) -> int:
    """How many tokens may be found in the cache (`KVCache._find` says why not all)."""
    return max(sequence.length - 2, 0)
