"""`pumice bench`: tokens per second, beside what the machine could do at most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pumice.cli import options
from pumice.errors import UsageError

if TYPE_CHECKING:
    from pumice.artifact import Manifest
    from pumice.bench.model import TestResult
    from pumice.bench.profile import StepProfile
    from pumice.bench.roofline import Roofline

NAME = "bench"


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="Prompt lengths: 512 or 128,512; 0 for none.")
    ] = "512",
    generate: Annotated[
        str, typer.Option("--generate", "-n", help="Generation lengths; 0 for none.")
    ] = "128",
    depth: Annotated[
        str, typer.Option("--depth", "-d", help="Tokens in the cache before a test.")
    ] = "0",
    repeat: Annotated[int, typer.Option("--repeat", "-r", help="Timed runs of each test.")] = 5,
    random_weights: Annotated[
        str | None,
        typer.Option(
            "--random-weights",
            metavar="SHAPE",
            help="Random weights of a published model's shapes, such as llama-2-7b: no download.",
            show_default=False,
        ),
    ] = None,
    roofline: Annotated[
        bool, typer.Option(help="Measure read bandwidth and peaks of this machine.")
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw the roofline into a .svg, .png or .pdf.", show_default=False
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Time every kernel of one step of each test.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Write the profile as a Chrome trace (JSON).", show_default=False
        ),
    ] = None,
    json_output: options.JsonOption = False,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    target: options.TargetOption = "native",
    quant: options.QuantOption = None,
    activations: options.ActivationsOption = "int16",
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Measure prompt processing (pp) and generation (tg), as llama-bench does."""
    from dataclasses import replace

    from pumice.bench.tests import expand, parse_lengths
    from pumice.cli.session import ModelRequest, cache_directory, choose_model
    from pumice.targets import get_target

    if not 1 <= repeat <= 1000:
        raise UsageError(f"--repeat is {repeat}; allowed: 1 to 1000")
    if random_weights is not None and (model or model_option):
        raise UsageError("--random-weights and a model exclude each other")
    tests = expand(
        parse_lengths("--prompt", prompt),
        parse_lengths("--generate", generate),
        parse_lengths("--depth", depth),
    )
    if plot is not None:
        from pumice.bench.plot import check_plot

        check_plot(plot)
        if not roofline:
            raise UsageError("--plot draws the roofline, which --no-roofline leaves out")
    if trace is not None and not trace.parent.is_dir():
        raise UsageError(f"--trace is {str(trace)!r}; there is no directory {str(trace.parent)!r}")
    name = f"random:{random_weights}" if random_weights else choose_model(model, model_option)
    request = ModelRequest(
        model=name, device=device, threads=threads, target=target, quantization=quant,
        activations=activations, cache_dir=cache_dir, context=max(test.context for test in tests),
    )  # fmt: skip
    prepared = request.prepare_settings()
    if random_weights is not None and get_target(prepared.target).api != "cpu":
        prepared = replace(prepared, options=prepared.options | {"weights": False})
    directory = request.prepare(prepared)

    from pumice.artifact import Manifest
    from pumice.bench.model import check_context, run_test
    from pumice.bench.report import row
    from pumice.cli.console import note, print_json
    from pumice.runtime.gpu_executor import GpuExecutor
    from pumice.targets.detect import cpu_name

    manifest = Manifest.load(directory / "manifest.json")
    check_context(tests, manifest)
    executor = request.load(directory, random_weights=True)
    gpu = isinstance(executor, GpuExecutor)
    count = 0 if isinstance(executor, GpuExecutor) else executor.device.threads
    device_name = str(executor.device) if gpu else cpu_name()
    limit = None
    if roofline and isinstance(executor, GpuExecutor):
        from pumice.bench import gpu_roofline

        note("measuring the device's copy bandwidth")
        limit = gpu_roofline.measure(executor.device, get_target(str(manifest.target["name"])))
    elif roofline:
        from pumice.bench.roofline import measure

        # The artifact's own target: its instructions are what its kernels may use.
        artifact_target = get_target(str(manifest.target["name"]))
        note("measuring this machine's read bandwidth and peaks")
        limit = measure(artifact_target, cache_dir=cache_directory(cache_dir), threads=count)
    results, profiles = [], []
    for test in tests:
        note(f"{test.name}: {repeat} runs")
        result = run_test(executor, manifest, test, repeat=repeat, roofline=limit)
        results.append(result)
        if json_output:
            print_json(row(result, manifest, device=device_name, threads=count, roofline=limit))
        if profile or trace is not None:
            from pumice.bench.profile import profile_step

            profiles.append(profile_step(executor, test, roofline=limit))
    if not json_output:
        _print_results(results, manifest, device_name, count, limit)
    if profile:
        for step in profiles:
            _print_profile(step, json_output)
    if trace is not None:
        from pumice.bench.profile import write_trace

        write_trace(trace, profiles)
        note(f"wrote {trace}")
    if plot is not None and limit is not None:
        from pumice.bench.plot import draw

        where = device_name if gpu else f"{device_name}, {count} threads"
        draw(plot, results, limit, title=f"{manifest.model.name} on {where}")
        note(f"wrote {plot}")


def _print_results(
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
    for heading in ("tokens/s", "median", "MB/token", "GB/s", "Gop/s", "of roofline"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.test.name,
            f"{result.mean:,.2f} ± {result.deviation:,.2f}",
            f"{result.median:,.2f}",
            f"{result.bytes_per_token / 1e6:,.2f}",
            f"{result.bytes_per_s / 1e9:.2f}",
            f"{result.operations_per_s / 1e9:,.1f}",
            f"{result.roofline_fraction:.1%}" if roofline is not None else "–",
        )
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


def _print_profile(step: StepProfile, as_json: bool) -> None:
    from rich.table import Table

    from pumice.cli.console import print_json, stdout

    if as_json:
        for kernel in step.kernels:
            print_json(
                {
                    "profile": step.test, "operator": kernel.operator, "kernel": kernel.kernel,
                    "launches": kernel.launches, "us": round(kernel.seconds * 1e6, 2),
                    "bytes": kernel.cost.nbytes, "operations": kernel.cost.operations,
                }
            )  # fmt: skip
        return
    table = Table(
        box=None, pad_edge=False, title_justify="left",
        title=f"\n{step.test}: one step, {step.seconds * 1e6:,.0f} µs in kernels",
    )  # fmt: skip
    table.add_column("operator")
    for heading in ("launches", "µs", "share", "GB/s", "Gop/s", "of roofline"):
        table.add_column(heading, justify="right")
    table.add_column("kernel", overflow="fold")
    for kernel in step.kernels:
        cost, seconds = kernel.cost, max(kernel.seconds, 1e-12)
        table.add_row(
            kernel.operator,
            str(kernel.launches),
            f"{kernel.seconds * 1e6:,.1f}",
            f"{kernel.seconds / max(step.seconds, 1e-12):.1%}",
            f"{cost.nbytes / seconds / 1e9:.1f}" if cost.nbytes else "",
            f"{cost.operations / seconds / 1e9:,.1f}" if cost.operations else "",
            f"{kernel.least_seconds / seconds:.0%}" if kernel.least_seconds else "",
            kernel.kernel,
        )
    stdout().print(table)
