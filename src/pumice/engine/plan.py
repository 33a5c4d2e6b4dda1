"""What a step computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pumice.engine.sequence import Sequence


@dataclass
class StepPlan:
    """sequences[i] computes its next counts[i] tokens, the last drafts[i] of which are guesses that
    follow its known ones. `sampled` are those that reach their last known token: they get a row of
    logits for it, and one for each guess; rows[j] is the first row of sampled[j].
    embedding: the sequences whose hidden states are wanted, a batch of its own in the same step;
    `tokens` counts its tokens too.
    """

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    row_count: int = 0
    tokens: int = 0
    decode_tokens: int = 0  # of sequences that were past their prompt, guesses among them
    drafted: int = 0
    admitted: list[Sequence] = field(default_factory=list)
    embedding: StepPlan | None = None

    @staticmethod
    def decoding(sequences: list[Sequence]) -> StepPlan:
        """A token of each sequence, and a row for it, whatever was computed of them yet."""
        count = len(sequences)
        return StepPlan(
            sequences, [1] * count, [0] * count, list(sequences), list(range(count)), count, count,
            count,
        )  # fmt: skip

    @property
    def batch_size(self) -> int:
        """Sequences that compute something."""
        return len(self.sequences) + (self.embedding.batch_size if self.embedding else 0)

    def add_embedding(self, sequence: Sequence, count: int) -> None:
        """The sequence computes its next `count` tokens for their hidden states."""
        if self.embedding is None:
            self.embedding = StepPlan()
        self.embedding.add(sequence, count)
        self.tokens += count

    def add(self, sequence: Sequence, count: int, draft: int = 0) -> None:
        self.sequences.append(sequence)
        self.counts.append(count)
        self.drafts.append(draft)
        self.tokens += count
        self.drafted += draft
        sequence.draft = draft
        if sequence.computed + count == sequence.length + draft:
            self.sampled.append(sequence)
            self.rows.append(self.row_count)
            self.row_count += 1 + draft
