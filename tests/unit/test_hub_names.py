"""Names of models, and the Hugging Face hub behind a fake client."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from pumice.errors import ModelFileError, PumiceError, StorageError, UnsupportedError, UsageError
from pumice.weights.catalogue import CATALOGUE, DEFAULT, Wheel, find
from pumice.weights.hub import resolve
from pumice.weights.huggingface import Spec, choose_files, parse

CHECKPOINT = [
    "README.md", "config.json", "consolidated.safetensors", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "model.safetensors.index.json", "onnx/model.onnx",
    "original/params.json", "tokenizer.json", "tokenizer_config.json", "pytorch_model.bin",
]  # fmt: skip


def test_catalogue_is_sound() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert entry.name == entry.name.lower()
        assert entry.description
        if isinstance(entry.origin, str):
            parse(entry.origin)
    default = find("SmolLM2-135M")
    assert default is not None and default.name == DEFAULT
    assert isinstance(default.origin, Wheel)


def test_paths(tmp_path: Path) -> None:
    assert resolve(str(tmp_path), tmp_path) == tmp_path
    with pytest.raises(ModelFileError, match="no such file or directory"):
        resolve(str(tmp_path / "x"), tmp_path)
    with pytest.raises(ModelFileError) as caught:
        resolve("org/name", tmp_path)
    assert caught.value.hint is not None and "hf:org/name" in caught.value.hint
    with pytest.raises(ModelFileError):
        resolve("model.gguf", tmp_path)


def test_unknown_name_lists_what_is_close(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'qwen3-0\.7b' is unknown") as caught:
        resolve("qwen3-0.7b", tmp_path)
    assert caught.value.hint is not None and "qwen3-0.6b" in caught.value.hint
    with pytest.raises(UsageError, match="smollm2-135m, smollm2-360m"):
        resolve("zzzz", tmp_path)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("hf:a/b", Spec("a/b")),
        ("hf:a-b.c/D_1.5", Spec("a-b.c/D_1.5")),
        ("hf:a/b@v1.0", Spec("a/b", "v1.0")),
        ("hf:a/b@refs/pr/1", Spec("a/b", "refs/pr/1")),
        ("hf:a/b/q/m-Q4_K.gguf@main", Spec("a/b", "main", "q/m-Q4_K.gguf")),
    ],
)
def test_parse(text: str, spec: Spec) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize("text", ["hf:", "hf:a", "hf:a/b/c", "hf:a/b@", "hf:../b", "hf:a/b@../x"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="hf:org/name"):
        parse(text)


def test_files_of_a_checkpoint() -> None:
    files, answer = choose_files(Spec("a/b"), CHECKPOINT)
    assert answer == ""
    assert files == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_files_of_gguf_repositories() -> None:
    split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "README.md"]
    assert choose_files(Spec("a/b"), split) == (split[:2], split[0])
    two = ["m.Q4_0.gguf", "m.Q8_0.gguf"]
    with pytest.raises(UsageError, match=r"2 GGUF files: m\.Q4_0\.gguf, m\.Q8_0\.gguf"):
        choose_files(Spec("a/b"), two)
    assert choose_files(Spec("a/b", file=two[1]), two) == ([two[1]], two[1])
    with pytest.raises(UsageError, match=r"no file 'x\.gguf'; its GGUF files: m\.Q4_0"):
        choose_files(Spec("a/b", file="x.gguf"), two)
    with pytest.raises(ModelFileError, match="lacks parts"):
        choose_files(Spec("a/b"), split[:1])
    with pytest.raises(UnsupportedError, match="neither safetensors nor GGUF"):
        choose_files(Spec("a/b"), ["pytorch_model.bin"])


class FakeHub:
    """Stands in for the client: a repository whose files hold their own names."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.calls: list[dict[str, Any]] = []
        self.listing_error: Exception | None = None
        self.download_error: Exception | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)
        return self

    def model_info(self, repo: str, *, revision: str, files_metadata: bool) -> Any:
        assert files_metadata
        if self.listing_error is not None:
            raise self.listing_error
        items = [SimpleNamespace(rfilename=name, size=len(name)) for name in self.files]
        return SimpleNamespace(siblings=items)

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.calls.append({"repo": repo, **options})
        if self.download_error is not None:
            raise self.download_error
        folder = Path(options["cache_dir"]) / ("models--" + repo.replace("/", "--"))
        snapshot: Path = folder / "snapshots" / "abc"
        for name in options["allow_patterns"]:
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / name).write_text(name)
        return str(snapshot)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return FakeHub(CHECKPOINT).install(monkeypatch)


def test_a_checkpoint_is_fetched_once(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = resolve("hf:org/name@v2", tmp_path, lambda *step: seen.append(step))
    assert (path / "config.json").read_text() == "config.json"
    assert not (path / "consolidated.safetensors").exists()
    assert hub.calls[0]["revision"] == "v2"
    what, done, total = seen[-1]
    assert (what, done) == ("download org/name", total)
    hub.listing_error = RuntimeError("the network must not be asked again")
    assert resolve("hf:org/name@v2", tmp_path) == path
    with pytest.raises(StorageError):
        resolve("hf:org/name@v2", tmp_path, refresh=True)
    with pytest.raises(StorageError):
        resolve("hf:org/name", tmp_path)  # another revision


def test_a_deleted_snapshot_is_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    path = resolve("hf:org/name", tmp_path)
    shutil.rmtree(path)
    assert resolve("hf:org/name", tmp_path) == path
    assert len(hub.calls) == 2


def test_one_gguf_of_a_repository(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = ["q/a[1].gguf", "q/b.gguf"]
    assert resolve("hf:org/name/q/b.gguf", tmp_path).name == "b.gguf"
    assert hub.calls[0]["allow_patterns"] == ["q/b.gguf"]


def test_catalogue_entry_of_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    resolve("qwen3-0.6b", tmp_path)
    assert hub.calls[0]["repo"] == "Qwen/Qwen3-0.6B"


def _http(kind: type[Exception]) -> Callable[[], Exception]:
    """The client's HTTP errors, made without the response that their constructors want."""

    def make() -> Exception:
        error = kind.__new__(kind)
        Exception.__init__(error, "429 Client Error: Too Many Requests\nmore lines")
        return error

    return make


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (_http(hub_errors.GatedRepoError), StorageError, "is gated"),
        (_http(hub_errors.RepositoryNotFoundError), UsageError, "has no model 'org/name'"),
        (_http(hub_errors.RevisionNotFoundError), UsageError, "no revision 'main'"),
        (_http(hub_errors.HfHubHTTPError), StorageError, "refused org/name: "),
        (lambda: ConnectionError("name not known"), StorageError, "cannot be fetched.*name not kn"),
        (lambda: RuntimeError("client closed"), StorageError, "cannot be fetched.*client closed"),
        (lambda: OSError(errno.ENOSPC, "full"), StorageError, "no space is left"),
        (lambda: PermissionError(errno.EACCES, "denied", "/c"), StorageError, "/c cannot be wri"),
    ],
)
@pytest.mark.parametrize("where", ["listing_error", "download_error"])
def test_failures(
    hub: FakeHub, tmp_path: Path, where: str, make: Callable[[], Exception],
    kind: type[PumiceError], message: str,
) -> None:  # fmt: skip
    setattr(hub, where, make())
    with pytest.raises(kind, match=message):
        resolve("hf:org/name", tmp_path)
    setattr(hub, where, None)
    assert (resolve("hf:org/name", tmp_path) / "config.json").is_file()


def test_no_space(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="are needed"):
        resolve("hf:org/name", tmp_path)
    assert not hub.calls


def test_incomplete_download(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(empty))
    with pytest.raises(StorageError, match=r"incomplete: config\.json is missing"):
        resolve("hf:org/name", tmp_path)
