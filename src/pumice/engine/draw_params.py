"""What a device must know to draw tokens: the sampling parameters of a step's rows."""

from __future__ import annotations

import numpy as np

from pumice.engine.sequence import Sequence
from pumice.runtime.step import RowSampling


class DrawParams:
    """Arrays for up to `rows` rows, made once. `of` gives one step's: valid until the next."""

    def __init__(self, rows: int) -> None:
        self._rows = RowSampling(
            temperature=np.zeros(rows, np.float32),
            seeds=np.zeros(rows, np.int64),
            draws=np.zeros(rows, np.int32),
            top_k=np.zeros(rows, np.int32),
            top_p=np.ones(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
        )
        self._order: list[Sequence] = []  # of the rows that the arrays hold

    def of(self, rows: list[tuple[Sequence, int]]) -> RowSampling:
        """rows: whose each row is, and the index in the text of the token that is drawn from it.

        The counter of a token's random number is that index: it does not depend on how the text
        came to be computed. Rows that the host draws from are greedy.
        """
        order = [sequence for sequence, _ in rows]
        arrays, count = self._rows, len(rows)
        if order != self._order:
            self._order = order
            for i, sequence in enumerate(order):
                state = sequence.sampling
                params, drawn = state.params, state.on_device and not state.params.greedy
                arrays.temperature[i] = params.temperature if drawn else 0
                arrays.seeds[i] = state.device_seed if drawn else 0
                arrays.top_k[i] = state.top_k
                arrays.top_p[i] = params.top_p
                arrays.min_p[i] = params.min_p
        arrays.draws[:count] = [index for _, index in rows]
        return RowSampling(**{name: array[:count] for name, array in vars(arrays).items()})
