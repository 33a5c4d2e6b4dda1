"""`pumice bench serve`: what clients of a server feel under a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli import options
from pumice.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pumice.bench.serving import Measurement, Objective, Point, Prompt
    from pumice.bench.serving_client import Endpoint

NAME = "serve"
_MILLI = 1e-3


def _passed(name: str, what: str) -> Any:
    """An option of the server that the benchmark starts."""
    return typer.Option(name, help=f"{what}, as `pumice serve` has it.", show_default=False)


def command(
    url: Annotated[
        str | None,
        typer.Argument(
            help="A server of OpenAI's protocol. [default: one is started for the benchmark]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="With a URL, the name in requests; without, the model to serve. "
            "[default: the server's first; smollm2-135m]",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency", "-c", help="Requests at a time: 8 or 1,8,32. [default: 1]",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", help="New requests a second, at random times (Poisson): 2 or 0.5,1,2.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", "-r",
            help="Requests of each load. [default: 4 × concurrency, at least 16]",
            show_default=False,
        ),
    ] = None,
    input_tokens: Annotated[
        int, typer.Option("--input", "-p", help="Tokens of a random prompt.")
    ] = 128,
    output_tokens: Annotated[
        int, typer.Option("--output", "-n", help="Tokens of an answer; with --trace the longest.")
    ] = 64,
    spread: Annotated[
        float, typer.Option("--spread", help="Lengths vary by this part of themselves.")
    ] = 0.0,
    shared: Annotated[
        int, typer.Option("--shared", help="Words that all random prompts begin with.")
    ] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Ask what people asked: a JSON file like ShareGPT's.",
            show_default=False,
        ),
    ] = None,
    slo_ttft: Annotated[
        float | None,
        typer.Option("--slo-ttft", help="Objective: milliseconds to the first text.",
                     show_default=False),
    ] = None,
    slo_tpot: Annotated[
        float | None,
        typer.Option("--slo-tpot", help="Objective: milliseconds per further token.",
                     show_default=False),
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="chat or completions.")
    ] = "chat",
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 is greedy.")
    ] = 0.0,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Ask for answers of full length, which not every server can. "
            "[default: for our own server and random prompts]",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", help="The server's key.", show_default=False),
    ] = None,
    warmup: Annotated[
        int, typer.Option("--warmup", help="Requests before, which are not measured.")
    ] = 2,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that a server may be silent.")
    ] = 600.0,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and times.")] = 0,
    json_output: options.JsonOption = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the figures into a .svg, .png or .pdf.",
                     show_default=False),
    ] = None,
    threads: options.ThreadsOption = None,
    device: Annotated[str | None, _passed("--device", "Of the server that is started")] = None,
    quant: Annotated[str | None, _passed("--quant", "Its weight format")] = None,
    activations: Annotated[str | None, _passed("--activations", "Its activations")] = None,
    speculate: Annotated[str | None, _passed("--speculate", "Its guessing of tokens")] = None,
    cache_dir: options.CacheDirOption = None,
) -> None:  # fmt: skip
    """Measure a server under load: TTFT, TPOT, ITL, throughput, goodput."""
    from pumice.bench.serving import Objective
    from pumice.bench.serving_client import Endpoint, server_url
    from pumice.bench.serving_load import parse_points

    points = parse_points(concurrency, rate)
    objective = Objective(
        None if slo_ttft is None else slo_ttft * _MILLI,
        None if slo_tpot is None else slo_tpot * _MILLI,
    )
    for name, value, least in (("--requests", requests, 1), ("--warmup", warmup, 0)):
        if value is not None and value < least:
            raise UsageError(f"{name} is {value}; it must be at least {least}")
    if temperature < 0:
        raise UsageError(f"--temperature is {temperature:g}; it must be at least 0")
    if plot is not None:
        from pumice.bench.plot import check_plot

        check_plot(plot)
    counts = [requests or max(16, 4 * (point.concurrency or 0)) for point in points]
    prompts = _prompts(
        warmup + sum(counts), trace, input_tokens=input_tokens, output_tokens=output_tokens,
        spread=spread, seed=seed, shared=shared,
    )  # fmt: skip
    full = (url is None and trace is None) if ignore_eos is None else ignore_eos
    fields = {"temperature": temperature, **({"ignore_eos": True} if full else {})}
    target = Endpoint(
        url=server_url(url) if url is not None else "", kind=endpoint, api_key=api_key,
        timeout=timeout, model=model if url is not None else None, fields=fields,
    )  # fmt: skip
    passed = {
        "--threads": threads, "--cache-dir": cache_dir, "--device": device, "--quant": quant,
        "--activations": activations, "--speculate": speculate,
    }  # fmt: skip
    if url is not None:
        _check_no_server_options(passed)
        measurements, name = _measure(target, points, counts, prompts, warmup, seed)
    else:
        from pumice.bench.serving_server import own_server
        from pumice.cli.session import choose_model

        arguments = [choose_model(None, model)]
        for option, given in passed.items():
            arguments += [] if given is None else [option, str(given)]
        arguments += [] if api_key is None else ["--api-key", api_key]
        with own_server(arguments) as address:
            from dataclasses import replace

            target = replace(target, url=address)
            measurements, name = _measure(target, points, counts, prompts, warmup, seed)
    _show(measurements, objective, name, target, json_output=json_output, plot=plot)
    if not any(measurement.whole for measurement in measurements):
        raise typer.Exit(10)


def _check_no_server_options(passed: Mapping[str, object]) -> None:
    for name, value in passed.items():
        if value is not None:
            raise UsageError(f"{name} is for a server that the benchmark starts; a URL was given")


def _prompts(
    count: int, trace: Path | None, *, input_tokens: int, output_tokens: int, spread: float,
    seed: int, shared: int,
) -> list[Prompt]:  # fmt: skip
    from pumice.bench.serving_workload import random_prompts, trace_prompts

    if trace is None:
        return random_prompts(
            count, input_tokens, output_tokens, spread=spread, seed=seed, shared_tokens=shared
        )
    if output_tokens < 1:
        raise UsageError(f"--output is {output_tokens}; it must be at least 1 token")
    return trace_prompts(trace, count, longest=output_tokens, seed=seed)


def _measure(
    endpoint: Endpoint, points: Sequence[Point], counts: Sequence[int],
    prompts: Sequence[Prompt], warmup: int, seed: int,
) -> tuple[list[Measurement], str]:  # fmt: skip
    """The measurements, and the model's name."""
    from dataclasses import replace

    from pumice import event_loop
    from pumice.bench.serving_client import first_model
    from pumice.bench.serving_load import measure, warm_up
    from pumice.cli.console import note
    from pumice.cli.progress import counting

    async def run() -> tuple[list[Measurement], str]:
        model = endpoint.model or await first_model(endpoint)
        target = replace(endpoint, model=model)
        if warmup:
            note(f"{warmup} requests to warm up")
        await warm_up(target, prompts[:warmup])
        measurements = []
        place = warmup
        for point, count in zip(points, counts, strict=True):
            with counting(f"{count} requests, {point.name}", count) as progress:
                part = prompts[place : place + count]
                measurements.append(
                    await measure(target, point, part, seed=seed, progress=progress)
                )
            place += count
        return measurements, model

    return event_loop.run(run())


def _show(
    measurements: Sequence[Measurement], objective: Objective, model: str, endpoint: Endpoint, *,
    json_output: bool, plot: Path | None,
) -> None:  # fmt: skip
    from pumice._version import __version__
    from pumice.bench.report import commit
    from pumice.cli.console import note, print_json

    rows = [m.row(objective) for m in measurements]
    if json_output:
        for row in rows:
            head = {"test": "serve", "model": model, "url": endpoint.url, "endpoint": endpoint.kind}
            print_json(head | row | {"version": __version__, "commit": commit()})
    else:
        _print_table(measurements, rows, objective)
    for measurement in measurements:
        for reason, count in measurement.errors.most_common():
            note(f"{measurement.point.name}: {count} × {reason}")
    if plot is not None:
        from pumice.bench.serving_plot import draw

        draw(plot, measurements, objective, title=f"{model} at {endpoint.url}")
        note(f"wrote {plot}")


def _print_table(
    measurements: Sequence[Measurement], rows: Sequence[dict[str, Any]], objective: Objective
) -> None:
    from rich.table import Table

    from pumice.cli.console import stdout

    table = Table(box=None, pad_edge=False)
    table.add_column("load")
    headings = ["answered", "errors", "requests/s", "tokens/s", "with prompts"]
    spreads = {"TTFT ms": "ttft_ms", "TPOT ms": "tpot_ms", "ITL ms": "itl_ms"}
    headings += [f"{name}\np50 / p90 / p99" for name in spreads]
    if objective:
        headings += ["goodput/s", "kept"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for measurement, row in zip(measurements, rows, strict=True):
        cells = [
            measurement.point.name, str(row["completed"]),
            str(sum(row["errors"].values())), f"{row['requests_per_s']:.2f}",
            f"{row['output_tokens_per_s']:.1f}", f"{row['total_tokens_per_s']:.1f}",
        ]  # fmt: skip
        for key in spreads.values():
            spread = row[key]
            shown = [f"{spread[p]:.1f}" for p in ("p50", "p90", "p99")] if spread else ["–"]
            cells.append(" / ".join(shown))
        if objective:
            cells += [f"{row['goodput_requests_per_s']:.2f}", f"{row['slo_kept']:.0%}"]
        table.add_row(*cells)
    stdout().print(table)
