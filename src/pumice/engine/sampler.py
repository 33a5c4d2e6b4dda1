"""From logits to tokens, on the CPU with NumPy, for a whole batch.

A greedy token is the largest logit's, whatever is beside it in the batch. A drawn token depends on
its own row and its own generator only: one uniform number a token, looked up in the cumulative
probabilities, so the text of a seed is the same in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import numpy as np

from pumice.engine import candidates
from pumice.engine.request import TokenLogprob
from pumice.engine.sampling_state import SamplingState

NOT_FINITE = -1  # in place of a token id: the row holds NaN, or infinity as its maximum
_ROWS = 8  # drawn at once; their values stay in the processor's cache
_SLACK = np.float32(1e-3)  # of a bound on logits, for float32 rounding; the exact rule comes after


class Sampler:
    """Owns the memory that drawing needs."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._work = np.empty((0, 0), dtype=np.float32)  # [_ROWS, padded V], made when needed
        self._exps = self._work

    def sample(
        self, logits: np.ndarray, states: SequenceOf[SamplingState]
    ) -> tuple[list[int], list[TokenLogprob | None] | None]:
        """A token for each row.

        logits: float32[R, V], not changed; states: one a row. Returns the tokens (`NOT_FINITE`
        where the row is damaged) and, when any request asked for them, log-probabilities.
        """
        if len(states) == 1 and states[0].plain:
            row = logits[0]
            token = int(row.argmax())
            return [token if math.isfinite(row[token]) else NOT_FINITE], None
        best = logits.argmax(axis=1)  # the first of equals, and the first NaN
        finite = np.isfinite(logits[np.arange(len(best)), best])
        tokens = np.where(finite, best, NOT_FINITE)
        if all(state.plain for state in states):
            greedy: list[int] = tokens.tolist()
            return greedy, None
        drawn: list[int] = []
        for i in np.flatnonzero(finite).tolist():
            state = states[i]
            if not state.params.greedy:
                drawn.append(i)
            elif state.adjusted:
                row = self._rows(1)[0, : self._vocab_size]
                row[:] = logits[i]
                state.adjust(row)
                tokens[i] = row.argmax()
        for first in range(0, len(drawn), _ROWS):
            part = drawn[first : first + _ROWS]
            tokens[part] = self._draw(logits, part, [states[i] for i in part])
        chosen: list[int] = tokens.tolist()
        if not any(state.params.logprobs for state in states):
            return chosen, None
        return chosen, [
            self._logprob(logits[i], token, states[i].params.top_logprobs)
            if states[i].params.logprobs and token != NOT_FINITE
            else None
            for i, token in enumerate(chosen)
        ]

    def _rows(self, count: int) -> np.ndarray:
        """Working rows of whole groups, -inf after the vocabulary."""
        if not len(self._work):
            shape = (_ROWS, candidates.padded(self._vocab_size))
            self._work = np.full(shape, -np.inf, dtype=np.float32)
            self._exps = np.zeros(shape, dtype=np.float32)
        return self._work[:count]

    def _draw(self, logits: np.ndarray, rows: list[int], states: list[SamplingState]) -> np.ndarray:
        """Tokens int64[n] of at most `_ROWS` rows that are not greedy."""
        z = self._rows(len(rows))  # log-probabilities, up to a constant: the largest is 0
        for j, (row, state) in enumerate(zip(rows, states, strict=True)):
            z[j, : self._vocab_size] = logits[row]
            if state.adjusted:
                state.adjust(z[j, : self._vocab_size])
        inverse = np.array([1 / s.params.temperature for s in states], dtype=np.float32)
        inverse = np.maximum(inverse, np.finfo(np.float32).tiny)  # -inf times 0 would be NaN
        with np.errstate(over="ignore"):  # to -inf: probability 0
            z -= z.max(axis=1, keepdims=True)
            z *= inverse[:, None]
        uniform = np.array([s.uniform() for s in states])
        tokens = np.empty(len(rows), dtype=np.int64)
        whole = [_unfiltered(s) for s in states]
        some = [j for j, unfiltered in enumerate(whole) if not unfiltered]
        for j, unfiltered in enumerate(whole):
            if unfiltered:
                tokens[j] = self._draw_from_all(z[j : j + 1], uniform[j])
        if some:
            part = z if len(some) == len(rows) else z[some]
            tokens[some] = self._draw_filtered(part, [states[j] for j in some], uniform[some])
        return tokens

    def _draw_from_all(self, z: np.ndarray, uniform: float) -> int:
        """A token of float32[1, padded V]: the group first, then the token within it."""
        exps = np.exp(z, out=self._exps[:1])
        cumulative = np.cumsum(candidates.group_sum(exps)[0], dtype=np.float64)
        target = uniform * cumulative[-1]
        group = min(int(np.searchsorted(cumulative, target, "right")), len(cumulative) - 1)
        while group and cumulative[group] == cumulative[group - 1]:  # rounding led past the end
            group -= 1
        members = exps[0].reshape(candidates.GROUP, -1)[:, group].astype(np.float64)
        target -= cumulative[group - 1] if group else 0.0
        index = int(np.searchsorted(np.cumsum(members), target, "right"))
        last = int(np.flatnonzero(members)[-1])
        return min(index, last) * len(cumulative) + group

    def _draw_filtered(
        self, z: np.ndarray, states: list[SamplingState], uniform: np.ndarray
    ) -> np.ndarray:
        """Tokens int64[n] under top-k, top-p and min-p."""
        top_k = np.array([s.top_k for s in states])
        top_p = np.array([s.params.top_p for s in states])
        min_p = np.array([s.params.min_p for s in states])
        bounds, totals = self._bounds(z, states)
        ids, values = candidates.above(z, bounds)
        p = np.exp(values)  # of the likeliest: 1
        within_k = np.arange(p.shape[1]) < np.where(top_k, top_k, p.shape[1])[:, None]
        p *= within_k
        cumulative = np.cumsum(
            p, axis=1
        )  # a running sum: columns added for other rows change nothing
        totals = np.where(top_k, cumulative[:, -1], totals)
        limit = np.where(top_p < 1, top_p * totals, np.inf)
        keep = within_k & (p > 0) & (cumulative - p < limit[:, None]) & (p >= min_p[:, None])
        cumulative = np.cumsum(p * keep, axis=1)
        target = uniform * cumulative[:, -1]
        index = (cumulative <= target[:, None]).sum(axis=1)
        index = np.minimum(index, keep.sum(axis=1) - 1)
        chosen: np.ndarray = ids[np.arange(len(ids)), index]
        return chosen

    def _bounds(self, z: np.ndarray, states: list[SamplingState]) -> tuple[np.ndarray, np.ndarray]:
        """Bounds float32[n] that no token which may be drawn is below, and the sums of exp(z).

        Sums are those of the whole vocabulary, and only where top-p needs them.
        """
        bounds = np.full(len(states), -np.inf, dtype=np.float32)
        totals = np.zeros(len(states))
        maxima = candidates.group_max(z) if any(s.top_k for s in states) else z
        for j, state in enumerate(states):
            params = state.params
            if state.top_k:
                bounds[j] = candidates.lower_bound(z[j], maxima[j], state.top_k)
            elif params.top_p < 1:
                bounds[j], totals[j] = self._nucleus_bound(z[j], params.top_p)
            # The nucleus is one of all that top-k left, so min-p may not take any away before.
            if params.min_p and not (state.top_k and params.top_p < 1):
                bounds[j] = max(bounds[j], np.float32(math.log(params.min_p)) - _SLACK)
        return bounds, totals

    def _nucleus_bound(self, z: np.ndarray, top_p: float) -> tuple[np.float32, float]:
        """A bound that leaves at least `top_p` of the probability above it, and the sum of exp(z).

        V tokens of less than (1 - p) / V each hold less than 1 - p together.
        """
        exps = np.exp(z[None], out=self._exps[:1])
        total = float(np.cumsum(candidates.group_sum(exps)[0], dtype=np.float64)[-1])
        bound = math.log((1 - top_p) * total / self._vocab_size) - float(_SLACK)
        # Most of these are less likely than the nucleus needs.
        need = top_p * total * (1 + 1e-4)
        return np.float32(candidates.mass_bound(z, exps[0], bound, need)), total

    def _logprob(self, logits: np.ndarray, token: int, top: int) -> TokenLogprob:
        """Under the model's own distribution: neither temperature nor penalties."""
        row = self._rows(1)
        row[0, : self._vocab_size] = logits
        row -= row.max()
        exps = np.exp(row, out=self._exps[:1])
        log_sum = math.log(candidates.group_sum(exps).sum(dtype=np.float64))
        ids = candidates.largest(row[0], min(top, self._vocab_size)) if top else ()
        return TokenLogprob(
            token,
            float(row[0, token]) - log_sum,
            tuple((int(i), float(row[0, i]) - log_sum) for i in ids),
        )


def _unfiltered(state: SamplingState) -> bool:
    return not state.top_k and state.params.top_p >= 1 and not state.params.min_p
