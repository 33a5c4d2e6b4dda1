"""Decode steps with rotation, append and attention in one launch and in several say the same, on
emulated AMD GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.compiled import Compiled, error
from tests.e2e.test_gpu_models import LIMIT, _model
from tests.e2e.test_tiny_models import _logits


@pytest.mark.parametrize(
    ("model_type", "arch", "overrides"),
    [("llama", "gfx1100", {}), ("qwen3", "gfx942", {})],
    ids=["llama-gfx1100", "qwen3-gfx942"],
)
def test_decode_steps(
    model_type: str, arch: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    """A chunk, then single tokens alone and beside an empty row of the batch; the fused plans have
    fewer launches and the manifest says why."""
    model = _model(model_type, "f16", tmp_path / "model", **overrides)
    tokens = np.random.default_rng(3).integers(3, model.config.vocab_size, 50).tolist()
    expected = _logits(model, tokens)
    results, launches = [], []
    for fused in (True, False):
        made = Compiled(
            tmp_path / "model", tmp_path / f"artifact-{fused}", context=64, emulated=arch,
            quantization="f16", max_tokens=64, max_sequences=4, max_rows=16, fuse_attention=fused,
        )  # fmt: skip
        manifest = made.executor.manifest
        assert ("not fused" in manifest.options["fusions"]["decode_attention"]) != fused
        launches.append({n: len(p.launches) for n, p in manifest.entries.items()})
        got = [made.extend(tokens[:31], sequence=s) for s in range(3)]
        steps = [made.extend(tokens[31 + n : 32 + n], sequence=0) for n in range(3)]
        together = made.extend_many({0: tokens[34:35], 1: tokens[31:32], 2: tokens[31:32]})
        steps += [together[0], together[1], together[2]]
        for at, step in zip((31, 32, 33, 34, 31, 31), steps, strict=True):
            assert error(step, expected[at : at + 1]) <= LIMIT, at
        results.append(np.concatenate(steps))
        del got
    assert error(results[0], results[1]) <= 2e-3
    layers = model.config.num_hidden_layers
    for name, count in launches[0].items():
        fewer = launches[1][name] - count
        assert fewer >= layers - 1 if name.startswith("decode") else fewer == 0, name
