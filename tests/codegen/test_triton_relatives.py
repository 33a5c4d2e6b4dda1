"""Chips of a generation beside the one that every kernel is compiled for: one kernel of each kind,
with the registers that these have.
"""

from __future__ import annotations

import pytest
from triton_code import RELATIVES, compiled, problem_of

from pumice.emulator.hip.cards import CARDS
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import TensorSpec, TritonKernel
from pumice.targets import ROCM_TARGETS, Target

HALF = "float16"


def kernel(operator: str, name: str) -> TritonKernel:
    return next(k for k in triton_kernels_of(operator) if k.name.endswith(name))


@pytest.mark.parametrize("target", RELATIVES, ids=lambda t: t.name)
def test_a_product_by_matrix_units(target: Target) -> None:
    problem = problem_of(
        get_spec("gemm"), {},
        {"x": TensorSpec((512, 4096), HALF), "w": TensorSpec((4096, 4096), HALF)},
    )  # fmt: skip
    (binary,) = compiled(kernel("gemm", "tiled"), problem, target)
    assert "v_wmma_f32_16x16x16_f16" in binary.assembly


@pytest.mark.parametrize("target", RELATIVES, ids=lambda t: t.name)
def test_a_product_with_one_row_of_4_bit_weights(target: Target) -> None:
    inputs = {
        "x": TensorSpec((1, 4096), HALF), "w": TensorSpec((4096, 512), "int32"),
        "scales": TensorSpec((4096, 128), HALF),
    }  # fmt: skip
    problem = problem_of(get_spec("gemm_w4"), {"group": 32, "zero": 8}, inputs)
    assert compiled(kernel("gemm_w4", "gemv"), problem, target)


def test_every_amd_target_is_emulated() -> None:
    """A target that is offered can be tried without the card."""
    assert {t.arch for t in ROCM_TARGETS} == set(CARDS)
    for target in ROCM_TARGETS:
        card = CARDS[target.arch]
        assert (card.units, card.wave, card.shared_bytes) == (
            target.compute_units, target.wave, target.shared_bytes,
        )  # fmt: skip
        bandwidth = card.memory_clock_mhz * 1e6 * card.memory_bus_bits / 8
        assert any(
            abs(bandwidth * rate / (target.bandwidth or 0) - 1) < 0.03 for rate in (2, 4, 8, 16)
        )


def test_fewer_registers_hold_fewer_blocks() -> None:
    """128 threads of 128 registers are 4 waves: 12 to a SIMD of 1536, 8 to one of 1024."""
    blocks = {arch: CARDS[arch].blocks_per_unit(128, 120, 0) for arch in ("gfx1100", "gfx1102")}
    assert blocks == {"gfx1100": 6, "gfx1102": 4}
