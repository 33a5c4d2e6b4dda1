"""`pumice verify`: do the GPU operators compute the right thing on a device?"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli import options
from pumice.errors import UsageError

if TYPE_CHECKING:
    from pumice.verify.verify import Verdict

NAME = "verify"


def command(
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="rocm or cuda (with an optional :N), or cpu: this machine's own.",
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="An AMD architecture (gfx1100, gfx942 …): its machine code runs on an emulated "
            "card, which also looks for races and accesses out of bounds.",
        ),
    ] = "",
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", help="Only this one; may be repeated.", show_default=False),
    ] = None,
    every: Annotated[
        bool | None,
        typer.Option(
            "--all/--smallest",
            help="All cases, or each kernel's smallest. [default: all on a GPU, smallest on an "
            "emulated card]",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            min=0,
            help="Processes that share the cases of an emulated card; 0 takes all processors.",
        ),
    ] = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Run the operators' conformance cases on a device, and compare with NumPy in float64.

    On a card of your own it is the first thing to run; the JSON belongs into a bug report.
    """
    if device.split(":")[0] == "cpu" and not target:
        if operator or every is not None:
            raise UsageError(
                "--operator, --all and --smallest are of GPU operators; with --device cpu the "
                "CPU's kernels are all tried",
                hint="`pumice verify --target gfx1100 --operator gemm` runs an emulated card.",
            )
        from pumice.cli import doctor

        doctor.command(json_output=as_json)
        return
    name, row = _device(device, target)
    from pumice.cli.progress import counting
    from pumice.cli.session import keep_kernels
    from pumice.operators.registry import require_gpu_operator
    from pumice.runtime.devices.driver.choose import open_device
    from pumice.targets import get_target
    from pumice.verify.parallel import verify_in_processes
    from pumice.verify.runner import Runner
    from pumice.verify.verify import cases_of, verify

    keep_kernels(None)
    for one in operator or ():
        require_gpu_operator(one)
    opened = open_device(name)
    arch = get_target(row or str(opened.properties.arch))
    emulated = name.startswith(("rocm:emulated-", "rocm:sanitized-"))
    most = (1 if emulated else None) if every is None else (None if every else 1)
    cases = cases_of(arch, operator or (), most)
    places = {(case.kernel.name, case.index): at for at, case in enumerate(cases)}
    workers = min(jobs or len(os.sched_getaffinity(0)), len(cases)) if emulated else 1
    verdicts: list[Verdict] = []
    start = time.perf_counter()
    with counting(f"verifying {arch.name}", len(cases)) as step:
        if workers > 1:
            done = verify_in_processes(name, arch.name, cases, workers)
        else:
            done = verify(Runner(opened, arch), cases)
        with contextlib.closing(done):  # an interrupt ends the processes, too
            for verdict in done:
                verdicts.append(verdict)
                step()
    seconds = time.perf_counter() - start
    verdicts.sort(key=lambda v: places[v.kernel, v.case])
    _print(verdicts, arch.name, f"{'an emulated ' if emulated else ''}{opened}", seconds, as_json)
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(1)


def _device(device: str, target: str) -> tuple[str, str]:
    """(the driver's name of the device, the target's or "" when the device knows it)."""
    if device and target:
        raise UsageError(
            "--device and --target are given; --target means an emulated card, --device a real one"
        )
    if target:
        from pumice.targets import get_target

        row = get_target(target)
        if row.api != "rocm":
            raise UsageError(
                f"--target is {target!r}; AMD's architectures are emulated, others are not",
                hint="Use --device on a machine that has such a GPU.",
            )
        return f"rocm:sanitized-{row.arch}", row.name
    if device.split(":")[0] in ("rocm", "cuda"):
        return device, ""
    if not device:
        raise UsageError(
            "neither --device nor --target is given",
            hint="--device rocm is this machine's GPU, --target gfx1100 an emulated card.",
        )
    raise UsageError(
        f"--device is {device!r}; allowed: cpu, rocm, cuda, with an optional :N",
        hint="Without a GPU, `pumice verify --target gfx1100` runs an emulated card.",
    )


def _print(
    verdicts: list[Verdict], target: str, device: str, seconds: float, as_json: bool
) -> None:
    failed = [v for v in verdicts if not v.passed]
    if as_json:
        from pumice.cli.console import print_json

        rows: list[Any] = [{**dataclasses.asdict(v), "passed": v.passed} for v in verdicts]
        print_json(
            {
                "target": target, "device": device, "seconds": round(seconds, 1),
                "failed": len(failed), "cases": rows,
            }
        )  # fmt: skip
        return
    from rich.table import Table

    from pumice.cli.console import stdout

    table = Table(
        "kernel", "case", "error", "of tolerance", "VGPRs", "SGPRs", "spills", "LDS", "seconds",
        "verdict", box=None, header_style="bold",
    )  # fmt: skip
    for v in verdicts:
        known = v.vgprs >= 0
        table.add_row(
            v.kernel, str(v.case), f"{v.error:.1e}",
            f"{v.error / v.tolerance:.0%}" if v.tolerance else "–",
            str(v.vgprs) if known else "–", str(v.sgprs) if known else "–",
            f"{v.spills} + {v.scalar_spills} scalar" if v.scalar_spills > 0 else
            str(v.spills) if known else "–", f"{v.lds_bytes:,}", f"{v.seconds:.1f}",
            "ok" if v.passed else "[red]FAILED[/red]",
        )  # fmt: skip
    stdout().print(table)
    for v in failed:
        print(f"FAILED {v.kernel} case {v.case} ({v.shapes}): "
              f"{v.text or f'error {v.error:.3g}, allowed {v.tolerance:.3g}'}")  # fmt: skip
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} passed on {device} in {seconds:.0f} s")
