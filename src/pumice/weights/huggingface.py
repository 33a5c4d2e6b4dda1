"""Fetches a model of the Hugging Face hub with its own client, into Pumice's cache."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.errors import ModelFileError, StorageError, UnsupportedError, UsageError
from pumice.files import locked, make_directory, require_space, storage_error

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all

_SPEC = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@]+\.gguf))?(?:@(?P<revision>[\w./-]+))?$"
)
#: besides weights: configuration, tokenizer, templates
_TEXT_FILES = ("*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "merges.txt", "vocab.txt")
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Spec:
    """`hf:org/name[@revision]`, or one of its GGUF files: `hf:org/name/file.gguf[@revision]`."""

    repo: str
    revision: str = "main"
    file: str | None = None


def parse(text: str) -> Spec:
    """UsageError when `text` is no hf: name."""
    match = _SPEC.match(text)
    if match is None or ".." in text:
        raise UsageError(
            f"{text!r} is no name of the Hugging Face hub; "
            "allowed: hf:org/name, hf:org/name@revision, hf:org/name/file.gguf"
        )
    return Spec(match["repo"], match["revision"] or "main", match["file"])


def fetch(
    spec: Spec, cache_dir: Path, progress: Progress | None = None, *, refresh: bool = False
) -> Path:
    """The model's directory or GGUF file, downloaded when it is not in the cache.

    A model that is there is used without asking the hub, unless `refresh`. UsageError for a
    repository, revision or file that does not exist, UnsupportedError for one without readable
    weights, StorageError when the hub cannot be reached, refuses, or the disk is full.
    """
    root = cache_dir / "huggingface"
    record = root / "pumice" / (re.sub(r"[^\w.-]", "--", f"{spec.repo}@{spec.revision}") + ".json")
    make_directory(record.parent)
    key = spec.file or ""
    with locked(record.with_suffix(".lock")):
        found = None if refresh else _recorded(record, key)
        if found is None:
            found = _download(spec, root, progress or (lambda what, done, total: None))
            _remember(record, key, found)
    return found


def _recorded(record: Path, key: str) -> Path | None:
    try:
        path = Path(json.loads(record.read_text())[key])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if path.exists() else None


def _remember(record: Path, key: str, found: Path) -> None:
    try:
        known = json.loads(record.read_text())
    except (OSError, ValueError):
        known = {}
    temporary = record.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(known | {key: str(found)}))
        temporary.replace(record)
    except OSError as error:
        raise storage_error(error, record) from error


def _download(spec: Spec, root: Path, tell: Progress) -> Path:
    import huggingface_hub

    with _explained(spec):
        info = huggingface_hub.HfApi().model_info(
            spec.repo, revision=spec.revision, files_metadata=True
        )
    sizes = {item.rfilename: int(item.size or 0) for item in info.siblings or []}
    files, answer = choose_files(spec, sorted(sizes))
    total = sum(sizes[name] for name in files)
    folder = root / ("models--" + spec.repo.replace("/", "--"))
    require_space(root, max(0, total - _bytes_in(folder)))
    with _watched(folder, f"download {spec.repo}", total, tell), _explained(spec):
        snapshot = huggingface_hub.snapshot_download(
            spec.repo,
            revision=spec.revision,
            cache_dir=root,
            allow_patterns=[_literal(name) for name in files],
        )
    path = Path(str(snapshot)) / answer
    missing = [name for name in files if not (Path(str(snapshot)) / name).is_file()]
    if missing:
        raise StorageError(f"the download of {spec.repo} is incomplete: {missing[0]} is missing")
    return path


def _literal(name: str) -> str:
    """A file name as an fnmatch pattern."""
    return re.sub(r"([\[*?])", r"[\1]", name)


def choose_files(spec: Spec, files: list[str]) -> tuple[list[str], str]:
    """Which files of a repository to fetch, and the path in it to open ("" is its root)."""
    if spec.file is not None:
        return _gguf_group(spec, files, spec.file), spec.file
    top = [name for name in files if "/" not in name]
    weights = [name for name in top if name.endswith(".safetensors")]
    named = [name for name in weights if name.startswith("model")]
    if named or weights:
        # Some repositories hold the same weights twice, as model-* and as consolidated.*.
        text = [name for name in top if any(fnmatch.fnmatch(name, p) for p in _TEXT_FILES)]
        return sorted({*text, *(named or weights)}), ""
    gguf = [n for n in files if n.endswith(".gguf") and not re.search(r"-(?!00001)\d{5}-of-", n)]
    if len(gguf) == 1:
        return _gguf_group(spec, files, gguf[0]), gguf[0]
    if gguf:
        raise UsageError(
            f"{spec.repo} holds {len(gguf)} GGUF files: {', '.join(gguf[:20])}",
            hint=f"Name one: hf:{spec.repo}/{gguf[0]}",
        )
    raise UnsupportedError(
        f"{spec.repo} has neither safetensors nor GGUF files",
        hint="Checkpoints that are PyTorch pickles are never read: they can run code.",
    )


def _gguf_group(spec: Spec, files: list[str], name: str) -> list[str]:
    if name not in files:
        known = [n for n in files if n.endswith(".gguf")]
        raise UsageError(
            f"{spec.repo} has no file {name!r}; its GGUF files: {', '.join(known[:20]) or 'none'}"
        )
    match = re.match(r"(.*)-00001-of-(\d{5})\.gguf$", name)
    if match is None:
        return [name]
    group = [f"{match[1]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, int(match[2]) + 1)]
    missing = [part for part in group if part not in files]
    if missing:
        raise ModelFileError(f"{spec.repo} lacks parts of {name}: {', '.join(missing[:5])}")
    return group


def _bytes_in(folder: Path) -> int:
    """What a repository's folder of the cache holds, half-fetched files included."""
    total = 0
    for path in (folder / "blobs").glob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


@contextlib.contextmanager
def _watched(folder: Path, what: str, total: int, tell: Progress) -> Iterator[None]:
    """Reports the growth of the folder, whatever way the client downloads in."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            tell(what, min(_bytes_in(folder), total), total)

    thread = threading.Thread(target=watch, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    tell(what, total, total)


@contextlib.contextmanager
def _explained(spec: Spec) -> Iterator[None]:
    """Turns the client's many exceptions into ours."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise StorageError(
            f"{spec.repo} is gated: its authors must grant you access",
            hint=f"Ask at https://huggingface.co/{spec.repo}, then run `hf auth login`.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise UsageError(
            f"the Hugging Face hub has no model {spec.repo!r} (or it is private)",
            hint="Check the spelling; for a private model run `hf auth login` first.",
        ) from None
    except errors.RevisionNotFoundError:
        raise UsageError(f"{spec.repo} has no revision {spec.revision!r}") from None
    except errors.HFValidationError as error:
        raise UsageError(f"{spec.repo!r} is no name of the hub: {error}") from None
    except errors.HfHubHTTPError as error:
        raise StorageError(
            f"the Hugging Face hub refused {spec.repo}: {_first_line(error)}",
            hint="Try again later.",
        ) from None
    except OSError as error:
        if error.errno is not None:
            raise storage_error(error, Path(error.filename or spec.repo)) from error
        raise _unreachable(spec, error) from error
    except Exception as error:  # the HTTP library underneath differs from version to version
        raise _unreachable(spec, error) from error


def _unreachable(spec: Spec, error: Exception) -> StorageError:
    return StorageError(
        f"{spec.repo} cannot be fetched from the Hugging Face hub: {_first_line(error)}",
        hint="Check the network, or give a model file or directory of your own.",
    )


def _first_line(error: Any) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
