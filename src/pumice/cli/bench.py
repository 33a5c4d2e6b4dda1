"""`pumice bench`: tokens per second, beside what the machine could do at most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pumice.cli import options
from pumice.errors import UsageError

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
    batch: Annotated[
        str, typer.Option("--batch", "-b", help="Sequences that generate together: 1 or 1,8,32.")
    ] = "1",
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
    predict: Annotated[
        str | None,
        typer.Option(
            "--predict",
            metavar="ARCH",
            help="Do not run: predict speeds on the cards of an architecture (gfx1100, gfx942, "
            "gfx1151, sm_90) from the compiled plans, and print what is assumed.",
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
    target: options.TargetOption = None,
    quant: options.QuantOption = None,
    activations: options.ActivationsOption = None,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Measure prompt processing (pp) and generation (tg), as llama-bench does."""
    from dataclasses import replace

    from pumice.bench.tests import expand, parse_lengths
    from pumice.cli.session import ModelRequest, cache_directory, choose_model
    from pumice.prepare import is_artifact
    from pumice.targets import get_target

    if not 1 <= repeat <= 1000:
        raise UsageError(f"--repeat is {repeat}; allowed: 1 to 1000")
    if predict is not None:
        _no_device("--predict", device=device, target=target, plot=plot, profile=profile,
                   trace=trace)  # fmt: skip
    if random_weights is not None and (model or model_option):
        raise UsageError("--random-weights and a model exclude each other")
    tests = expand(
        parse_lengths("--prompt", prompt),
        parse_lengths("--generate", generate),
        parse_lengths("--depth", depth),
        parse_lengths("--batch", batch),
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
    if predict is not None:
        from pumice.cli import bench_predict

        bench_predict.run(request, predict, tests, json_output)
        return
    if is_artifact(name):  # whose context is compared below, with the test that needs it
        replace(request, context=None).check()
    else:
        request = request.settled()
    prepared = request.prepare_settings()
    gpu_model = not is_artifact(name) and get_target(prepared.target).api != "cpu"
    if gpu_model and random_weights is not None:
        prepared = replace(prepared, options=prepared.options | {"weights": False})
    most = max(test.batch for test in tests)
    prepared = replace(prepared, max_sequences=max(prepared.max_sequences, most))
    directory = request.prepare(prepared)

    from pumice.artifact import Manifest
    from pumice.bench.model import check_context, run_test
    from pumice.bench.report import row
    from pumice.cli.bench_tables import print_profile, print_results
    from pumice.cli.console import note, print_json
    from pumice.runtime.gpu_executor import GpuExecutor
    from pumice.targets.detect import cpu_name

    manifest = Manifest.load(directory / "manifest.json")
    check_context(tests, manifest)
    size = manifest.cache.block_size
    blocks = max(test.batch * -(-test.context // size) for test in tests) + 1
    executor = request.load(directory, num_blocks=blocks, random_weights=True)
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
        print_results(results, manifest, device_name, count, limit)
    if profile:
        for step in profiles:
            print_profile(step, json_output)
    if trace is not None:
        from pumice.bench.profile import write_trace

        write_trace(trace, profiles)
        note(f"wrote {trace}")
    if plot is not None and limit is not None:
        from pumice.bench.plot import draw

        where = device_name if gpu else f"{device_name}, {count} threads"
        draw(plot, results, limit, title=f"{manifest.model.name} on {where}")
        note(f"wrote {plot}")


def _no_device(option: str, **others: object) -> None:
    """UsageError when an option that runs nothing meets one that says where or how to run."""
    defaults = {"device": "auto"}
    for name, value in others.items():
        if value and value != defaults.get(name):
            raise UsageError(
                f"{option} runs nothing, so --{name} says nothing",
                hint=f"Leave --{name} out: the architecture is {option}'s value.",
            )
