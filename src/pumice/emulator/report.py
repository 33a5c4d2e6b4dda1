"""What a launch did: instructions by class, memory traffic, matrix operations, faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pumice.emulator.sanitizer import Fault
from pumice.emulator.traffic import Traffic
from pumice.errors import KernelFaultError

# Findings that may be what the author wants: a row that is masked whole, for example.
ADVICE = frozenset({"nan-from-infinity"})


@dataclass
class LaunchReport:
    """Counts over all waves of a launch. Instructions are counted once a wave.

    executed: workgroups that ran, when only a sample of `workgroups` did.
    """

    kernel: str
    arch: str
    workgroups: int
    waves: int
    instructions: Counter[str] = field(default_factory=Counter)
    traffic: Traffic = field(default_factory=Traffic)
    flops: Counter[str] = field(default_factory=Counter)  # of matrix instructions, by type of A
    faults: list[Fault] = field(default_factory=list)
    fault_count: int = 0  # lanes; `faults` holds one an instruction and kind
    lds_bytes: int = 0
    vgprs: int = 0
    sgprs: int = 0
    executed: int = 0

    def scaled(self) -> LaunchReport:
        """Counts of the whole launch, as if all workgroups were like those of the sample."""
        if self.executed in (0, self.workgroups):
            return self
        factor = self.workgroups / self.executed

        def times(counts: Mapping[str, int]) -> dict[str, int]:
            return {key: round(factor * count) for key, count in counts.items()}

        old = self.traffic
        traffic = Traffic(old.measure, times(old.bytes_read), times(old.bytes_written))
        for name in ("segments_64", "segments_128", "global_accesses", "lds_accesses",
                     "lds_conflicts", "lines_64"):  # fmt: skip
            setattr(traffic, name, round(factor * getattr(old, name)))
        return replace(
            self,
            instructions=Counter(times(self.instructions)),
            flops=Counter(times(self.flops)),
            traffic=traffic,
        )

    @property
    def matrix_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def bytes_read(self) -> int:
        """Bytes that lanes loaded from global memory."""
        return self.traffic.bytes_read.get("global", 0)

    @property
    def bytes_written(self) -> int:
        return self.traffic.bytes_written.get("global", 0)

    @property
    def errors(self) -> list[Fault]:
        """Faults that are surely bugs."""
        return [fault for fault in self.faults if fault.kind not in ADVICE]

    def check(self) -> LaunchReport:
        """KernelFaultError when the sanitizer found a bug; the report itself otherwise."""
        errors = self.errors
        if errors:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            raise KernelFaultError(f"{errors[0]}{more}")
        return self

    def lines(self) -> list[str]:
        """For a person: what the launch executed and moved."""
        traffic = self.traffic
        classes = ", ".join(f"{kind} {n}" for kind, n in self.instructions.most_common())
        rows = [
            f"{self.kernel} on {self.arch}: {self.workgroups} workgroups, {self.waves} waves",
            f"registers: {self.vgprs} vector, {self.sgprs} scalar; LDS: {self.lds_bytes} bytes",
            f"instructions of waves: {sum(self.instructions.values())} ({classes})",
            f"global memory: {self.bytes_read} bytes read, {self.bytes_written} written",
        ]
        if traffic.measure:
            rows.append(
                f"segments: {traffic.segments_64} of 64 bytes, {traffic.segments_128} of 128, in "
                f"{traffic.global_accesses} accesses of waves; {traffic.lines_64} different lines "
                "of 64 bytes, each once a workgroup"
            )
            if traffic.lds_accesses:
                rows.append(
                    f"LDS: {traffic.lds_accesses} accesses, {traffic.lds_conflicts} cycles lost to "
                    "bank conflicts"
                )
        if self.flops:
            rows.append(f"matrix operations: {dict(self.flops)}")
        return rows + [str(fault) for fault in self.faults]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        traffic = self.traffic
        return {
            "kernel": self.kernel,
            "arch": self.arch,
            "workgroups": self.workgroups,
            "waves": self.waves,
            "executed_workgroups": self.executed,
            "instructions": dict(self.instructions),
            "bytes_read": dict(traffic.bytes_read),
            "bytes_written": dict(traffic.bytes_written),
            "segments_64": traffic.segments_64,
            "segments_128": traffic.segments_128,
            "lines_64": traffic.lines_64,
            "lds_accesses": traffic.lds_accesses,
            "lds_conflicts": traffic.lds_conflicts,
            "matrix_flops": dict(self.flops),
            "faults": [str(fault) for fault in self.faults],
        }
