# mypy: ignore-errors
"""Stretches of steps along K that programs share evenly ("stream-K", Osama et al.,
arXiv:2301.03598), in Gluon: who has a tile's first step adds what later programs found, in order,
so that results do not depend on who was faster.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from pumice.operators.triton.gluon_names_triton import barrier


@gluon.jit
def here(value):
    """The same number, computed where it stands: addresses of a tile's end would otherwise be
    kept in registers through all steps."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def add_others(
    acc, tile, mine, partial, flags, total, k_units,
    BN: gl.constexpr, T: gl.constexpr, AT_ONCE: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """What other programs found for a tile that this one began, in their order."""
    final = ((tile + 1) * k_units * gl.num_programs(0) - 1) // total  # has the tile's last step
    others = final - mine
    seen = gl.atomic_cas(flags + tile, others, 0, sem="acquire", scope="gpu")
    while seen != others:
        seen = gl.atomic_cas(flags + tile, others, 0, sem="acquire", scope="gpu")
    n = gl.arange(0, BN, layout=gl.SliceLayout(1, ACC))
    m = gl.arange(0, T, layout=gl.SliceLayout(0, ACC))
    place = n[:, None] * T + m[None, :]
    for other in range(mine + 1, final + 1, AT_ONCE):
        for i in gl.static_range(AT_ONCE):
            found = partial + here(other + i) * (BN * T)
            given = (place >= 0) & (other + i <= final)
            acc += gl.load(found + place, mask=given, other=0.0, cache_modifier=".cg")
    return acc


@gluon.jit
def give(acc, tile, mine, partial, flags, BN: gl.constexpr, T: gl.constexpr, ACC: gl.constexpr):
    """This program's sums for a tile that another one began."""
    n = gl.arange(0, BN, layout=gl.SliceLayout(1, ACC))
    m = gl.arange(0, T, layout=gl.SliceLayout(0, ACC))
    own = partial + here(mine) * (BN * T)
    gl.store(own + (n[:, None] * T + m[None, :]), acc)
    barrier()
    gl.atomic_add(flags + tile, 1, sem="release", scope="gpu")
