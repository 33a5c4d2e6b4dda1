"""Damage of any file of an artifact is named before anything runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import damaged_artifacts
import gpu_artifact
import pytest
from tokenizers import Tokenizer, decoders, models
from typer.testing import CliRunner

from pumice import artifact_files
from pumice.artifact import Manifest
from pumice.artifact_files import check_files, record_files
from pumice.cli.app import app
from pumice.errors import ArtifactError
from reference.tiny import make_tiny


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stderr


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpu")
    model = make_tiny("llama", folder / "model")
    tokenizer = Tokenizer(models.WordLevel({"u": 0, "x": 3, "y": 4}, unk_token="u"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(model / "tokenizer.json"))
    run("compile", model, "--device", "cpu", "-o", folder / "artifact", "--cache-dir", folder)
    return folder / "artifact"


def test_of_a_cpu(cpu: Path, tmp_path: Path) -> None:
    run("run", "x", "-m", cpu, "-n", "1")
    files = [p for p in cpu.rglob("*") if p.is_file()]
    assert len(files) >= 4
    ways = len(damaged_artifacts.WAYS)
    assert damaged_artifacts.check(cpu, tmp_path) == ways * len(files) - 1


def test_of_a_gpu(tmp_path: Path) -> None:
    """Said before a device is looked for, as the damage is all the same wherever it is."""
    artifact = tmp_path / "artifact"
    (artifact / "kernels").mkdir(parents=True)
    manifest = gpu_artifact.write(artifact, shapes=("decode@2x2x4",))
    (artifact / "tokenizer.json").write_text("{}")
    kernels = []
    for record in manifest.kernels:
        (artifact / record.file).rename(artifact / "kernels" / record.file)
        kernels.append(dataclasses.replace(record, file=f"kernels/{record.file}"))
    whole = dataclasses.replace(
        manifest, kernels=tuple(kernels), files=record_files(artifact)
    )  # fmt: skip
    whole.save(artifact / "manifest.json")
    assert len(whole.files) == len(kernels) + 2
    ways = len(damaged_artifacts.WAYS)
    assert damaged_artifacts.check(artifact, tmp_path) == ways * (2 + 3) - 1


def test_inspect_compares_every_byte(
    cpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "all as written" in run("inspect", cpu, "--check")
    weights = cpu / "weights.safetensors"
    monkeypatch.setattr(artifact_files, "_WHOLE", 1000)
    monkeypatch.setattr(artifact_files, "_HEAD", 1000)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in cpu.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    manifest = dataclasses.replace(
        Manifest.load(cpu / "manifest.json"), files=record_files(copy)
    )  # fmt: skip
    manifest.save(copy / "manifest.json")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    (copy / weights.name).write_bytes(data)
    check_files(copy, manifest)  # a large file's end is not read when it is loaded
    with pytest.raises(ArtifactError, match=r"weights\.safetensors is damaged"):
        check_files(copy, manifest, whole=True)
    result = CliRunner().invoke(app, ["inspect", str(copy), "--check"])
    assert result.exit_code == 9 and "weights.safetensors" in result.stderr
    data[-1] ^= 1
    data[500] ^= 1
    (copy / weights.name).write_bytes(data)
    with pytest.raises(ArtifactError, match=r"weights\.safetensors is damaged"):
        check_files(copy, manifest)  # its head is: the places of all tensors


def test_weights_that_were_not_carried(cpu: Path) -> None:
    manifest = Manifest.load(cpu / "manifest.json")
    more = dataclasses.replace(manifest.files[0], name="weights.safetensors", bytes=1)
    lacking = dataclasses.replace(manifest, files=(more,))
    with pytest.raises(ArtifactError, match="is damaged: it has"):
        check_files(cpu, lacking, without_weights=True)
    elsewhere = cpu.parent
    check_files(elsewhere, lacking, without_weights=True)
    with pytest.raises(ArtifactError, match="is missing"):
        check_files(elsewhere, lacking)
