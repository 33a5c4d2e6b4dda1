"""Which batch shapes get a plan of their own.

Every integer of a GPU's plan is a number, so that a plan can be captured as a graph once and
replayed without any work on the host. A batch is padded to the smallest shape that holds it; the
shapes are close where padding would cost time (few sequences) and wide apart where it does not
(the longest context only decides into how many shares attention is cut).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CONTEXT_STEP = 8  # from one bound of the context to the next
SHORTEST_CONTEXT = 1024  # tokens, of the smallest bound
ALONE = 256  # tokens of one sequence's smallest: attention needs no shares of so few keys
FEWEST_TOKENS = 16  # of an extend plan


@dataclass(frozen=True)
class PlanShape:
    """T tokens, S sequences, M blocks a row of the block table, R rows of the result."""

    entry: str
    tokens: int
    sequences: int
    blocks: int
    rows: int

    @property
    def name(self) -> str:
        """As the artifact's entries are called."""
        return f"{self.entry}@{self.tokens}x{self.sequences}x{self.blocks}"

    @property
    def bounds(self) -> dict[str, int]:
        return {"T": self.tokens, "S": self.sequences, "M": self.blocks, "R": self.rows}


def powers(first: int, last: int, step: int = 2) -> list[int]:
    """first, first·step, … up to last, and last itself."""
    found = []
    value = first
    while value < last:
        found.append(value)
        value *= step
    return [*found, last]


def plan_shapes(
    *, max_tokens: int, max_sequences: int, max_rows: int, context: int, block_size: int
) -> Iterator[PlanShape]:
    """Every shape, the smallest first. context: tokens of the longest sequence."""
    longest = -(-context // block_size)
    contexts = powers(-(-SHORTEST_CONTEXT // block_size), longest, CONTEXT_STEP)
    if contexts[0] >= longest:
        contexts = [longest]
    shortest = -(-ALONE // block_size)
    for sequences in powers(1, max_sequences):
        few = [shortest] if sequences == 1 and shortest < contexts[0] else []
        for blocks in [*few, *contexts]:
            yield PlanShape("decode", sequences, sequences, blocks, sequences)
    for tokens in powers(min(FEWEST_TOKENS, max_tokens), max_tokens):
        for blocks in contexts:
            yield PlanShape("extend", tokens, 1, blocks, 1)
            if max_sequences > 1 or max_rows > 1:
                # Many sequences, or many rows of one, as speculation wants them.
                most = max(max_sequences, 2)
                yield PlanShape("extend", tokens, most, blocks, min(max_rows, tokens))
        yield PlanShape("embed", tokens, max_sequences, longest, tokens)
