"""`pumice inspect`: what is in a model file, in a compiled artifact, or in a GPU kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli import options
from pumice.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pumice.artifact import Manifest
    from pumice.summary import ModelSummary

NAME = "inspect"


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    kernels: Annotated[bool, typer.Option(help="List an artifact's kernels with reasons.")] = True,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Of an artifact: compare every byte of its files with what was written.",
        ),
    ] = False,
    context: options.ContextOption = None,
    quant: options.QuantOption = None,
    json_output: options.JsonOption = False,
    cache_dir: options.CacheDirOption = None,
    kernel: Annotated[
        str,
        typer.Option(
            "--kernel",
            help="OPERATOR or OPERATOR:KERNEL, such as gemm_w4:gemv: its machine code instead of a "
            "model. For AMD it is executed on an emulated card.",
            show_default=False,
        ),
    ] = "",
    target: Annotated[
        str, typer.Option("--target", help="Of --kernel: gfx1100, gfx942, sm_90 …")
    ] = "gfx1100",
    case: Annotated[
        int | None,
        typer.Option(
            "--case",
            help="Of --kernel: a conformance case, whose result is checked.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            help="Of --kernel: a part of a benchmark row's name, or tensors "
            "(x=16x4096,w=64x4096:float16). [default: the first row that the kernel takes]",
            show_default=False,
        ),
    ] = "",
    config: Annotated[
        int,
        typer.Option("--config", help="Of --kernel: a candidate's number; 0 is favourite."),
    ] = 0,
    sample: Annotated[
        int | None,
        typer.Option(
            "--workgroups",
            min=0,
            help="Of --kernel: how many are executed; 0 is all. [default: all of a case, else a "
            "few, spread over the grid]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a model file without compiling it, an artifact, or what a GPU kernel is made of."""
    if kernel:
        from pumice.cli import inspect_kernel
        from pumice.cli.session import keep_kernels

        keep_kernels(cache_dir)
        inspect_kernel.show(kernel, target, case, shape, config, sample, json_output)
        return
    from pumice.artifact import Manifest
    from pumice.cli.console import print_json, stdout
    from pumice.cli.session import ModelRequest, choose_model
    from pumice.prepare import is_artifact
    from pumice.summary import as_dict, summarize

    name = choose_model(model, model_option)
    request = ModelRequest(name, quantization=quant, context=context, cache_dir=cache_dir)
    request.check()
    if check and not is_artifact(name):
        raise UsageError(f"--check is of an artifact; {name} is a model")
    if is_artifact(name):
        manifest = Manifest.load(Path(name) / "manifest.json")
        if check:
            _check(Path(name), manifest)
        if manifest.target.get("api") != "cpu":
            from pumice.cli import inspect_gpu

            if json_output:
                print_json(inspect_gpu.as_dict(Path(name), manifest, context))
            else:
                inspect_gpu.print_artifact(stdout(), Path(name), manifest, context, kernels)
        elif json_output:
            print_json(_artifact_dict(Path(name), manifest))
        else:
            _print_artifact(stdout(), Path(name), manifest, kernels)
        return
    summary = summarize(request.fetch(), quant)
    if json_output:
        data = as_dict(summary, context)
        if tensors:
            data["tensors"] = [
                {"name": t.name, "shape": list(t.shape), "format": t.format}
                for t in summary.tensors
            ]
        print_json(data)
    else:
        _print_model(stdout(), summary, context, tensors)


def _check(directory: Path, manifest: Manifest) -> None:
    """ArtifactError for files that are not as they were written."""
    from pumice.artifact import AGAIN
    from pumice.artifact_files import check_files
    from pumice.cli.console import note

    if not manifest.files:
        raise ArtifactError(
            f"{directory} was compiled before checksums were kept: nobody can tell", hint=AGAIN
        )
    compared = check_files(directory, manifest, whole=True)
    note(f"{len(manifest.files)} files and the manifest, {_mb(compared)}: all as written")


def facts_table() -> Table:
    """Names and values, without lines."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _listing(*headings: str, right: tuple[str, ...] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _print_model(
    console: Console, summary: ModelSummary, context: int | None, tensors: bool
) -> None:
    config = summary.config
    tokens = summary.context(context)
    facts = facts_table()
    facts.add_row("model", summary.path)
    facts.add_row("architecture", f"{summary.architecture} ({summary.kind})")
    facts.add_row("parameters", f"{summary.parameters / 1e6:,.1f} million")
    if summary.file_bytes:
        facts.add_row("file", _mb(summary.file_bytes))
    facts.add_row(
        "layers",
        f"{config.num_hidden_layers}, width {config.hidden_size:,}, "
        f"MLP {config.intermediate_size:,}",
    )
    facts.add_row(
        "heads",
        f"{config.num_attention_heads} of {config.head_dim}, "
        f"{config.num_key_value_heads} for keys and values",
    )
    facts.add_row("vocabulary", f"{config.vocab_size:,}")
    facts.add_row("context", f"{config.context_length:,} tokens")
    cache = tokens * summary.cache_bytes_per_token
    facts.add_row(
        "memory to run",
        f"{_mb(summary.weight_bytes + cache + summary.work_bytes())}: weights "
        f"{_mb(summary.weight_bytes)}, cache of {tokens:,} tokens {_mb(cache)}, "
        f"work {_mb(summary.work_bytes())}",
    )
    console.print(facts)
    console.print()
    numbers = ("tensors", "parameters", "packed")
    table = _listing("type", *numbers, right=numbers)
    for name, count, parameters, nbytes in summary.types():
        table.add_row(name, f"{count:,}", f"{parameters:,}", _mb(nbytes))
    console.print(table)
    if tensors:
        console.print()
        rows = _listing("tensor", "shape", "type")
        for tensor in summary.tensors:
            rows.add_row(tensor.name, " × ".join(map(str, tensor.shape)), tensor.format)
        console.print(rows)


def _artifact_dict(directory: Path, manifest: Manifest) -> dict[str, Any]:
    import dataclasses

    return {
        "path": str(directory),
        "pumice": manifest.pumice,
        "versions": manifest.versions,
        "target": manifest.target,
        "model": dataclasses.asdict(manifest.model),
        "memory": manifest.memory,
        "launches": {name: len(plan.launches) for name, plan in manifest.entries.items()},
        "bounds": {name: plan.bounds for name, plan in manifest.entries.items()},
        "kernels": [
            {
                "symbol": k.symbol, "operator": k.operator, "kernel": k.kernel, "reason": k.reason,
                "config": k.config, "rejected": k.rejected,
            }
            for k in manifest.kernels
        ],
    }  # fmt: skip


def _print_artifact(
    console: Console, directory: Path, manifest: Manifest, with_kernels: bool
) -> None:
    model, memory, cache = manifest.model, manifest.memory, manifest.cache
    facts = facts_table()
    facts.add_row("artifact", str(directory))
    facts.add_row("model", f"{model.name} ({model.architecture}), from {model.source}")
    features = ", ".join(manifest.target.get("features", ()))
    facts.add_row("compiled for", f"{manifest.target['name']} ({features})")
    facts.add_row(
        "with",
        ", ".join(
            [f"pumice {manifest.pumice}", *(f"{k} {v}" for k, v in manifest.versions.items())]
        ),
    )
    facts.add_row("parameters", f"{model.parameters / 1e6:,.1f} million, {model.quantization}")
    token_bytes = cache.bytes_per_block() / cache.block_size
    facts.add_row(
        "memory",
        f"weights {_mb(model.weight_bytes)}, work {_mb(memory.get('arena', 0))}, cache "
        f"{token_bytes / 1e3:,.1f} kB a token ({_mb(token_bytes * model.context_length)} for the "
        f"whole context of {model.context_length:,})",
    )
    facts.add_row("read for a token", f"{_mb(model.bytes_per_token)} of weights")
    for name, plan in manifest.entries.items():
        bounds = ", ".join(f"{k} ≤ {v:,}" for k, v in plan.bounds.items())
        facts.add_row(f"{name}", f"{len(plan.launches)} launches; {bounds}")
    console.print(facts)
    if not with_kernels:
        return
    uses: dict[str, int] = {}
    for plan in manifest.entries.values():
        for launch in plan.launches:
            uses[launch.kernel] = uses.get(launch.kernel, 0) + 1
    table = _listing(
        "operator", "kernel", "launches", "symbol, configuration and reason", right=("launches",)
    )
    for kernel in sorted(manifest.kernels, key=lambda k: (k.operator, k.symbol)):
        config = ", ".join(f"{k}={v}" for k, v in kernel.config.items())
        text = kernel.symbol + (f" [{config}]" if config else "") + f"\n{kernel.reason}"
        for name, why in kernel.rejected.items():
            text += f"\nnot {name}: {why}"
        table.add_row(kernel.operator, kernel.kernel, str(uses.get(kernel.symbol, 0)), text)
    console.print()
    console.print(table, markup=False)
