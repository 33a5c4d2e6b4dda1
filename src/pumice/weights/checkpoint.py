"""A directory as Hugging Face lays it out: config.json, and safetensors in one file or shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from pumice.errors import ModelFileError, UnsupportedError
from pumice.weights.safetensors import SafetensorsFile, StoredTensor

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors$")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ModelFileError when it is missing, damaged or something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise ModelFileError(f"{path} holds a {type(data).__name__}; a JSON object is expected")
    return data


class Checkpoint:
    """An open directory. config: config.json. tensors: name → StoredTensor, over all files.

    Headers are read at once, data only by `array`.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.config = read_json(directory / "config.json")
        self.tensors: dict[str, StoredTensor] = {}
        self._owner: dict[str, SafetensorsFile] = {}
        self._files: list[SafetensorsFile] = []
        try:
            index = directory / INDEX
            listed = _weight_map(index) if index.is_file() else None
            for path in _files_of(directory, listed):
                self._add(SafetensorsFile(path), listed)
            self._check_index(listed or {})
        except BaseException:
            self.close()
            raise

    def _add(self, file: SafetensorsFile, listed: dict[str, str] | None) -> None:
        self._files.append(file)
        for name, tensor in file.tensors.items():
            if name in self.tensors:
                place = (listed or {}).get(name)
                if place is None:
                    raise ModelFileError(
                        f"{self.path}: tensor {name!r} is in {self._owner[name].path.name} and "
                        f"in {file.path.name}"
                    )
                if place != file.path.name:
                    continue
            self.tensors[name] = tensor
            self._owner[name] = file

    def _check_index(self, listed: dict[str, str]) -> None:
        for name, place in listed.items():
            if name not in self.tensors or self._owner[name].path.name != place:
                raise ModelFileError(
                    f"{self.path / INDEX} says that tensor {name!r} is in {place}, which has no "
                    "such tensor",
                    hint="Index and files belong to different versions: download them again.",
                )

    def array(self, name: str) -> np.ndarray:
        """A tensor as it is stored, a view of the map; ModelFileError when there is none."""
        if name not in self._owner:
            raise ModelFileError(f"{self.path} has no tensor {name!r}")
        return self._owner[name].array(name)

    def release(self, name: str) -> None:
        """The tensor's pages need not stay in this process."""
        self._owner[name].release(name)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []


def _weight_map(path: Path) -> dict[str, str]:
    """name → file name."""
    listed = read_json(path).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ModelFileError(f"{path} has no weight_map")
    for name, place in listed.items():
        if not isinstance(place, str) or Path(place).name != place or place in (".", ".."):
            raise ModelFileError(
                f"{path}: tensor {name!r} is placed in {place!r:.80}, which is no file beside it"
            )
    return listed


def _files_of(directory: Path, listed: dict[str, str] | None) -> list[Path]:
    if listed is not None:
        paths = [directory / place for place in sorted(set(listed.values()))]
        _require(directory, [p.name for p in paths], f"{INDEX} lists")
        return paths
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        _explain_missing(directory)
    for path in paths:
        match = _SHARD.match(path.name)
        if match:
            count = int(match[3])
            names = [f"{match[1]}-{i:05d}-of-{match[3]}.safetensors" for i in range(1, count + 1)]
            _require(directory, names, f"{path.name} belongs to")
            return [directory / name for name in names]
    return paths


def _require(directory: Path, names: list[str], who: str) -> None:
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ModelFileError(
            f"{directory}: {who} {len(names)} files; missing: {', '.join(missing[:5])}{more}",
            hint="Download the missing files into the directory.",
        )


def _explain_missing(directory: Path) -> None:
    for pattern in ("*.bin", "*.pt", "*.pth"):
        found = next(iter(sorted(directory.glob(pattern))), None)
        if found is not None:
            raise UnsupportedError(
                f"{directory} holds PyTorch pickles ({found.name}), which can run code when they "
                "are read; only safetensors are read",
                hint="Save the model again with Transformers' save_pretrained.",
            )
    raise ModelFileError(f"{directory} has no .safetensors file")
