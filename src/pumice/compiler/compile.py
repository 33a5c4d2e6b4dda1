"""Model file → artifact: the numbered phases in order, each of which can be dumped."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pumice.artifact import CacheSpec, Manifest
from pumice.compiler.codegen import build_library
from pumice.compiler.dump import Dump
from pumice.compiler.lower import Lowering
from pumice.compiler.manifest import Contents, write_manifest
from pumice.compiler.passes import PASSES, PassContext
from pumice.compiler.phases import fused_graphs
from pumice.compiler.source import ModelSource, open_model
from pumice.compiler.weights import write_weights
from pumice.errors import UnsupportedError, UsageError
from pumice.files import atomic_directory
from pumice.targets import Target

Report = Callable[[str, int, int], None]  # phase, done, total
VENDOR_BLAS = ("always", "measured", "never")
ACTIVATIONS = ("int8", "int16", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class CompileOptions:
    """quantization: a format's name, or None for the file's own (float checkpoints become q4f16_1).

    activations: on CPUs, for matmuls with quantized weights, "int8" (fastest), "int16" (15 bits, as
    good as exact) or "float32"; on GPUs "float16" (what CPU values mean there, too) or "bfloat16".
    max_tokens, max_sequences, max_rows: the largest step (T, S, R of logits). block_size: tokens in
    a cache block.
    """

    quantization: str | None = None
    activations: str = "int16"
    max_tokens: int = 512
    max_sequences: int = 64
    max_rows: int = 64
    block_size: int = 32
    workers: int | None = None
    dump: Path | str | None = None
    weights: bool = True  # GPUs: False leaves the matrices out, for random weights when loaded
    fuse_attention: bool = True  # GPUs: rotation, append and attention of new tokens in one launch
    fuse_products: bool = True  # GPUs: norm, gate and residual in the products, where it is faster
    vendor_blas: str = "measured"  # GPUs: products of many rows that a vendor's library may compute

    def __post_init__(self) -> None:
        if self.activations not in ACTIVATIONS:
            raise UsageError(
                f"activations is {self.activations!r}; allowed: {', '.join(ACTIVATIONS)}"
            )
        for name, low, high in (
            ("max_tokens", 1, 65536),
            ("max_sequences", 1, 4096),
            ("max_rows", 1, 65536),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} is {value}; allowed: {low} to {high}")
        if self.vendor_blas not in VENDOR_BLAS:
            raise UsageError(
                f"vendor_blas is {self.vendor_blas!r}; allowed: {', '.join(VENDOR_BLAS)}"
            )
        if self.block_size not in (32, 64):
            raise UsageError(f"block_size is {self.block_size}; allowed: 32, 64")


def compile_model(
    source: str | Path,
    *,
    target: Target,
    output: Path,
    options: CompileOptions | None = None,
    digest: str = "",
    report: Report | None = None,
) -> Manifest:
    """Compiles a model into the artifact directory `output`, which appears whole or not at all.

    source: a .gguf file, a directory of safetensors, or "random:<shape>".
    target: as `pumice.targets.get_target` gives it. Raises UsageError for arguments of other types,
    ModelFileError, WeightMismatchError, UnsupportedError, CompileError, StorageError.
    """
    for name, value, kinds, words in (
        ("source", source, (str, Path), "a path, or random:SHAPE"),
        ("target", target, (Target,), "what pumice.targets.get_target gives"),
        ("output", output, (str, Path), "a path"),
        ("options", options, (CompileOptions, type(None)), "CompileOptions"),
    ):
        if not isinstance(value, kinds):
            raise UsageError(f"compile: {name} is a {type(value).__name__}; allowed: {words}")
    options = options or CompileOptions()
    tell = report or (lambda phase, done, total: None)
    if target.api == "cpu":
        run: Callable[..., Manifest] = _compile
    elif target.api in ("rocm", "cuda"):
        from pumice.compiler.gpu.package import package as run
    else:
        raise UnsupportedError(f"target {target.name} ({target.api}) cannot be compiled for yet")
    dump = Dump(Path(options.dump) if options.dump else None)
    workers = options.workers or len(os.sched_getaffinity(0))
    with open_model(source, options.quantization) as model:
        output = Path(output)
        with atomic_directory(output) as work:
            manifest = run(model, target, work, options, dump, workers, digest, tell)
    return manifest


def _compile(
    model: ModelSource,
    target: Target,
    work: Path,
    options: CompileOptions,
    dump: Dump,
    workers: int,
    digest: str,
    tell: Report,
) -> Manifest:
    config = model.config
    model.save_text(work)  # first: a tokenizer that cannot be read is known before minutes of work
    context = PassContext(formats=model.formats, activations=options.activations)
    graphs = fused_graphs(model, PASSES, context, options.block_size, dump, tell)

    lowering = Lowering(target, model.formats, model.shapes, options.block_size)
    blocks = -(-config.context_length // options.block_size)
    limits = {
        "extend": {
            "T": options.max_tokens,
            "S": options.max_sequences,
            "R": min(options.max_rows, options.max_tokens),
            "M": blocks,
        },
        "decode": {
            "T": options.max_sequences,
            "S": options.max_sequences,
            "R": options.max_sequences,
            "M": blocks,
        },
        # A mean reads every token's row; a row is as wide as the model and not as its vocabulary.
        "embed": {
            "T": options.max_tokens,
            "S": options.max_sequences,
            "R": options.max_tokens,
            "M": blocks,
        },
    }
    plans = {}
    for done, (entry, graph) in enumerate(graphs.items()):
        tell("3 select, lower, plan memory", done, len(graphs))
        plans[entry] = lowering.lower(graph, limits[entry])
    tell("3 select, lower, plan memory", len(graphs), len(graphs))
    dump.plans(plans, lowering)

    build_library(
        list(lowering.sources.values()),
        target,
        work / "model.so",
        workers=workers,
        report=lambda done, total, what: tell("6 generate code", done, total),
        keep_assembly=dump.folder_for("6-assembly"),
    )

    uses = list(lowering.weights.values())
    weight_bytes = write_weights(
        work / "weights.safetensors",
        uses,
        model.load,
        lambda done, total: tell("7 pack weights", done, total),
    )
    head_dim, kv = config.head_dim, config.num_key_value_heads
    cache = CacheSpec(
        layers=config.num_hidden_layers,
        block_size=options.block_size,
        k_block_shape=(kv, head_dim, options.block_size),
        v_block_shape=(kv, options.block_size, head_dim),
    )
    dump.notes(context.notes)
    contents = Contents(
        plans=plans,
        single=plans["decode"],
        kernels=lowering.records.values(),
        cache=cache,
        weight_bytes=weight_bytes,
        packages=("apache-tvm",),
        options={"activations": options.activations},
    )
    return write_manifest(work, model, target, options, contents, dump, digest)
