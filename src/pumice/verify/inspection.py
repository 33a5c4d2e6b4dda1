"""What a GPU kernel is made of, without the GPU: registers and occupancy out of the compiled code,
and for AMD what it does, by executing it on an emulated card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pumice.binary.amdgpu import read_code_object
from pumice.binary.cubin import read_cubin
from pumice.dtypes import numpy_dtype
from pumice.emulator.emulator import Emulator
from pumice.emulator.estimate import Estimate, card_of, estimate, occupancy
from pumice.emulator.program import Code, instruction_class
from pumice.emulator.report import LaunchReport
from pumice.errors import UsageError
from pumice.operators.triton.build import Binary, build
from pumice.operators.triton.plan import Config, Launch, Plan
from pumice.targets import Target
from pumice.verify.judge import judge
from pumice.verify.runner import poisoned
from pumice.verify.subject import Subject

_LANES = 2048  # threads of a sample
_SLACK = 1 << 28  # bytes for code, arguments and guards between allocations
# CUDA's programming guide, table "Technical Specifications per Compute Capability": threads of a
# multiprocessor; registers of one are 65,536 everywhere, given out to warps by 256.
_THREADS = {"sm_80": 2048, "sm_86": 1536, "sm_89": 1536, "sm_90": 2048, "sm_100": 2048,
            "sm_120": 1536}  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """What one launch takes. sgprs, scratch_bytes: AMD. spills: registers that went to memory, or
    from scalar into vector registers (AMD); bytes of a thread's stack (CUDA). waves: of a
    workgroup. occupancy: waves at once of `most_waves`, of a SIMD (AMD) or multiprocessor (CUDA),
    and what limits them. instructions: of the code, each once, by class.
    """

    registers: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    shared_bytes: int
    waves: int
    occupancy: int
    most_waves: int
    limited_by: str
    instructions: Mapping[str, int]


@dataclass
class Inspected:
    """One launch of a plan. report: counts of all workgroups, None when it was not executed."""

    name: str
    grid: tuple[int, int, int]
    threads: int
    resources: Resources
    report: LaunchReport | None = None
    estimate: Estimate | None = None

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": self.name, "grid": list(self.grid), "threads": self.threads,
            "resources": asdict(self.resources), "executed": self.report is not None,
        }  # fmt: skip
        if self.report is not None:
            found["counts"] = self.report.as_dict()
        if self.estimate is not None:
            found["estimate"] = {
                **asdict(self.estimate), "seconds": self.estimate.seconds,
                "bound": self.estimate.bound, "assumptions": self.estimate.assumptions(),
            }  # fmt: skip
        return found


@dataclass
class Inspection:
    """error, tolerance: of a conformance case's results, else None. floor_s: the least time for its
    bytes and operations at the target's peaks; 0 when they are not known.
    """

    subject: Subject
    target: Target
    config: Config
    floor_s: float
    launches: list[Inspected] = field(default_factory=list)
    error: float | None = None
    tolerance: float | None = None

    @property
    def seconds(self) -> float:
        return sum(one.estimate.seconds for one in self.launches if one.estimate is not None)

    def as_dict(self) -> dict[str, Any]:
        subject = self.subject
        return {
            "operator": subject.spec.name, "kernel": subject.kernel.name,
            "target": self.target.name, "problem": subject.label,
            "tensors": {
                name: f"{t.dtype}[{', '.join(map(str, t.shape))}]"
                for name, t in subject.problem.tensors.items()
            },
            "attrs": dict(subject.problem.attrs), "config": dict(self.config),
            "error": self.error, "tolerance": self.tolerance, "floor_seconds": self.floor_s,
            "estimated_seconds": self.seconds or None,
            "launches": [one.as_dict() for one in self.launches],
        }  # fmt: skip


def inspect_kernel(
    subject: Subject, target: Target, *, config: int = 0, sample: int | None = None
) -> Inspection:
    """config: number of the candidate configuration. sample: workgroups of a launch that run (0:
    all); None: all of a conformance case, a few of anything else.
    """
    configs = list(subject.kernel.configs(subject.problem, target))
    if not 0 <= config < len(configs):
        raise UsageError(
            f"--config is {config}; {subject.kernel.name} has {len(configs)} candidates here, "
            "from 0, the favourite"
        )
    plan = subject.kernel.plan(subject.problem, target, configs[config])
    if not plan.launches:
        raise UsageError(f"{subject.label} has nothing to compute", hint="Choose another --case.")
    floor = 0.0
    if subject.spec.work is not None:
        floor = subject.spec.work(subject.problem).floor_s(target.bandwidth, target.peak)
    found = Inspection(subject, target, configs[config], floor)
    tensors = {**subject.problem.tensors, **plan.workspaces}
    binaries = [build(launch, tensors, target) for launch in plan.launches]
    for launch, binary in zip(plan.launches, binaries, strict=True):
        resources = _amd(binary, target) if target.api == "rocm" else _cuda(binary, target)
        found.launches.append(Inspected(binary.symbol, launch.grid, binary.threads, resources))
    if target.api == "rocm":
        _execute(found, plan, binaries, sample)
    return found


def _amd(binary: Binary, target: Target) -> Resources:
    code = read_code_object(binary.code)
    kernel = code.kernels[binary.symbol]
    waves = -(-binary.threads // kernel.wave)
    lds = kernel.lds_bytes + binary.shared_bytes
    fit, limit = occupancy(target.arch, vgprs=kernel.vgprs, lds_bytes=lds, waves=waves)
    listing = Code(code, kernel).listing()
    return Resources(
        kernel.vgprs, kernel.sgprs, kernel.vgpr_spills, kernel.sgpr_spills, kernel.scratch_bytes,
        lds, waves, fit, card_of(target.arch).most_waves, limit,
        dict(Counter(instruction_class(inst) for inst in listing)),
    )  # fmt: skip


def _cuda(binary: Binary, target: Target) -> Resources:
    kernel = read_cubin(binary.code)[binary.symbol]
    waves = binary.threads // target.wave
    most = _THREADS.get(target.name, 2048) // target.wave
    registers = -(-max(1, kernel.registers) * target.wave // 256) * 256
    limits = {"warps of a multiprocessor": most, "registers": 65536 // registers}
    if binary.shared_bytes:
        limits["shared memory"] = target.shared_bytes // binary.shared_bytes * waves
    limit = min(limits, key=lambda name: limits[name])
    fit = limits[limit] // waves * waves  # whole blocks
    return Resources(
        kernel.registers, 0, 0, 0, kernel.local_bytes, binary.shared_bytes, waves, fit, most,
        limit, {"all": kernel.instructions},
    )  # fmt: skip


def _execute(found: Inspection, plan: Plan, binaries: list[Binary], sample: int | None) -> None:
    subject = found.subject
    tensors = {**subject.problem.tensors, **plan.workspaces}
    whole = subject.checked and sample is None
    capacity = _SLACK + sum(t.nbytes + 8192 for t in tensors.values())
    gpu = Emulator(found.target.arch, capacity=capacity)
    places = {}
    for name, tensor in tensors.items():
        places[name] = gpu.allocate(max(1, tensor.nbytes))  # zeros
        if name in subject.contents:
            gpu.write(places[name], np.ascontiguousarray(subject.contents[name]))
        elif whole and name not in plan.zeroed:
            gpu.write(places[name], poisoned(tensor))
    for launch, binary, one in zip(plan.launches, binaries, found.launches, strict=True):
        some = sample
        if sample is None and not subject.checked:
            some = max(1, _LANES // binary.threads)
        report = gpu.launch(
            (gpu.load(binary.code), binary.symbol), launch.grid, (binary.threads,),
            _arguments(launch, binary, places), lds_bytes=binary.shared_bytes,
            sanitize=whole, measure=True, sample=some or None,
        ).check()  # fmt: skip
        one.report = report.scaled()
        one.estimate = estimate(one.report)
    if whole:
        expected = subject.spec.reference(subject.problem.attrs, subject.contents)
        got = {
            name: gpu.download(places[name], tensors[name].shape, numpy_dtype(tensors[name].dtype))
            for name in expected
        }
        found.error, found.tolerance = judge(subject.spec, subject.problem, got, expected)


def _arguments(launch: Launch, binary: Binary, places: Mapping[str, int]) -> list[int | float]:
    values: list[int | float] = []
    for name, kind in binary.parameters:
        value = launch.arguments[name]
        if isinstance(value, str):
            values.append(places[value])
        else:
            values.append(float(value) if kind.startswith("fp") else int(value))
    return values
