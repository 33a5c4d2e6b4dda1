"""Which products a vendor's library may compute: by measured rows, by option, and where a plan has
its operands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pumice.artifact import BufferRef, Launch
from pumice.cli.app import app
from pumice.compiler.compile import CompileOptions
from pumice.compiler.dump import Dump
from pumice.compiler.gpu.library_products import (
    VENDOR,
    WORKSPACE_BYTES,
    attach,
    library_step,
)
from pumice.compiler.gpu.package import graphs_of, lowering_of, shapes_of
from pumice.compiler.gpu.select import Selected, Selection
from pumice.compiler.gpu.translate import Call
from pumice.compiler.gpu.values import Value
from pumice.compiler.source import open_model
from pumice.errors import UsageError
from pumice.operators.gemm.triton_plan import GemmTiled
from pumice.operators.gemm_w4.triton_plan import Tiled as GemmW4Tiled
from pumice.operators.gemm_w4.two_step import TwoStep
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.tuning.database import Database, row_of, write_rows

TILED = "gemm.triton.tiled"


def dense(m: int, dtype: str = "bfloat16", n: int = 512, k: int = 256, **attrs: Any) -> Problem:
    inputs = {"x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype)}
    return make_problem(get_spec("gemm"), attrs, inputs)


def packed(m: int, n: int = 512, k: int = 256, **attrs: Any) -> Problem:
    inputs = {
        "x": TensorSpec((m, k), "float16"), "w": TensorSpec((n, k // 8), "int32"),
        "scales": TensorSpec((n, k // 32), "float16"),
    }  # fmt: skip
    attrs = {"group": 32, "zero": 7, "packing": "blocks"} | attrs
    return make_problem(get_spec("gemm_w4"), attrs, inputs)


def selected(problem: Problem, arch: str = "sm_90") -> Selected:
    kernel = GemmTiled() if problem.operator == "gemm" else TwoStep()
    target = get_target(arch)
    assert kernel.supports(problem, target) is None
    config = kernel.configs(problem, target)[0]
    plan = kernel.plan(problem, target, config)
    return Selected(problem, plan, kernel.name, config, "", {})


def rows(folder: Path, *found: tuple[Problem, str, float], arch: str = "sm_90") -> Database:
    path = folder / arch / "gemm.json"
    write_rows(path, [row_of(p, kernel=kernel, config={}, us=us) for p, kernel, us in found])
    return Database(arch, (folder,))


def call_of(problem: Problem) -> Call:
    tensors = {name: Value("arena", name, spec) for name, spec in problem.tensors.items()}
    return Call(problem.operator, problem.attrs, tensors, problem.outputs, "product", 0, 0)


def decided(choice: Selected, known: Database, mode: str = "measured") -> tuple[bool, str]:
    selection = Selection(get_target(known.arch), known)
    step, reason = library_step(call_of(choice.problem), choice, selection, mode)
    return step is not None, reason


@pytest.mark.parametrize("problem", [packed(512), dense(512), dense(512, "float16")], ids=str)
def test_by_rows(problem: Problem, tmp_path: Path) -> None:
    choice = selected(problem)
    for own, taken in ((103.0, True), (101.9, False), (90.0, False)):
        known = rows(
            tmp_path / str(own), (dense(512), VENDOR, 100.0), (dense(512), TILED, own),
            (dense(512), TILED, 500.0), (dense(64), TILED, 1.0),
        )  # fmt: skip
        found, reason = decided(choice, known)
        assert found is taken, reason
        assert f"100.0 µs, own kernels {own} µs" in reason and "the same sizes" in reason
        assert ("measured in bfloat16" in reason) == (problem["x"].dtype == "float16")


def test_the_nearest_sizes_decide(tmp_path: Path) -> None:
    known = rows(
        tmp_path, (dense(512), VENDOR, 100.0), (dense(512), TILED, 200.0),
        (dense(2048), TILED, 300.0),
    )  # fmt: skip
    assert decided(selected(dense(700)), known)[0]
    found, reason = decided(selected(dense(2000)), known)
    assert not found and f"no row of {VENDOR} for x 2048×256" in reason
    found, reason = decided(selected(dense(512, n=8192)), known)
    assert not found and "no row measured near on sm_90" in reason
    only = rows(tmp_path / "other", (dense(512), VENDOR, 100.0))
    found, reason = decided(selected(dense(512)), only)
    assert not found and "no own kernel has a row" in reason


def test_rows_of_another_architecture_say_nothing(tmp_path: Path) -> None:
    rows(tmp_path, (dense(512), VENDOR, 100.0), (dense(512), TILED, 200.0))
    for arch in ("gfx1100", "gfx942", "sm_89"):
        found, reason = decided(selected(packed(512), arch), Database(arch, (tmp_path,)))
        assert (found, reason) == (False, f"no row measured near on {arch}")
        assert decided(selected(packed(512), arch), Database(arch), "always")[0]


def test_modes(tmp_path: Path) -> None:
    known = rows(tmp_path, (dense(512), VENDOR, 100.0), (dense(512), TILED, 200.0))
    assert decided(selected(dense(512)), known, "never") == (False, "switched off")
    assert decided(selected(dense(4096)), known, "always") == (True, "asked for")
    assert CompileOptions().vendor_blas == "measured"
    with pytest.raises(UsageError, match="'often'; allowed: always, measured, never"):
        CompileOptions(vendor_blas="often")
    arguments = ["compile", "smollm2-135m", "--target", "x86-64-v3", "--vendor-blas", "always"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == UsageError.exit_code and "--vendor-blas is for GPUs" in done.output


def fused(problem: Problem) -> Selected:
    """A kernel that multiplies with packed weights."""
    kernel, target = GemmW4Tiled(), get_target("sm_90")
    config = kernel.configs(problem, target)[0]
    plan = kernel.plan(problem, target, config)
    return Selected(problem, plan, kernel.name, config, "", {})


def test_beside_a_kernel_that_reads_packed_weights(tmp_path: Path) -> None:
    """Unpacking counts: rows of the whole call decide, products alone do not."""
    problem, own = packed(512), "gemm_w4.triton.tiled"
    known = rows(tmp_path, (dense(512), VENDOR, 100.0), (dense(512), TILED, 200.0))
    found, reason = decided(fused(problem), known)
    assert not found and "no row measured near" in reason
    for us, taken in ((80.0, True), (99.0, False), (120.0, False)):
        measured = [
            row_of(problem, kernel=k, config={}, us=t) for k, t in ((VENDOR, us), (own, 100))
        ]
        write_rows(tmp_path / "sm_90" / "gemm_w4.json", measured)
        whole = Database("sm_90", (tmp_path,))
        found, reason = decided(fused(problem), whole)
        assert found is taken and f"{us} µs, own kernels 100.0 µs" in reason
        # of a call that is unpacked anyway, too
        assert decided(selected(problem), whole)[0] is taken
    assert decided(fused(packed(100)), whole, "always") == (False, "")  # too few to unpack for


def test_a_vendor_s_row_that_has_its_own_comparison(tmp_path: Path) -> None:
    """Rows of other runs do not count then."""
    problem = packed(512)
    for own, taken in ((100.0, True), (81.0, False)):
        lines = [
            row_of(problem, kernel=VENDOR, us=80.0, own_us=own),
            row_of(problem, kernel="gemm_w4.triton.tiled", us=70.0 if taken else 200.0),
        ]
        write_rows(tmp_path / "sm_90" / "gemm_w4.json", lines)
        found, reason = decided(selected(problem), Database("sm_90", (tmp_path,)))
        assert found is taken and f"own kernels {own} µs" in reason


def test_what_unpacks_comes_first() -> None:
    problem = packed(130)
    choice, selection = fused(problem), Selection(get_target("sm_90"), Database("sm_90", ()))
    call = call_of(problem)
    step, _ = library_step(call, choice, selection, "always")
    assert step is not None and step.unpacked is not None
    assert set(step.unpacked.plan.workspaces) == {"dense"} and len(step.unpacked.plan.launches) == 1
    own = [Launch(name, (), "l") for name in ("fill", "tiled")]
    first = [Launch("dequantize", (), "l")]
    made = attach(
        step, choice, own, first, lambda name: BufferRef("arena", name), BufferRef("arena")
    )
    product = made[0].product
    assert product is not None and made[1].product is None
    assert (product.launches, product.before, product.w.name) == (2, tuple(first), "dense")


def test_what_a_library_is_not_asked_for() -> None:
    with_bias = dense(512)
    inputs = {**with_bias.inputs, "bias": TensorSpec((512,), "bfloat16")}
    known = Database("sm_90", ())
    for problem, why in (
        (dense(127), "127 rows; at least 128"),
        (make_problem(get_spec("gemm"), {}, inputs), "bias would need a launch of its own"),
        (dense(512, activation="silu"), "the activation"),
        (dense(512, "float32"), "float32 times float32"),
        (dense(512, "bfloat16", out_dtype="float16"), "bfloat16 times bfloat16 to float16"),
    ):
        found, reason = decided(selected(problem), known, "always")
        assert not found and why in reason
    assert decided(selected(dense(512, out_dtype="float32")), known, "always")[0]


def test_where_a_plan_has_the_operands() -> None:
    choice = selected(packed(130, out_dtype="float32"))
    selection = Selection(get_target("sm_90"), Database("sm_90", ()))
    step, _ = library_step(call_of(choice.problem), choice, selection, "always")
    assert step is not None and step.unpacked is None
    own = [Launch("fill", (), "zero")] + [Launch(f"k{i}", (), "l") for i in range(2)]
    places = {name: BufferRef("arena", name) for name in ("x", "dense", "out")}
    made = attach(step, choice, own, [], places.__getitem__, BufferRef("arena", "space"))
    assert [launch.product is None for launch in made] == [True, True, False]
    assert [replace(launch, product=None) for launch in made] == own
    product = made[2].product
    assert product is not None and (product.m, product.n, product.k) == (130, 512, 256)
    assert [p.name for p in (product.x, product.w, product.out, product.workspace)] == [
        "x", "dense", "out", "space",
    ]  # fmt: skip
    assert (product.dtype, product.out_dtype, product.launches) == ("float16", "float32", 1)
    strides = (product.x_stride, product.w_stride, product.out_stride)
    assert (strides, product.workspace_bytes) == ((256, 256, 512), WORKSPACE_BYTES)


def test_a_model_s_plans() -> None:
    """Every product of a prompt's plan, and none of a decode plan's; the arena has room."""
    options = CompileOptions(max_tokens=128, max_sequences=1, max_rows=1, vendor_blas="always")
    with open_model("random:smollm2-135m", None) as model:
        graphs = graphs_of(model, options, Dump(None), lambda phase, done, total: None)
        lowering = lowering_of(model, get_target("gfx942"), options)
        shapes = shapes_of(model, options)
    for entry, tokens in (("extend", 128), ("decode", 1)):
        shape = next(s for s in shapes if (s.entry, s.tokens) == (entry, tokens))
        plan = lowering.lower(graphs[entry], shape)
        products = [launch.product for launch in plan.launches if launch.product is not None]
        two_steps = sum("dequantize" in launch.kernel for launch in plan.launches)
        assert len(products) == two_steps and bool(products) == (entry == "extend")
        for product in products:
            assert product.workspace.offset + product.workspace_bytes <= plan.arena_bytes
            inside = range(product.workspace.offset, product.workspace.offset + WORKSPACE_BYTES)
            for ref in (product.x, product.w, product.out):
                assert ref.space != "arena" or ref.offset not in inside
    assert any("hipBLASLt: asked for" in text for text in lowering.libraries.values())
