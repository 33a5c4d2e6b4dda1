"""Machine code of fused decode attention for every GPU target: it fits, does not spill, uses the
matrix unit, and orders its stores before its arrival at the counter and its loads behind it."""

from __future__ import annotations

import re

import pytest
from triton_code import GPU_TARGETS, compiled, problem_of

from pumice.operators.decode_attention.spec import BENCH, SPEC
from pumice.operators.decode_attention.triton_plan import DecodeAttention

MATRIX = {
    "mfma": r"\tv_mfma_f32_16x16x(?:16|32)_?f16",
    "wmma": r"\tv_wmma_f32_16x16x16_f16",
    # Sixteen rows are too few for a warpgroup's product.
    "mma": r"\tmma\.sync\.",
    "wgmma": r"\tmma\.sync\.",
    "tcgen05": r"\tmma\.sync\.",
}
TARGETS = {target.name: target for target in GPU_TARGETS}
# What follows what, from the stores of a share to the loads of all: (release, arrival, acquire).
# CDNA: each wave waits for its own stores. RDNA: all waves wait for theirs before the barrier, at
# whose end both compute units of a workgroup drop what they cached.
ORDER = {
    "gfx90a": r"s_waitcnt vmcnt\(0\)\s+global_atomic_add .* glc\s+s_waitcnt vmcnt\(0\)\s+"
    r"buffer_wbinvl1_vol",
    "gfx942": r"buffer_wbl2 sc1\s+s_waitcnt vmcnt\(0\)\s+global_atomic_add .* sc0\s+"
    r"s_waitcnt vmcnt\(0\)\s+buffer_inv sc1",
    "gfx11": r"s_waitcnt_vscnt null, 0x0\s[^:]*?s_barrier\s+buffer_gl0_inv(?:.|\n)*?"
    r"global_atomic_add_u32 .* glc\s+s_waitcnt vmcnt\(0\)\s+buffer_gl1_inv\s+buffer_gl0_inv"
    r"(?:.|\n)*?s_barrier\s+buffer_gl0_inv",
    "gfx12": r"s_wait_storecnt 0x0(?:.|\n)*?s_barrier_signal -1(?:.|\n)*?s_barrier_wait -1\s+"
    r"global_inv scope:SCOPE_SE(?:.|\n)*?global_atomic_add_u32 .*TH_ATOMIC_RETURN scope:SCOPE_DEV"
    r"\s+s_wait_loadcnt 0x0\s+global_inv scope:SCOPE_DEV(?:.|\n)*?s_barrier_wait -1\s+"
    r"global_inv scope:SCOPE_SE",
    "sm_": r"st\.global(?:.|\n)*?bar\.sync(?:.|\n)*?atom\.global\.gpu\.acq_rel\.add\.u32"
    r"(?:.|\n)*?bar\.sync(?:.|\n)*?ld\.global",
}
ORDER["gfx950"] = ORDER["gfx942"]


def assembly(label: str, name: str) -> str:
    ((attrs, tensors),) = [row[1:] for row in BENCH if row[0] == label]
    target = TARGETS[name]
    (binary,) = compiled(DecodeAttention(), problem_of(SPEC, attrs, tensors), target)
    assert re.search(MATRIX[target.matrix_unit], binary.assembly)
    # Line numbers, comments and labels between instructions say nothing of their order.
    lines = re.sub(r"(?m)^\s*(?:\.loc|\.Ltmp|;|//|s_delay_alu|s_wait_alu).*\n", "", binary.assembly)
    return re.sub(r"[ \t]*(?:;|//).*", "", lines)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target(name: str) -> None:
    (pattern,) = [p for start, p in ORDER.items() if name.startswith(start)]
    text = assembly("Llama-3-8B 1×8192", name)
    assert re.search(pattern, text)
    arrivals = re.findall(r"global_atomic_add|atom\.global", text)
    assert len(arrivals) == 1


@pytest.mark.parametrize("name", ["gfx942", "gfx1100", "sm_90"])
@pytest.mark.parametrize("label", ["Llama-2-7B 1×1024", "Qwen3-8B 8×1024, normalized"])
def test_some_targets(name: str, label: str) -> None:
    assembly(label, name)


def test_early_start() -> None:
    """What starts before the launch in front of it has ended waits for that before it reads q."""
    ((attrs, tensors),) = [row[1:] for row in BENCH if row[0] == "Llama-3-8B 1×8192"]
    problem, kernel, target = problem_of(SPEC, attrs, tensors), DecodeAttention(), TARGETS["sm_90"]
    config = next(c for c in kernel.configs(problem, target) if c.get("early"))
    (binary,) = compiled(kernel, problem, target, config)
    text = binary.assembly
    wait, others = text.index("griddepcontrol.wait"), text.index("griddepcontrol.launch_dependents")
    assert wait < others < text.index("st.global")
    assert all(not c.get("early") for c in kernel.configs(problem, TARGETS["sm_80"]))
