"""A short soak test of a real server: what `scripts/soak` does in five minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumice.bench.soak import main


def test_a_short_soak(
    smollm2_gguf: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["--seconds", "8", "--clients", "12", "--model", str(smollm2_gguf), "--",
         "--cache-dir", str(cache_dir)]
    )  # fmt: skip
    told = capsys.readouterr()
    assert status == 0, told.out + told.err
    assert told.out.count("ok  ") == 12
