"""Tables of `pumice bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumice.artifact import Manifest
    from pumice.bench.model import TestResult
    from pumice.bench.profile import StepProfile
    from pumice.bench.roofline import Roofline


def print_results(
    results: list[TestResult],
    manifest: Manifest,
    device: str,
    threads: int,
    roofline: Roofline | None,
) -> None:
    from rich.table import Table

    from pumice.cli.console import stdout

    table = Table(box=None, pad_edge=False)
    table.add_column("test")
    gpu = not threads
    headings = ["tokens/s", "median", "MB/token", "GB/s", "Gop/s", "of roofline"]
    if gpu:
        headings.insert(4, "of copy")
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        values = [
            f"{result.mean:,.2f} ± {result.deviation:,.2f}",
            f"{result.median:,.2f}",
            f"{result.bytes_per_token / 1e6:,.2f}",
            f"{result.bytes_per_s / 1e9:.2f}",
            f"{result.operations_per_s / 1e9:,.1f}",
            f"{result.roofline_fraction:.1%}" if roofline is not None else "–",
        ]
        if gpu:
            part = result.bytes_per_s / roofline.read_bytes_per_s if roofline is not None else None
            values.insert(4, "–" if part is None else f"{part:.1%}")
        table.add_row(result.test.name, *values)
    console = stdout()
    model = manifest.model
    console.print(
        f"{model.name}, {model.quantization}, {model.weight_bytes / 1e6:,.1f} MB, compiled for "
        f"{manifest.target['name']}; {device}" + (f", {threads} threads" if threads else "")
    )
    if roofline is not None and not threads:
        console.print(
            f"this device: copies {roofline.read_bytes_per_s / 1e9:,.0f} GB/s (read and written); "
            f"{roofline.fp32_ops_per_s / 1e12:,.0f} Tflop/s ({roofline.int8_instruction})"
        )
    elif roofline is not None:
        console.print(
            f"this machine: reads {roofline.read_bytes_per_s / 1e9:.1f} GB/s; "
            f"int8 {roofline.int8_ops_per_s / 1e9:,.0f} Gop/s ({roofline.int8_instruction}); "
            f"float32 {roofline.fp32_ops_per_s / 1e9:,.0f} Gflop/s"
        )
    console.print(table)


def print_profile(step: StepProfile, as_json: bool) -> None:
    from rich.table import Table

    from pumice.cli.console import print_json, stdout

    if as_json:
        for kernel in step.kernels:
            print_json(
                {
                    "profile": step.test, "operator": kernel.operator, "call": kernel.call,
                    "kernel": kernel.kernel,
                    "launches": kernel.launches, "us": round(kernel.seconds * 1e6, 2),
                    "bytes": kernel.cost.nbytes, "operations": kernel.cost.operations,
                }
            )  # fmt: skip
        return
    table = Table(
        box=None, pad_edge=False, title_justify="left",
        title=f"\n{step.test}: one step, {step.seconds * 1e6:,.0f} µs in kernels",
    )  # fmt: skip
    table.add_column("operator", overflow="fold")
    for heading in ("launches", "µs", "share", "GB/s", "Gop/s", "of roofline"):
        table.add_column(heading, justify="right")
    table.add_column("kernel", overflow="fold")
    for kernel in step.kernels:
        cost, seconds = kernel.cost, max(kernel.seconds, 1e-12)
        table.add_row(
            kernel.call or kernel.operator,
            str(kernel.launches),
            f"{kernel.seconds * 1e6:,.1f}",
            f"{kernel.seconds / max(step.seconds, 1e-12):.1%}",
            f"{cost.nbytes / seconds / 1e9:.1f}" if cost.nbytes else "",
            f"{cost.operations / seconds / 1e9:,.1f}" if cost.operations else "",
            f"{kernel.least_seconds / seconds:.0%}" if kernel.least_seconds else "",
            kernel.kernel,
        )
    stdout().print(table)
