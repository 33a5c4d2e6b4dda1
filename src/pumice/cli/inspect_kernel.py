"""`pumice inspect --kernel`: a GPU kernel's registers, occupancy, instructions and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pumice.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from pumice.verify.inspection import Inspected, Inspection, Resources


def show(
    kernel: str,
    target: str,
    case: int | None,
    shape: str,
    config: int,
    sample: int | None,
    as_json: bool,
) -> None:
    """Prints it, or its JSON. Options as the command's."""
    from pumice.cli.console import print_json
    from pumice.targets import get_target
    from pumice.verify.inspection import inspect_kernel
    from pumice.verify.subject import choose

    row = get_target(target)
    if row.api not in ("rocm", "cuda"):
        raise UsageError(
            f"--target is {target!r}, of api {row.api}; GPU kernels are made for rocm and cuda",
            hint="Try gfx1100, gfx942 or sm_90.",
        )
    found = inspect_kernel(choose(kernel, row, case, shape), row, config=config, sample=sample)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)


def _print(found: Inspection) -> None:
    from pumice.cli.console import stdout

    console, subject = stdout(), found.subject
    facts = _facts()
    facts.add_row("kernel", f"{subject.kernel.name} for {found.target.name}")
    facts.add_row("problem", subject.label)
    facts.add_row(
        "tensors",
        ", ".join(
            f"{name} {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
            for name, tensor in subject.problem.tensors.items()
        ),
    )
    facts.add_row("configuration", ", ".join(f"{k}={v}" for k, v in found.config.items()) or "–")
    if found.error is not None:
        facts.add_row("result", f"error {found.error:.1e}, allowed {found.tolerance:.0e}")
    console.print(facts, markup=False)
    for number, launch in enumerate(found.launches, 1):
        console.print()
        _print_launch(launch, f"launch {number} of {len(found.launches)}", found.target.api)
    console.print()
    if found.target.api == "cuda":
        print(f"not executed: only AMD's code is emulated; {found.target.name} needs a GPU")
    if found.floor_s:
        print(
            f"roofline: {_us(found.floor_s)} for every byte once and every operation at the peaks "
            f"of {found.target.description}"
        )


def _print_launch(launch: Inspected, which: str, api: str) -> None:
    from pumice.cli.console import stdout

    facts = _facts()
    groups = launch.grid[0] * launch.grid[1] * launch.grid[2]
    facts.add_row(
        which,
        f"{launch.name}: {groups:,} workgroups {launch.grid} of {launch.threads} threads "
        f"({launch.resources.waves} {'waves' if api == 'rocm' else 'warps'})",
    )
    _add_resources(facts, launch.resources, api)
    _add_counts(facts, launch)
    if launch.estimate is not None:
        first, *rest = launch.estimate.lines()
        facts.add_row("estimate", "\n".join([first, *rest]))
    stdout().print(facts, markup=False)


def _add_resources(facts: Table, found: Resources, api: str) -> None:
    if api == "rocm":
        facts.add_row("registers", f"{found.registers} vector, {found.sgprs} scalar")
        facts.add_row(
            "spills",
            f"{found.vgpr_spills} vector registers to memory ({found.scratch_bytes} bytes of "
            f"scratch a lane), {found.sgpr_spills} scalar ones to vector registers",
        )
    else:
        facts.add_row("registers", f"{found.registers} a thread")
        facts.add_row("stack", f"{found.scratch_bytes} bytes a thread, spills among them")
    facts.add_row("LDS" if api == "rocm" else "shared memory", f"{found.shared_bytes:,} bytes")
    waves = "waves of a SIMD" if api == "rocm" else "warps of a multiprocessor"
    facts.add_row(
        "occupancy",
        f"{found.occupancy} of {found.most_waves} {waves}, limited by {found.limited_by}",
    )
    facts.add_row("code", _classes(found.instructions) + " instructions")


def _add_counts(facts: Table, launch: Inspected) -> None:
    report = launch.report
    if report is None:
        return
    traffic = report.traffic
    if report.executed < report.workgroups:
        facts.add_row(
            "executed",
            f"{report.executed:,} of {report.workgroups:,} workgroups; what follows is scaled to "
            "all",
        )
    else:
        facts.add_row("executed", f"all {report.workgroups:,} workgroups")
    total = sum(report.instructions.values())
    facts.add_row(
        "instructions",
        f"{total:,} of waves ({total / max(1, report.waves):,.0f} a wave): "
        f"{_classes(report.instructions)}",
    )
    moved = report.bytes_read + report.bytes_written
    share = moved / (64 * traffic.segments_64) if traffic.segments_64 else 1.0
    facts.add_row(
        "global memory",
        f"{report.bytes_read:,} bytes read, {report.bytes_written:,} written in "
        f"{traffic.global_accesses:,} accesses of waves\n"
        f"{traffic.segments_64:,} segments of 64 bytes, {traffic.segments_128:,} of 128; "
        f"{share:.0%} of the 64-byte segments' bytes are used\n"
        f"{traffic.lines_64:,} different 64-byte lines, each once a workgroup",
    )
    if traffic.lds_accesses:
        facts.add_row(
            "LDS accesses",
            f"{traffic.lds_accesses:,}; bank conflicts cost {traffic.lds_conflicts:,} cycles "
            f"({traffic.lds_conflicts / traffic.lds_accesses:.2f} an access)",
        )
    if report.flops:
        facts.add_row(
            "matrix operations", ", ".join(f"{n:,} of {kind}" for kind, n in report.flops.items())
        )
    for fault in report.faults:
        facts.add_row("sanitizer", str(fault))


def _classes(counts: Mapping[str, int]) -> str:
    order = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {count:,}" for kind, count in order)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.2f} µs"


def _facts() -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table
