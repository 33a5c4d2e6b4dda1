"""Every case of every GPU operator's spec on the current GPU, against its NumPy reference."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.operators.registry import get_spec
from pumice.operators.triton.build import binary_key, build
from pumice.operators.triton.plan import Problem
from pumice.processes import worker_pool
from pumice.targets import Target, get_target
from pumice.verify.judge import relative_error, tolerance_of
from pumice.verify.runner import problem_of


@dataclass
class CaseResult:
    """One case, kernel, configuration and output. passed: error within the spec's tolerance."""

    operator: str
    case: int
    kernel: str
    config: dict[str, int]
    output: str
    error: float
    tolerance: float
    passed: bool
    text: str = ""


def _compile_case(job: tuple[str, int, int, str]) -> str:
    from pumice.tuning.gpu import candidates

    operator, case, index, name = job
    spec, target = get_spec(operator), get_target(name)
    try:
        attrs, inputs = spec.cases(np.random.default_rng(0))[case]
        problem = problem_of(spec, attrs, inputs)
        kernel, config = candidates(problem, target)[index]
        plan = kernel.plan(problem, target, config)
        for launch in plan.launches:
            build(launch, {**problem.tensors, **plan.workspaces}, target)
    except Exception as error:
        return f"{operator} case {case}: {error}"
    return ""


def _chosen(problem: Problem, target: Target, most: int) -> list[int]:
    """Indexes of the candidates tried: the first `most` of every kernel."""
    from pumice.tuning.gpu import candidates

    count: dict[str, int] = {}
    found = []
    for index, (kernel, _) in enumerate(candidates(problem, target)):
        count[kernel.name] = count.get(kernel.name, 0) + 1
        if count[kernel.name] <= most:
            found.append(index)
    return found


def _supported(problem: Problem, target: Target) -> bool:
    from pumice.errors import UnsupportedError
    from pumice.tuning.gpu import candidates

    try:
        candidates(problem, target)
    except UnsupportedError:
        return False
    return True


def precompile_cases(operators: Iterable[str], target: Target, most: int) -> list[str]:
    """Compiles what `run_cases` will launch, in parallel, before the GPU is touched."""
    from pumice.tuning.gpu import candidates

    jobs, seen = [], set()
    for operator in operators:
        spec = get_spec(operator)
        for case, (attrs, inputs) in enumerate(spec.cases(np.random.default_rng(0))):
            problem = problem_of(spec, attrs, inputs)
            if not _supported(problem, target):
                continue
            offered = candidates(problem, target)
            for index in _chosen(problem, target, most):
                kernel, config = offered[index]
                plan = kernel.plan(problem, target, config)
                tensors = {**problem.tensors, **plan.workspaces}
                keys = [binary_key(launch, tensors, target) for launch in plan.launches]
                if not all(key in seen for key in keys):
                    seen.update(keys)
                    jobs.append((operator, case, index, target.name))
    with worker_pool(os.cpu_count() or 1, "fork") as pool:
        return [text for text in pool.map(_compile_case, jobs) if text]


def to_cuda(array: np.ndarray) -> Any:
    import torch

    if array.dtype.type.__module__.startswith("ml_dtypes"):
        bits = np.int8 if array.dtype.itemsize == 1 else np.int16
        return torch.from_numpy(array.view(bits)).cuda().view(getattr(torch, array.dtype.name))
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def to_float64(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.double().cpu().numpy())


def _part(result: CaseResult) -> float:
    """Of the tolerance; integers have none."""
    return result.error / result.tolerance if result.tolerance else (result.error and math.inf)


def run_cases(
    operators: Iterable[str], target: Target, most: int, say: Callable[[str], None]
) -> list[CaseResult]:
    """All cases, the first `most` configurations of every kernel, on poisoned outputs."""
    import torch

    from pumice.torch.launch import BoundPlan
    from pumice.tuning.gpu import candidates

    found: list[CaseResult] = []
    for operator in operators:
        spec = get_spec(operator)
        before = len(found)
        for case, (attrs, inputs) in enumerate(spec.cases(np.random.default_rng(0))):
            problem = problem_of(spec, attrs, inputs)
            if not _supported(problem, target):
                continue
            expected = spec.reference(attrs, inputs)
            offered = candidates(problem, target)
            for index in _chosen(problem, target, most):
                kernel, config = offered[index]
                tensors = {name: to_cuda(array) for name, array in inputs.items()}
                for name, tensor in problem.tensors.items():
                    if name not in tensors:
                        dtype = getattr(torch, tensor.dtype)
                        real = dtype.is_floating_point
                        fill = float("nan") if real else torch.iinfo(dtype).max
                        tensors[name] = torch.full(tensor.shape, fill, device="cuda").to(dtype)
                text = ""
                try:
                    BoundPlan(problem, kernel.plan(problem, target, config), target)(tensors)
                    torch.cuda.synchronize()
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"[:200]
                for name, reference in expected.items():
                    error_, passed = float("nan"), False
                    limit = tolerance_of(spec, problem, name)
                    if not text and name in tensors:
                        error_ = relative_error(to_float64(tensors[name]), reference)
                        passed = error_ <= limit
                    found.append(
                        CaseResult(operator, case, kernel.name, dict(config), name, error_, limit,
                                   passed, text)
                    )  # fmt: skip
        mine = found[before:]
        worst = max((_part(r) for r in mine if r.error == r.error), default=0.0)
        say(f"{operator}: {sum(r.passed for r in mine)} of {len(mine)} passed, "
            f"worst error {worst:.2f} of its tolerance")  # fmt: skip
    return found
