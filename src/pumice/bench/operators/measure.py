"""`pumice bench ops`: every GPU operator over real models' shapes, all candidates of every kernel,
PyTorch's own beside them.

A candidate's result is compared with the first peer's that computes the same (or with the first
candidate's) before its time counts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from pumice.operators.base import OperatorSpec
from pumice.operators.registry import GPU_OPERATORS, get_spec
from pumice.operators.triton.build import binary_key, build_plan
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel, make_problem
from pumice.targets import Target, get_target
from pumice.tuning.shapes import bench_rows

QUICK_MS = 1.5  # of work in the graph that sorts candidates; the finalists get more
FINALISTS = 4
Row = tuple[OperatorSpec, str, Problem, Mapping[str, TensorSpec]]


@dataclass
class Timing:
    """One kernel (or peer) on one problem. floor: the least time over the measured one. error:
    ‖out − ref‖ / ‖ref‖ against `against`; None when nothing compares."""

    operator: str
    label: str
    kernel: str
    config: dict[str, int] = field(default_factory=dict)
    us: float = 0.0
    floor: float = 0.0
    gb_per_s: float = 0.0
    tflop_per_s: float = 0.0
    error: float | None = None
    against: str = ""
    failed: str = ""


def is_ours(kernel: str) -> bool:
    """Whether a kernel is Pumice's: "gemm.triton.tiled", "softmax.triton"; else a peer."""
    return kernel.split(".")[1:2] == ["triton"]


def rows_of(operator: str, pattern: str = "") -> list[Row]:
    """(spec, label, problem, input specs) of an operator's benchmark rows that hold `pattern`."""
    spec = get_spec(operator)
    return [
        (spec, label, make_problem(spec, attrs, inputs), inputs)
        for label, attrs, inputs in bench_rows(spec)
        if pattern in label
    ]


def row_for(label: str, problem: Problem) -> Row:
    """A row of any problem."""
    return get_spec(problem.operator), label, problem, problem.inputs


def _compile_one(job: tuple[str, Problem, int, str]) -> str:
    """In a worker process: compiles one candidate's launches into Triton's cache."""
    from pumice.tuning.gpu import candidates

    label, problem, index, name = job
    target = get_target(name)
    try:
        kernel, config = candidates(problem, target)[index]
        build_plan(problem, kernel.plan(problem, target, config), target)
    except Exception as error:
        return f"{problem.operator} {label} {index}: {error}"
    return ""


def precompile(rows: Iterable[Row], target: Target, say: Callable[[str], None]) -> list[str]:
    """Compiles every candidate in parallel processes; returns what failed. Before any use of the
    GPU: the workers are forks."""
    from pumice.tuning.gpu import candidates

    jobs, seen = [], set()
    for _, label, problem, _ in rows:
        for index, (kernel, config) in enumerate(candidates(problem, target)):
            plan = kernel.plan(problem, target, config)
            tensors = {**problem.tensors, **plan.workspaces}
            keys = [binary_key(launch, tensors, target) for launch in plan.launches]
            if not all(key in seen for key in keys):
                seen.update(keys)
                jobs.append((label, problem, index, target.name))
    start = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(_compile_one, jobs, chunksize=1) if text]
    say(f"compiled {len(seen)} kernels in {time.perf_counter() - start:.0f} s")
    return failures


class OperatorBench:
    """Times problems on the current GPU."""

    def __init__(self, target: Target, say: Callable[[str], None]) -> None:
        import torch

        from pumice.bench.operators.timing import copy_bandwidth, matmul_peak

        self.target, self.say = target, say
        self.bandwidth = copy_bandwidth()
        peak = matmul_peak()
        self.peak = {name: peak for name in ("bfloat16", "float16")}
        self.peak |= {name: 2 * peak for name in ("float8_e4m3fn", "float8_e4m3fnuz", "int8")}
        self.peak["float32"] = target.peak["float32"]
        self.device = torch.cuda.get_device_name()

    def facts(self) -> dict[str, Any]:
        """What a results file records of the machine."""
        import torch
        import triton

        return {
            "device": self.device,
            "target": self.target.name,
            "copy_gb_per_s": round(self.bandwidth / 1e9),
            "bf16_tflop_per_s": round(self.peak["bfloat16"] / 1e12),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        }

    def row(self, spec: OperatorSpec, label: str, problem: Problem, inputs: Any) -> list[Timing]:
        """Every candidate and every peer on one problem, fastest first."""
        import torch

        from pumice.bench.operators import aiter
        from pumice.bench.operators.inputs import copies, make_tensors
        from pumice.bench.operators.peers import OTHER_RESULT, peers_of
        from pumice.bench.operators.timing import copies_for, microseconds
        from pumice.torch.launch import BoundPlan
        from pumice.torch.vendor import vendors_of
        from pumice.tuning.gpu import candidates

        assert spec.work is not None
        work = spec.work(problem)
        nbytes = sum(t.nbytes for t in problem.tensors.values())
        sets = [
            make_tensors(spec.name, problem, inputs, "cuda", seed)
            for seed in range(copies_for(nbytes))
        ]
        # What a call changes in place would not be the same for the next candidate.
        pristine = copies(sets[0])
        reference, against = None, ""
        found: list[Timing] = []

        calls: dict[int, Callable[[Any], object]] = {}

        def measure(
            name: str, config: Config, call: Callable[[Any], object], target_ms: float = 4.0
        ) -> None:
            timing = Timing(spec.name, label, name, dict(config))
            calls[id(timing)] = call
            time_it(timing, target_ms)
            found.append(timing)

        def time_it(timing: Timing, target_ms: float) -> None:
            try:
                timing.us = microseconds(calls[id(timing)], sets, target_ms=target_ms)
            except Exception as error:
                torch.cuda.synchronize()
                timing.failed = f"{type(error).__name__}: {error}"[:300]
            else:
                seconds = timing.us * 1e-6
                timing.floor = work.floor_s(self.bandwidth, self.peak) / seconds
                timing.gb_per_s = work.bytes / seconds / 1e9
                timing.tflop_per_s = work.flops / seconds / 1e12

        peers = dict(peers_of(problem))
        if aiter.available() and (theirs := aiter.peer_of(problem)) is not None:
            peers[aiter.NAME] = theirs
        for name, peer in peers.items():
            if against == "" and name not in OTHER_RESULT | {aiter.NAME}:
                try:
                    reference, against = {"out": peer(pristine).double()}, name
                except Exception as error:
                    self.say(f"{spec.name} {label}: peer {name}: {error}")
            measure(name, {}, peer)
        for name, call in vendors_of(problem).items():
            measure(name, {}, call)
        for kernel, config in candidates(problem, self.target):
            reference, against = self._candidate(
                kernel, config, label, problem, pristine, reference, against, found, measure,
                BoundPlan,
            )  # fmt: skip
        order = sorted(found, key=lambda t: (bool(t.failed), t.us))
        ours = [t for t in order if is_ours(t.kernel) and not t.failed]
        for timing in ours[:FINALISTS]:
            time_it(timing, 4.0)
        return sorted(found, key=lambda t: (bool(t.failed), t.us))

    def _candidate(
        self, kernel: TritonKernel, config: Config, label: str, problem: Problem, pristine: Any,
        reference: Any, against: str, found: list[Timing], measure: Any, bind: Any,
    ) -> tuple[Any, str]:  # fmt: skip
        from pumice.bench.operators.inputs import copies

        try:
            bound = bind(problem, kernel.plan(problem, self.target, config), self.target)
            probe = copies(pristine)
            bound(probe)
            outputs = {name: probe[name].double() for name in _written(problem)}
            kept = bound.restored("cuda")  # zeroed once, as a compiled model does it
        except Exception as error:
            found.append(
                Timing(problem.operator, label, kernel.name, dict(config), failed=str(error)[:300])
            )
            return reference, against
        if reference is None:
            reference, against = outputs, kernel.name
        measure(kernel.name, config, lambda given: bound({**given, **kept}), QUICK_MS)
        found[-1].error = max(
            _relative_error(outputs[name], expected) for name, expected in reference.items()
        )
        found[-1].against = against
        return reference, against


def _relative_error(got: Any, expected: Any) -> float:
    """As `pumice.verify.judge` has it, on the GPU: equal infinities are right, NaN never is."""
    import torch

    difference = torch.where(got == expected, 0.0, got - expected)
    finite = torch.where(expected.isfinite(), expected, 0.0)
    error = float(difference.norm()) / (float(finite.norm()) or 1.0)
    return error if math.isfinite(error) else math.inf


def _written(problem: Problem) -> list[str]:
    """Outputs, those that are inputs changed in place among them."""
    spec = get_spec(problem.operator)
    assert spec.output_specs is not None
    return list(spec.output_specs(problem.attrs, problem.inputs))


def results(timings: Iterable[Timing]) -> list[dict[str, Any]]:
    """Plain rows for a JSON file."""
    return [
        {key: round(v, 4) if isinstance(v, float) else v for key, v in asdict(t).items()}
        for t in timings
    ]


def gpu_operators(names: Iterable[str] = ()) -> list[str]:
    """The given operators, or all that have benchmark rows."""
    return [name for name in (names or GPU_OPERATORS) if rows_of(name)]
