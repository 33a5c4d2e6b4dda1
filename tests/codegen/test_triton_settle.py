"""A choice whose registers spill gives way, unless it was measured; resources as a code object has
them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton

from pumice.binary.cubin import read_cubin
from pumice.errors import ArtifactError
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.operators.triton.resources import read_resources
from pumice.targets import Target, get_target
from pumice.tuning.gpu import GpuChoice
from pumice.tuning.settle import compile_choice, spills

# Sums of 64 × 128 do not fit one wave of 32 lanes.
TOO_LARGE = {
    "BM": 64, "BN": 128, "BK": 16, "warps": 1, "stages": 2, "split": 1, "halves": 1,
    "registers": 0, "group": 4,
}  # fmt: skip


def gemm(m: int = 512) -> Problem:
    inputs = {n: TensorSpec((size, 512), "float16") for n, size in (("x", m), ("w", 512))}
    return make_problem(get_spec("gemm"), {}, inputs)


def choice(config: dict[str, int], measured: bool = False) -> GpuChoice:
    kernel = next(k for k in triton_kernels_of("gemm") if k.name == "gemm.triton.tiled")
    return GpuChoice(kernel.name, kernel, config, "why", measured=measured)


@pytest.mark.parametrize("arch", ["gfx1100", "sm_86"])
def test_a_spilling_configuration_gives_way(arch: str) -> None:
    target = get_target(arch)
    settled, binaries = compile_choice(gemm(), target, choice(TOO_LARGE))
    assert settled.config != TOO_LARGE and not any(map(spills, binaries))
    assert settled.reason.startswith("why; its registers spill as BM=64,BN=128")
    as_measured, binaries = compile_choice(gemm(), target, choice(TOO_LARGE, measured=True))
    assert (as_measured.config, as_measured.reason) == (TOO_LARGE, "why")
    assert any(map(spills, binaries))


def test_a_good_configuration_stays() -> None:
    target = get_target("gfx942")
    first = choice({})
    assert first.kernel is not None
    config = dict(first.kernel.configs(gemm(), target)[0])
    settled, binaries = compile_choice(gemm(), target, choice(config))
    assert (settled.config, settled.reason) == (config, "why")
    assert len(binaries) == 1


def one(arch: str) -> tuple[Binary, Target]:
    target = get_target(arch)
    kernel = choice({}).kernel
    assert kernel is not None
    plan = kernel.plan(gemm(), target, kernel.configs(gemm(), target)[0])
    return build_plan(gemm(), plan, target)[0], target


def test_resources_of_an_amd_kernel() -> None:
    binary, target = one("gfx1100")
    found = binary.resources
    assert 0 < found.vgprs <= target.vgprs and 0 < found.sgprs <= 108 and found.wave == 32
    assert found.shared_bytes == binary.shared_bytes > 0
    assert found.as_dict()["spilled"] == 0
    with pytest.raises(ArtifactError, match="no kernel 'other'"):
        read_resources(binary.code, "other", 0)


@pytest.mark.parametrize("config", [None, TOO_LARGE], ids=["fits", "spills"])
def test_resources_of_a_cuda_kernel_are_those_that_cuobjdump_prints(
    config: dict[str, int] | None, tmp_path: Path
) -> None:
    binary, target = one("sm_86")
    if config is not None:
        settled, (binary,) = compile_choice(gemm(), target, choice(config, measured=True))
        assert settled.config is config
    path = tmp_path / "kernel.cubin"
    path.write_bytes(binary.code)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    text = subprocess.run(
        [tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True
    ).stdout
    printed = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert printed is not None, text
    found = binary.resources
    assert (found.vgprs, found.scratch_bytes) == (int(printed[1]), int(printed[2]))
    assert (found.scratch_bytes > 0) == (config is not None)
    with pytest.raises(ArtifactError, match="no kernel 'other'"):
        read_resources(binary.code, "other", 0)
    with pytest.raises(ArtifactError):
        read_cubin(binary.code[:100])
