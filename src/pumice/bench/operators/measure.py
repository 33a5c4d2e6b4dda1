"""`pumice bench ops`: every GPU operator over real models' shapes, the kernel that is chosen or all
candidates, PyTorch's own beside them.

A candidate's result is compared with the first peer's that computes the same (or with the first
candidate's) before its time counts.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pumice.operators.base import OperatorSpec
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.build import binary_key, build_plan
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel, make_problem
from pumice.processes import worker_pool
from pumice.targets import Target, get_target
from pumice.tuning.shapes import bench_rows

QUICK_MS = 1.5  # of work in the graph that sorts candidates; the finalists get more
FINALISTS = 4
LARGEST_ERROR = 0.03  # of a candidate against its peer on random data; more is a wrong result
# Peers that multiply the same shapes in other types, or leave scales out.
OTHER_RESULT = frozenset({"cublas.dense", "cublas.bf16", "cublas.int32"})
Candidate = tuple[TritonKernel, Config]
Offer = Callable[[Problem, Target], list[Candidate]]
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


@dataclass(eq=False)
class Entry:
    """What takes part in a row. outputs: of its first call, to be compared. final: whether it is
    timed in turns with the others."""

    timing: Timing
    call: Callable[[Any], object]
    outputs: dict[str, Any] | None = None
    final: bool = True


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


def chosen(problem: Problem, target: Target) -> list[Candidate]:
    """The kernel of ours that a user gets, as measured rows and the model say. UnsupportedError
    when none runs the problem."""
    from pumice.torch.choose import rows_here
    from pumice.tuning.similar import choose_near

    choice = choose_near(problem, target, rows_here(target))
    assert choice.kernel is not None  # no vendors were offered
    return [(choice.kernel, choice.config)]


def _compile_one(job: tuple[str, Problem, str, Config, str]) -> str:
    """In a worker process: compiles one candidate's launches into Triton's cache."""
    label, problem, name, config, architecture = job
    target = get_target(architecture)
    try:
        kernel = next(k for k in triton_kernels_of(problem.operator) if k.name == name)
        build_plan(problem, kernel.plan(problem, target, config), target)
    except Exception as error:
        return f"{problem.operator} {label} {name} {config}: {error}"
    return ""


def precompile(
    rows: Iterable[Row], target: Target, offer: Offer, say: Callable[[str], None]
) -> list[str]:
    """Compiles every candidate in parallel processes; returns what failed. Before any use of the
    GPU: the workers are forks."""
    jobs, seen = [], set()
    for _, label, problem, _ in rows:
        for kernel, config in offer(problem, target):
            plan = kernel.plan(problem, target, config)
            tensors = {**problem.tensors, **plan.workspaces}
            keys = [binary_key(launch, tensors, target) for launch in plan.launches]
            if not all(key in seen for key in keys):
                seen.update(keys)
                jobs.append((label, problem, kernel.name, config, target.name))
    start = time.perf_counter()
    with worker_pool(os.cpu_count() or 1, "fork") as pool:
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
        gc.collect()
        gc.freeze()  # what is loaded by now stays: collections before captures are short

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

    def row(
        self, spec: OperatorSpec, label: str, problem: Problem, inputs: Any, offer: Offer
    ) -> list[Timing]:
        """The offered candidates and every peer on one problem, `in_order`."""
        from pumice.bench.operators.inputs import copies, make_tensors
        from pumice.bench.operators.timing import copies_for

        nbytes = sum(t.nbytes for t in problem.tensors.values())
        sets = [
            make_tensors(spec.name, problem, inputs, "cuda", seed)
            for seed in range(copies_for(nbytes))
        ]
        # What a call changes in place would not be the same for the next candidate.
        entries = self._peers(spec, label, problem, copies(sets[0]))
        reference = next((e.outputs for e in entries if e.outputs is not None), None)
        against = next((e.timing.kernel for e in entries if e.outputs is not None), "")
        ours: list[Entry] = []
        for kernel, config in offer(problem, self.target):
            entry = self._candidate(kernel, config, label, problem, copies(sets[0]))
            if entry.outputs is not None:
                if reference is None:
                    reference, against = entry.outputs, kernel.name
                entry.timing.error = max(
                    _relative_error(entry.outputs[name], expected)
                    for name, expected in reference.items()
                )
                entry.timing.against = against
                entry.outputs = None
            ours.append(entry)
        if len(ours) > FINALISTS:
            self._sort_out(ours, sets)
        self._in_turns([*entries, *ours], sets)
        work = spec.work
        assert work is not None
        for entry in (*entries, *ours):
            timing = entry.timing
            if timing.us:
                done, seconds = work(problem), timing.us * 1e-6
                timing.floor = done.floor_s(self.bandwidth, self.peak) / seconds
                timing.gb_per_s = done.bytes / seconds / 1e9
                timing.tflop_per_s = done.flops / seconds / 1e12
        return in_order([*entries, *ours])

    def _peers(self, spec: OperatorSpec, label: str, problem: Problem, given: Any) -> list[Entry]:
        """PyTorch's, AITER's and the vendors' calls; of the first that computes the same, its
        result."""
        from pumice.bench.operators import aiter
        from pumice.bench.operators.peers import peers_of
        from pumice.torch.vendor import vendors_of

        peers: dict[str, Callable[[Any], object]] = dict(peers_of(problem))
        if aiter.available() and (theirs := aiter.peer_of(problem)) is not None:
            peers[aiter.NAME] = theirs
        found, compared = [], False
        for name, peer in {**peers, **vendors_of(problem)}.items():
            entry = Entry(Timing(spec.name, label, name), peer)
            if not compared and name in peers and name not in OTHER_RESULT | {aiter.NAME}:
                try:
                    result: Any = peer(given)
                    entry.outputs, compared = {"out": result.double()}, True
                except Exception as error:
                    self.say(f"{spec.name} {label}: peer {name}: {error}")
            found.append(entry)
        return found

    def _candidate(
        self, kernel: TritonKernel, config: Config, label: str, problem: Problem, given: Any
    ) -> Entry:
        """A kernel of ours, and its results from one call."""
        from pumice.torch.launch import BoundPlan

        timing = Timing(problem.operator, label, kernel.name, dict(config))
        try:
            bound = BoundPlan(problem, kernel.plan(problem, self.target, config), self.target)
            bound(given)
            outputs = {name: given[name].double() for name in _written(problem)}
            kept = bound.restored("cuda")  # zeroed once, as a compiled model does it
        except Exception as error:
            timing.failed = str(error)[:300]
            return Entry(timing, _nothing)
        return Entry(timing, lambda tensors: bound({**tensors, **kept}), outputs)

    def _sort_out(self, entries: list[Entry], sets: list[Any]) -> None:
        """Times each for a moment, and leaves only the fastest, and those to be told of, to the
        turns."""
        from pumice.bench.operators.timing import microseconds

        for entry in entries:
            if not entry.timing.failed:
                with _told(entry.timing):
                    entry.timing.us = microseconds(entry.call, sets, target_ms=QUICK_MS)
        right = [e for e in entries if not e.timing.failed and not is_wrong(e.timing.error)]
        for entry in sorted(right, key=lambda e: e.timing.us)[FINALISTS:]:
            entry.final = False
        for entry in entries:
            entry.final = entry.final and entry in right

    def _in_turns(self, entries: list[Entry], sets: list[Any]) -> None:
        from pumice.bench.operators.timing import Captured, capture, in_turns

        graphs: list[tuple[Timing, Captured]] = []
        for entry in entries:
            if entry.final and not entry.timing.failed:
                with _told(entry.timing):
                    graphs.append((entry.timing, capture(entry.call, sets)))
        times = in_turns([graph for _, graph in graphs])
        for (timing, _), us in zip(graphs, times, strict=True):
            timing.us = us


def in_order(entries: Iterable[Entry]) -> list[Timing]:
    """Those timed in turns first, the fastest of them in front; what failed last."""
    order = sorted(entries, key=lambda e: (bool(e.timing.failed), not e.final, e.timing.us))
    return [entry.timing for entry in order]


def _nothing(tensors: Any) -> None:
    raise AssertionError("what failed is not called")


@contextlib.contextmanager
def _told(timing: Timing) -> Iterator[None]:
    """Any failure becomes the row's."""
    import torch

    try:
        yield
    except Exception as error:
        torch.cuda.synchronize()
        timing.failed = f"{type(error).__name__}: {error}"[:300]


def is_wrong(error: float | None) -> bool:
    """Whether a result is too far from the one it is compared with."""
    return error is not None and not error < LARGEST_ERROR


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
