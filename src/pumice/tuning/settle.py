"""A choice made good by its binaries: a configuration that nobody measured and whose registers
spill gives way to the kernel's next. Which ones spill differs between versions of Triton."""

from __future__ import annotations

from dataclasses import replace

from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Config, Problem
from pumice.targets import Target
from pumice.tuning.gpu import GpuChoice
from pumice.tuning.model import estimate_s

TRIES = 6  # configurations that are compiled at most
_NO_SPILL = 8  # bytes of stack that ptxas takes for some kernels far from the limit


def spills(binary: Binary) -> bool:
    """Whether registers lie in memory."""
    found = binary.resources
    return found.spilled > 0 or found.scratch_bytes > _NO_SPILL


def compile_choice(
    problem: Problem, target: Target, choice: GpuChoice
) -> tuple[GpuChoice, list[Binary]]:
    """The choice's launches, compiled, in order; of a measured choice as it is, else of the first
    of its kernel's configurations that does not spill, which the choice then names.

    When all that are tried spill it is the one whose spilled memory is least, and the reason says
    so. CompileError when the compiler refuses. The choice must have a kernel.
    """
    kernel = choice.kernel
    assert kernel is not None, f"{choice.kernel_name} is no kernel of Pumice's"
    best: tuple[int, Config, list[Binary]] | None = None
    for config in [choice.config, *_others(problem, target, choice)][:TRIES]:
        binaries = build_plan(problem, kernel.plan(problem, target, config), target)
        if choice.measured or not any(map(spills, binaries)):
            best = (0, config, binaries)
            break
        spilled = sum(b.resources.scratch_bytes * b.threads for b in binaries)
        if best is None or spilled < best[0]:
            best = (spilled, config, binaries)
    assert best is not None
    spilled, config, binaries = best
    reason = choice.reason
    if config is not choice.config:
        reason += f"; its registers spill as {_text(choice.config)}, so {_text(config)}"
    if spilled:
        reason += "; all configurations that were tried spill, this one least"
    return replace(choice, config=config, reason=reason), binaries


def _others(problem: Problem, target: Target, choice: GpuChoice) -> list[Config]:
    """The kernel's other configurations, best first."""
    assert choice.kernel is not None
    found = [c for c in choice.kernel.configs(problem, target) if dict(c) != dict(choice.config)]
    found.sort(key=lambda config: estimate_s(problem, target, config) or 0.0)
    # Programs in another order need the same registers.
    tiles = {_tile(choice.config): choice.config} | {_tile(c): c for c in reversed(found)}
    return [c for c in found if tiles[_tile(c)] is c and _tile(c) != _tile(choice.config)]


def _tile(config: Config) -> tuple[tuple[str, int], ...]:
    return tuple(item for item in config.items() if item[0] != "group")


def _text(config: Config) -> str:
    return ",".join(f"{name}={value}" for name, value in config.items())
