"""Fixtures that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file: PUMICE_TEST_GGUF, or where it is under ~/.cache/pumice."""
    named = os.environ.get("PUMICE_TEST_GGUF")
    if named:
        return Path(named)
    for path in sorted((Path.home() / ".cache" / "pumice").rglob(SMOLLM2_FILE)):
        return path
    pytest.skip(f"{SMOLLM2_FILE} is not on this machine; name it in PUMICE_TEST_GGUF")
