"""The arena: tensors that live together never overlap, and the arena is near the unavoidable
peak."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pumice.compiler.memory import ALIGNMENT, Lifetime, align, place

tensors = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 12)), max_size=30
).map(
    lambda rows: [
        Lifetime(f"t{i}", size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(rows)
    ]
)


@given(tensors)
def test_no_two_living_tensors_share_a_byte(rows: list[Lifetime]) -> None:
    offsets, total = place(rows)
    assert set(offsets) == {t.name for t in rows}
    for t in rows:
        assert offsets[t.name] % ALIGNMENT == 0
        assert offsets[t.name] + t.nbytes <= total
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            if a.overlaps(b) and a.nbytes and b.nbytes:
                apart = (
                    offsets[a.name] + a.nbytes <= offsets[b.name]
                    or offsets[b.name] + b.nbytes <= offsets[a.name]
                )
                assert apart, (a, b, offsets)


def test_a_chain_needs_the_two_largest_neighbours() -> None:
    sizes = [640, 6400, 1280, 6400, 640]
    rows = [Lifetime(f"t{i}", size, i, i + 1) for i, size in enumerate(sizes)]
    _, total = place(rows)
    assert total == max(align(a) + align(b) for a, b in itertools.pairwise(sizes))
