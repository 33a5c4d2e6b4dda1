"""All phases for a GPU, in order, and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pumice.artifact import CacheSpec, Manifest, Plan
from pumice.compiler.dump import Dump
from pumice.compiler.gpu.binaries import write_kernels
from pumice.compiler.gpu.lower import GpuLowering
from pumice.compiler.gpu.sampling import sampling_plans
from pumice.compiler.gpu.shapes import PlanShape, plan_shapes
from pumice.compiler.gpu.weights import GpuWeight, write_gpu_weights
from pumice.compiler.graph import Graph
from pumice.compiler.manifest import Contents, write_manifest
from pumice.compiler.passes.context import PassContext
from pumice.compiler.passes.gather_early import gather_early
from pumice.compiler.passes.merge_linears import merge_linears
from pumice.compiler.phases import fused_graphs
from pumice.compiler.source import ModelSource
from pumice.targets import Target
from pumice.tuning.gpu import database

if TYPE_CHECKING:
    from pumice.compiler.compile import CompileOptions

GPU_PASSES = (("gather_early", gather_early), ("merge_linears", merge_linears))
FLOATS = ("float16", "bfloat16")


def package(
    model: ModelSource,
    target: Target,
    work: Path,
    options: CompileOptions,
    dump: Dump,
    workers: int,
    digest: str,
    tell: Callable[[str, int, int], None],
) -> Manifest:
    """Writes the artifact's files into `work`."""
    config = model.config
    model.save_text(work)  # first: a tokenizer that cannot be read is known before minutes of work
    graphs = graphs_of(model, options, dump, tell)
    lowering = lowering_of(model, target, options)
    dtype = lowering.dtype
    shapes = shapes_of(model, options)
    plans = _plans(lowering, graphs, shapes, tell)
    rows = {shape.rows for shape in shapes if shape.entry != "embed"}
    plans |= sampling_plans(lowering, rows, config.vocab_size)
    _dump_plans(dump, plans, lowering)

    built = lowering.binaries.build(
        workers, lambda done, total: tell("6 generate code", done, total)
    )
    kernels = write_kernels(built, lowering.records, target, work, dump.folder_for("6-assembly"))
    write_gpu_weights(
        work / "weights.safetensors",
        lowering.weights,
        model.load,
        lambda done, total: tell("7 pack weights", done, total),
        only_vectors=not options.weights,
    )
    weight_bytes = sum(use.nbytes for use in lowering.weights.values())
    single = next(plan for name, plan in plans.items() if name.startswith("decode@1x"))
    block = (options.block_size, config.num_key_value_heads, config.head_dim)
    cache = CacheSpec(
        layers=config.num_hidden_layers,
        block_size=options.block_size,
        k_block_shape=block,
        v_block_shape=block,
        dtype=dtype,
    )
    contents = Contents(
        plans=plans,
        single=single,
        kernels=kernels,
        cache=cache,
        weight_bytes=weight_bytes,
        packages=("apache-tvm", "triton"),
        options={
            "activations": dtype,
            "fusions": lowering.fusions,
            "weights": _forms(lowering.weights),
            "vendor_blas": {"when": options.vendor_blas, "products": lowering.libraries},
        },
        weights=tuple(row for use in lowering.weights.values() for row in use.records()),
    )
    return write_manifest(work, model, target, options, contents, dump, digest)


def lowering_of(model: ModelSource, target: Target, options: CompileOptions) -> GpuLowering:
    """What the model's plans will share."""
    return GpuLowering(
        target,
        model.formats,
        model.shapes,
        options.block_size,
        options.activations if options.activations in FLOATS else FLOATS[0],
        database(target.name),
        fuse_attention=options.fuse_attention,
        fuse_products=options.fuse_products,
        vendor_blas=options.vendor_blas,
    )


def shapes_of(model: ModelSource, options: CompileOptions) -> list[PlanShape]:
    """The batches that get a plan."""
    return list(
        plan_shapes(
            max_tokens=options.max_tokens,
            max_sequences=options.max_sequences,
            max_rows=min(options.max_rows, options.max_tokens),
            context=model.config.context_length,
            block_size=options.block_size,
        )
    )


def graphs_of(
    model: ModelSource,
    options: CompileOptions,
    dump: Dump,
    tell: Callable[[str, int, int], None],
) -> dict[str, Graph]:
    """Phases 1 and 2: the model's graphs by entry, ready to be lowered."""
    context = PassContext(formats=model.formats)
    graphs = fused_graphs(model, GPU_PASSES, context, options.block_size, dump, tell)
    dump.notes(context.notes)
    return graphs


def _plans(
    lowering: GpuLowering,
    graphs: dict[str, Graph],
    shapes: list[PlanShape],
    tell: Callable[[str, int, int], None],
) -> dict[str, Plan]:
    plans = {}
    phase = "3 select, lower, plan memory"
    for done, shape in enumerate(shapes):
        tell(phase, done, len(shapes))
        plans[shape.name] = lowering.lower(graphs[shape.entry], shape)
    tell(phase, len(shapes), len(shapes))
    return plans


def _dump_plans(dump: Dump, plans: dict[str, Plan], lowering: GpuLowering) -> None:
    if dump.root is None:
        return
    rows = [
        f"{record.symbol}\n    {record.kernel}: {record.reason}\n    configuration {record.config}"
        + "".join(f"\n    not {name}: {why}" for name, why in record.rejected.items())
        for record in lowering.records.values()
    ]
    (dump.root / "3-select.txt").write_text("\n".join(rows) + "\n")
    for entry, plan in plans.items():
        lines = [f"arena {plan.arena_bytes:,} bytes at the bounds {plan.bounds}"]
        lines += [
            f"{index:4d}  {launch.kernel} {launch.grid}    # {launch.label}"
            for index, launch in enumerate(plan.launches)
        ]
        (dump.root / f"5-plan.{entry}.txt").write_text("\n".join(lines) + "\n")


def _forms(weights: Mapping[str, GpuWeight]) -> dict[str, int]:
    """How many matrices are held in which form, and why."""
    matrices = [w for w in weights.values() if w.form != "vector"]
    return dict(Counter(f"{w.form}: {w.reason}" for w in matrices))
