"""A 4-bit TINY Llama compiled for AMD GPUs, run on emulated cards: compile → artifact → runtime →
engine, against the CPU's greedy tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.reference.tiny import make_tiny
from typer.testing import CliRunner

from pumice.cli.app import app
from pumice.compiler.compile import CompileOptions, compile_model
from pumice.engine.engine import LLMEngine
from pumice.engine.sampling_params import SamplingParams
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.targets import get_target
from pumice.targets.detect import detect_cpu

OPTIONS = CompileOptions(
    quantization="q4f16_1", max_tokens=16, max_sequences=2, max_rows=2, workers=1
)
PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [20, 21, 22])
NEW = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model", seed=3)


@pytest.fixture(scope="module")
def wanted(model: Path) -> list[list[int]]:
    """The CPU's."""
    artifact = model.parent / "cpu"
    compile_model(model, target=detect_cpu(), output=artifact, options=OPTIONS)
    return generate(LLMEngine.from_artifact(artifact))


def generate(engine: LLMEngine) -> list[list[int]]:
    """Greedy tokens of all prompts; the second joins when the first has begun."""
    greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    found: dict[str, list[int]] = {}
    names = [engine.add_request(PROMPTS[0], greedy)]
    while engine.has_work:
        for delta in engine.step():
            if delta.completion is not None:
                assert delta.completion.error is None
                found[delta.request_id] = list(delta.completion.token_ids)
        if len(names) < len(PROMPTS):
            names.append(engine.add_request(PROMPTS[len(names)], greedy))
    return [found[name] for name in names]


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_greedy_tokens_are_the_cpu_s(
    arch: str, model: Path, wanted: list[list[int]], tmp_path: Path
) -> None:
    artifact = tmp_path / arch
    manifest = compile_model(model, target=get_target(arch), output=artifact, options=OPTIONS)
    assert {name.partition("@")[0] for name in manifest.entries} == {"decode", "extend", "embed"}
    engine = LLMEngine.from_artifact(artifact, device=f"rocm:emulated-{arch}")
    assert isinstance(engine.executable, GpuExecutor)
    assert engine.limits.num_blocks == 2 * 8 + 1  # both sequences' longest, and one
    assert generate(engine) == wanted


def test_compiled_without_weights_and_measured(model: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    artifact = tmp_path / "artifact"
    common = ["--cache-dir", str(tmp_path / "cache"), "--device", "rocm:emulated-gfx1100"]
    done = runner.invoke(
        app,
        ["compile", str(model), "-o", str(artifact), "--no-weights", "--quant", "q4f16_1",
         "--max-tokens", "4", "--max-sequences", "1", *common],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (artifact / "weights.safetensors").stat().st_size < 10_000
    done = runner.invoke(
        app, ["bench", str(artifact), "-p", "4", "-n", "1", "-r", "1", "--json", "--profile",
              "--no-roofline", *common],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "weights are random numbers" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    tests = {row["test"]: row for row in rows if "test" in row}
    assert set(tests) == {"pp4", "tg1"}
    assert "gfx1100" in tests["tg1"]["device"]
    assert tests["tg1"]["bytes_per_token"] > 0
    operators = {row["operator"] for row in rows if "profile" in row}
    assert {"gemm_w4", "paged_attention", "paged_prefill", "rope_cache"} <= operators
    done = runner.invoke(app, ["run", "hello", "--model", str(artifact), *common])
    assert done.exit_code == 9 and "lacks" in done.stderr, done.output
