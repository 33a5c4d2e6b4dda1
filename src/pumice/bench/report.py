"""One row of a benchmark, with everything that is needed to read it later."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pumice._version import __version__
from pumice.artifact import Manifest
from pumice.bench.model import TestResult
from pumice.bench.roofline import Roofline


def commit() -> str | None:
    """The commit of the checkout that this package runs from, with "+" when it has changes; None
    for an installed package.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def row(
    result: TestResult, manifest: Manifest, *, device: str, threads: int, roofline: Roofline | None
) -> dict[str, object]:
    """A JSON object. The first five keys are those that peers' scripts print too."""
    data: dict[str, object] = {
        "engine": "pumice",
        "test": result.test.name,
        "threads": threads,
        "tokens_per_s": round(result.median, 2),
        "runs": [round(run, 2) for run in result.runs],
        "mean": round(result.mean, 2),
        "sd": round(result.deviation, 2),
        "model": manifest.model.name,
        "quantization": manifest.model.quantization,
        "device": device,
        "target": manifest.target["name"],
        "bytes_per_token": round(result.bytes_per_token),
        "gb_per_s": round(result.bytes_per_s / 1e9, 3),
        "gops_per_s": round(result.operations_per_s / 1e9, 2),
    }
    if roofline is not None:
        data |= {
            "roofline_fraction": round(result.roofline_fraction, 4),
            "read_gb_per_s": round(roofline.read_bytes_per_s / 1e9, 2),
            "int8_gops_per_s": round(roofline.int8_ops_per_s / 1e9, 1),
            "fp32_gflops_per_s": round(roofline.fp32_ops_per_s / 1e9, 1),
        }
    return data | {"version": __version__, "commit": commit()}
