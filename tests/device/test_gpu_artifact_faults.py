"""GPU artifacts that are damaged, incomplete or for something else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gpu_artifact as toy
import numpy as np
import pytest
from safetensors.numpy import save_file

from pumice.artifact import Manifest
from pumice.errors import ArtifactError, DeviceError, UsageError
from pumice.runtime.load import load

PROMPT = np.random.default_rng(7).integers(0, toy.VOCABULARY, 4).tolist()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    toy.write(directory)
    return directory


def test_another_architecture(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match=r"compiled for gfx1100 .*gfx942.* cannot run") as error:
        load(artifact, device="rocm:emulated-gfx942")
    assert "--device rocm:emulated-gfx942" in str(error.value.hint)


@pytest.mark.parametrize("content", [b"", b"no code"])
def test_a_damaged_kernel_file(artifact: Path, tmp_path: Path, content: bytes) -> None:
    """It is the artifact's fault, and not the device's."""
    directory = toy.altered(artifact, tmp_path)
    record = Manifest.load(directory / "manifest.json").kernels[0]
    (directory / record.file).unlink()
    (directory / record.file).write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"{record.file} is damaged: .* no ELF file") as error:
        toy.loaded(directory)
    assert "--rebuild" in str(error.value.hint)


def test_another_api(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match="compiled for gfx1100"):
        load(artifact, device="cuda")
    with pytest.raises(ArtifactError, match="not for device 'cpu'"):
        load(artifact, device="cpu")
    with pytest.raises(UsageError, match="threads is 2; they are the CPU's"):
        load(artifact, threads=2)


def test_a_machine_without_the_driver(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.runtime.devices.driver import choose

    monkeypatch.setitem(
        choose.TABLES, "rocm", dataclasses.replace(choose.TABLES["rocm"], libraries=("libnone.so",))
    )
    with pytest.raises(DeviceError, match=r"RX 7900 XTX.*cannot be loaded.*libnone") as error:
        load(artifact)
    assert "This machine has the CPU" in str(error.value.hint)


def test_weights_are_missing_and_made_up(artifact: Path, tmp_path: Path) -> None:
    directory = toy.altered(artifact, tmp_path)
    arrays = toy.weights()
    kept = {name: arrays[name] for name in ("embedding", "inv_freq")}
    save_file(kept, directory / "weights.safetensors")
    with pytest.raises(ArtifactError, match="lacks 3 of 5 tensors"):
        toy.loaded(directory)
    told: list[tuple[int, int]] = []
    executor = toy.loaded(
        directory, random_weights=True, progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (sum(a.nbytes for a in arrays.values()),) * 2
    norm = executor.device.read(executor._weights.address("norm"), (toy.WIDTH,), np.float16)
    assert (norm == 1).all()
    head = executor.device.read(executor._weights.address("head"), (toy.VOCABULARY,), np.float16)
    assert 0.005 < head.astype(np.float32).std() < 0.05
    embedding = executor.device.read(executor._weights.address("embedding"), (43, 32), np.float16)
    assert (embedding == arrays["embedding"]).all()
    assert np.isfinite(executor.step(toy.batch([(PROMPT, 0, [0])]))).all()
    (directory / "weights.safetensors").unlink()
    assert np.isfinite(
        toy.loaded(directory, random_weights=True).step(toy.batch([(PROMPT, 0, [0])]))
    ).all()


def test_a_tensor_of_another_size(artifact: Path, tmp_path: Path) -> None:
    directory = toy.altered(artifact, tmp_path)
    save_file({**toy.weights(), "norm": np.ones(3, np.float16)}, directory / "weights.safetensors")
    with pytest.raises(ArtifactError, match=r"'norm' has 6 bytes; float16\[32\] takes 64"):
        toy.loaded(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "nobody"}, "names kernel 'nobody'"),
        ({"grid": None}, "has grid None"),
        ({"arguments": (1, 2)}, "2 arguments"),
    ],
)
def test_a_damaged_plan(
    artifact: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    manifest = Manifest.load(artifact / "manifest.json")
    plan = manifest.entries["decode@2x2x4"]
    fill, first, *rest = plan.launches
    first = dataclasses.replace(first, **change)  # type: ignore[arg-type]
    damaged = dataclasses.replace(plan, launches=(fill, first, *rest))
    directory = toy.altered(
        artifact, tmp_path, entries={**manifest.entries, "decode@2x2x4": damaged}
    )
    with pytest.raises(ArtifactError, match=message):
        toy.loaded(directory)


def test_a_missing_code_object(artifact: Path, tmp_path: Path) -> None:
    directory = toy.altered(artifact, tmp_path)
    next(directory.glob("*.hsaco")).unlink()
    with pytest.raises(ArtifactError, match="lacks kernels"):
        toy.loaded(directory)
