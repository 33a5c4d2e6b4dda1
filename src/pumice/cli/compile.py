"""`pumice compile`: a model file into an artifact, with every phase to look at."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pumice.cli import options
from pumice.errors import UsageError

if TYPE_CHECKING:
    from pumice.artifact import Manifest
    from pumice.cli.session import ModelRequest
    from pumice.prepare import PrepareSettings

NAME = "compile"


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=options.directory,
            metavar="<path>",
            help="The artifact's directory. [default: in the cache]",
            show_default=False,
        ),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            "--dump",
            parser=options.directory,
            metavar="<path>",
            help="Write every phase into this directory: graphs, kernel choice with reasons, "
            "TensorIR, plan, assembly.",
            show_default=False,
        ),
    ] = None,
    random_weights: Annotated[
        str | None,
        typer.Option(
            "--random-weights",
            metavar="SHAPE",
            help="Random weights of a model's shapes.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights/--no-weights",
            help="Without: small enough to carry, for measurements on a GPU.",
        ),
    ] = True,
    fuse: Annotated[
        bool,
        typer.Option(
            "--fuse/--no-fuse",
            help="Fewer launches a token where that is faster; without, each operator its own. "
            "For GPUs.",
        ),
    ] = True,
    vendor_blas: Annotated[
        str,
        typer.Option(
            metavar="always|measured|never",
            help="Products of many tokens by cuBLASLt or hipBLASLt where it is found when the "
            "model is loaded: where rows measured on that architecture say it is faster by more "
            "than 2%, always, or never. For GPUs.",
        ),
    ] = "measured",
    device: options.DeviceOption = "auto",
    target: options.TargetOption = None,
    quant: options.QuantOption = None,
    activations: options.ActivationsOption = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the largest step. [default: 512; 2048 on GPUs]", show_default=False
        ),
    ] = None,
    max_sequences: Annotated[int, typer.Option(help="Sequences of the largest step.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(help="Compiler threads. [default: all CPUs]", show_default=False),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Even when the cache has it.")] = False,
    json_output: options.JsonOption = False,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Compile a model into an artifact."""  # fmt: skip
    from dataclasses import replace

    from pumice.artifact import Manifest
    from pumice.cli.console import note, print_json
    from pumice.cli.session import ModelRequest, choose_model
    from pumice.prepare import is_artifact

    if workers is not None and not 1 <= workers <= 1024:
        raise UsageError(f"--workers is {workers}; allowed: 1 to 1024")
    if random_weights is not None and (model or model_option):
        raise UsageError("--random-weights and a model exclude each other")
    name = f"random:{random_weights}" if random_weights else choose_model(model, model_option)
    request = ModelRequest(
        model=name, device=device, target=target, quantization=quant, activations=activations,
        cache_dir=cache_dir,
    )  # fmt: skip
    if is_artifact(name):
        raise UsageError(
            f"{name} is an artifact already; compile takes the model that it was made from",
            hint=f"`pumice inspect {name}` shows what it is.",
        )
    request = request.settled(runs=False)
    prepared = request.prepare_settings()
    if not weights:
        check_gpu_target(prepared.target, "--no-weights")
        prepared = replace(prepared, options=prepared.options | {"weights": False})
    if not fuse:
        check_gpu_target(prepared.target, "--no-fuse")
        apart = {"fuse_attention": False, "fuse_products": False}
        prepared = replace(prepared, options=prepared.options | apart)
    if vendor_blas != "measured":
        check_gpu_target(prepared.target, "--vendor-blas")
        prepared = replace(prepared, options=prepared.options | {"vendor_blas": vendor_blas})
    settings = replace(
        prepared,
        max_sequences=max_sequences, workers=workers, rebuild=rebuild,
        max_tokens=prepared.max_tokens if max_tokens is None else max_tokens,
    )  # fmt: skip
    start = time.perf_counter()
    if output is None and dump is None:
        directory = request.prepare(settings)
        manifest = Manifest.load(directory / "manifest.json")
    else:
        directory = output if output is not None else _inside(dump)
        manifest = _compile_here(request, settings, directory, dump)
    seconds = time.perf_counter() - start
    if json_output:
        print_json(
            {
                "artifact": str(directory), "seconds": round(seconds, 2), "model":
                manifest.model.name,
                "target": manifest.target["name"], "quantization": manifest.model.quantization,
                "weight_bytes": manifest.model.weight_bytes, "kernels": len(manifest.kernels),
            }
        )  # fmt: skip
        return
    _print_summary(manifest, seconds)
    if dump is not None:
        note(f"every phase is in {dump}")
    print(directory)


def check_gpu_target(name: str, option: str) -> None:
    """UsageError when an option is given for another target than a GPU."""
    from pumice.targets import get_target

    if get_target(name).api not in ("rocm", "cuda"):
        raise UsageError(
            f"{option} is for GPUs; the target is {name}",
            hint="Name one with --target (gfx1100, sm_90), or with --device.",
        )


def _inside(dump: Path | None) -> Path:
    assert dump is not None
    return dump / "artifact"


def check_output(directory: Path) -> None:
    """Refuses to replace a directory that is no artifact."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"--output is {str(directory)!r}, which is a file")
    if (directory / "manifest.json").is_file() or not any(directory.iterdir()):
        return
    raise UsageError(
        f"--output is {str(directory)!r}, which holds other files",
        hint="Name a directory that does not exist, or an older artifact.",
    )


def _compile_here(
    request: ModelRequest, settings: PrepareSettings, directory: Path, dump: Path | None
) -> Manifest:
    """Compiles in this process, outside the cache."""
    from pumice.cli.session import keep_kernels
    from pumice.compiler.compile import CompileOptions, compile_model
    from pumice.compiler.progress import make_progress
    from pumice.prepare import file_digest, resolve_target
    from pumice.summary import RANDOM, check_memory, summarize

    check_output(directory)
    keep_kernels(settings.cache_dir)
    source = request.fetch()
    target = resolve_target(settings.target)
    if target.api == "cpu":
        check_memory(summarize(source, settings.quantization), None, name=request.model)
    random = source.startswith(RANDOM)
    with make_progress(quiet=False) as report:
        return compile_model(
            source,
            target=target,
            output=directory,
            options=CompileOptions(
                **settings.compile_options(), workers=settings.workers, dump=dump
            ),
            digest=source if random else file_digest(Path(source), settings.cache_dir),
            report=report,
        )


def _print_summary(manifest: Manifest, seconds: float) -> None:
    from pumice.cli.console import note

    decode = next((p for name, p in manifest.entries.items() if name.startswith("decode")), None)
    launches = f", {len(decode.launches)} launches a token" if decode else ""
    note(
        f"{manifest.model.name} ({manifest.model.quantization}) for {manifest.target['name']}: "
        f"{len(manifest.kernels)} kernels{launches}, "
        f"{manifest.model.weight_bytes / 1e6:,.1f} MB of weights, {seconds:.1f} s"
    )
