"""What choosing a request's next token needs besides the logits."""

from __future__ import annotations

import secrets

import numpy as np

from pumice.engine.sampling_params import SamplingParams


class History:
    """Which tokens were there, and how often in the output; costs are those of the text."""

    def __init__(self, prompt: np.ndarray) -> None:
        unique = np.unique(prompt)
        self._count = len(unique)
        self._ids = np.empty(max(64, 2 * self._count), dtype=np.int64)
        self._ids[: self._count] = unique
        self._in_output = np.zeros(len(self._ids), dtype=np.float32)
        self._index = {int(token): i for i, token in enumerate(unique)}

    @property
    def ids(self) -> np.ndarray:
        """int64[n]: distinct tokens of prompt and output."""
        return self._ids[: self._count]

    @property
    def in_output(self) -> np.ndarray:
        """float32[n]: how often each is in the output."""
        return self._in_output[: self._count]

    def append(self, token: int) -> None:
        index = self._index.get(token)
        if index is None:
            index = self._count
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._in_output = np.concatenate([self._in_output, np.zeros_like(self._in_output)])
            self._index[token] = index
            self._ids[index] = token
            self._count += 1
        self._in_output[index] += 1


class SamplingState:
    """
    plain: the token is the largest logit's and nothing else is asked for. on_device: a device that
    draws can choose it: nothing is asked for but a token of the distribution.
    history: None when no penalty is on. mask: bool[V], True for tokens that the grammar does not
    allow next.
    """

    def __init__(
        self, params: SamplingParams, prompt: np.ndarray, vocab_size: int, index: int = 0
    ) -> None:
        """prompt: int32[n]. index: of the output; its seed is the parameters' plus that."""
        self.params = params
        self._seed = None if params.seed is None else params.seed + index
        self.history = History(prompt) if params.penalized else None
        self.mask: np.ndarray | None = None
        constrained = params.grammar is not None
        self.adjusted = constrained or self.history is not None or bool(params.logit_bias)
        self.plain = params.greedy and not self.adjusted and not params.logprobs
        self.on_device = not self.adjusted and not params.logprobs
        self.bias_ids = np.fromiter(params.logit_bias, dtype=np.int64)
        self.bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        # 0 is off in both; a top_k of the whole vocabulary is off too.
        self.top_k = params.top_k if params.top_k < vocab_size else 0
        self._generator: np.random.Generator | None = None

    @property
    def device_seed(self) -> int:
        """Of a device's random numbers, 0 to 2^63 - 1: the request's, or one that was drawn."""
        if self._seed is None:
            self._seed = secrets.randbits(63)
        return self._seed

    def uniform(self) -> float:
        """The request's next random number in [0, 1)."""
        if self._generator is None:
            self._generator = np.random.Generator(np.random.PCG64(self._seed))
        return self._generator.random()

    def adjust(self, logits: np.ndarray) -> None:
        """Applies penalties, bias and the grammar's mask to float32[V] in place."""
        history, params = self.history, self.params
        if history is not None:
            ids, counts = history.ids, history.in_output
            values = logits[ids]
            penalty = np.float32(params.repetition_penalty)
            if penalty != 1:
                values = np.where(values > 0, values / penalty, values * penalty)
            values -= np.float32(params.frequency_penalty) * counts
            values -= np.float32(params.presence_penalty) * (counts > 0)
            logits[ids] = values
        if len(self.bias_ids):
            logits[self.bias_ids] += self.bias
        if self.mask is not None:
            np.copyto(logits, -np.inf, where=self.mask)
