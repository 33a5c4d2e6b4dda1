"""What a compile finds out before it does minutes of work."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference.tiny_gguf import make_tiny_gguf

from pumice.compiler.compile import compile_model
from pumice.errors import PumiceError
from pumice.targets import get_target


@pytest.mark.parametrize("target", ["x86-64-v3", "gfx1100", "sm_90"])
def test_a_tokenizer_that_cannot_be_read(target: str, tmp_path: Path) -> None:
    model = make_tiny_gguf("llama", tmp_path / "m.gguf", quantization="Q4_0")  # without merges
    phases: list[str] = []
    with pytest.raises(PumiceError, match=r"tokenizer\.ggml\.merges is missing"):
        compile_model(
            model,
            target=get_target(target),
            output=tmp_path / "artifact",
            report=lambda phase, done, total: phases.append(phase),
        )
    assert phases == []
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
