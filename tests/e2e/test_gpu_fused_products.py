"""Decode steps whose products have taken norm, gate and residual in, and steps where each is a
launch of its own, say the same as Transformers, on emulated AMD GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.compiled import Compiled, error
from tests.e2e.test_gpu_models import LIMIT, SIZES, _model
from tests.e2e.test_tiny_models import _logits


@pytest.mark.parametrize(
    ("model_type", "arch"), [("llama", "gfx1100"), ("qwen3", "gfx942")], ids=["gfx1100", "gfx942"]
)
def test_decode_steps(model_type: str, arch: str, tmp_path: Path) -> None:
    model = _model(model_type, "q4f16_1", tmp_path / "model")
    tokens = np.random.default_rng(4).integers(3, model.config.vocab_size, 9).tolist()
    expected = _logits(model, tokens)
    steps, launches = [], []
    for fused in (True, False):
        made = Compiled(
            tmp_path / "model", tmp_path / f"artifact-{fused}", context=64, emulated=arch,
            quantization="q4f16_1", fuse_products=fused, **SIZES,
        )  # fmt: skip
        manifest = made.executor.manifest
        said = manifest.options["fusions"]["fused_w4, 1 tokens"]
        assert ("switched off" in said) != fused
        reasons = [k.reason for k in manifest.kernels if k.operator == "fused_w4"]
        assert bool(reasons) == fused and all("estimated" in reason for reason in reasons)
        launches.append({name: len(p.launches) for name, p in manifest.entries.items()})
        made.extend(tokens[:6])
        steps.append(np.concatenate([made.extend(tokens[n : n + 1]) for n in (6, 7, 8)]))
        assert error(steps[-1], expected[6:9]) <= LIMIT
    assert error(steps[0], steps[1]) <= LIMIT
    layers = model.config.num_hidden_layers
    for name, count in launches[0].items():
        # Two norms and a gate a layer, and the last norm.
        fewer = 3 * layers + 1 if name.startswith("decode") else 0
        assert launches[1][name] - count == fewer, name
