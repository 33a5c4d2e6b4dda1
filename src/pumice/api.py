"""`pumice.Engine`, `pumice.ChatModule`, `pumice.AsyncEngine`: by a model's name, compiled when it
must be."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice import engine as rooms
from pumice.artifact import Manifest
from pumice.prepare import (
    MAX_TOKENS,
    PrepareSettings,
    activations_for,
    check_artifact_options,
    is_artifact,
    prepare,
)

if TYPE_CHECKING:
    from pumice.device_choice import Settled
    from pumice.targets import Target

DEFAULT_MODEL = "smollm2-135m"


def default_cache_dir() -> Path:
    """Where downloads and compiled models are kept when nobody says otherwise."""
    from pumice.settings import Settings

    return Settings.from_environment().cache_dir


def Engine(
    model: str = DEFAULT_MODEL,
    *,
    device: str = "auto",
    threads: int | None = None,
    context_length: int | None = None,
    num_blocks: int | None = None,
    prefix_cache: bool = True,
    target: str | None = None,
    quantization: str | None = None,
    activations: str | None = None,
    cache_dir: Path | None = None,
) -> rooms.LLMEngine:
    """A loaded model, as `pumice.engine.LLMEngine`.

    model: a catalogue name, `hf:org/name`, a directory of safetensors, a `.gguf` file or an
    artifact directory, which has its own target, quantization and activations. device: "auto" (what
    an artifact was compiled for; for a model a GPU where one is usable, else the CPU, and the log
    says why), "cpu", "rocm", "cuda:1", … (`pumice.runtime.devices.driver.choose`).
    """
    from pumice.settings import Settings

    cache_dir = cache_dir or default_cache_dir()
    settings = PrepareSettings(cache_dir=cache_dir, quantization=quantization)
    if is_artifact(model):
        check_artifact_options(
            model,
            Manifest.load(Path(model) / "manifest.json"),
            target=target, quantization=quantization, activations=activations,
        )  # fmt: skip
    else:
        found = _settle(model, device, target, quantization, activations, threads, cache_dir)
        device = found.device
        settings = replace(
            settings,
            target=found.target.name,
            activations=activations_for(found.target, activations),
            max_tokens=MAX_TOKENS[found.target.api],
        )
    return rooms.LLMEngine.from_artifact(
        prepare(model, settings=settings),
        device=device,
        threads=threads,
        context_length=context_length,
        num_blocks=num_blocks,
        prefix_cache=prefix_cache,
        library_homes=Settings.from_environment().library_homes,
    )


def _settle(
    model: str,
    device: str,
    target: str | None,
    quantization: str | None,
    activations: str | None,
    threads: int | None,
    cache_dir: Path,
) -> Settled:
    """Where a model will run."""
    from pumice.device_choice import settle
    from pumice.summary import RANDOM, summarize

    def need(on: Target) -> int:
        from pumice.weights.hub import resolve

        source = model if model.startswith(RANDOM) else str(resolve(model, cache_dir))
        return summarize(source, quantization).gpu_bytes(on, None)

    cpu_only = ""
    if threads is not None:
        cpu_only = f"threads={threads} is for the CPU"
    elif activations in ("int8", "float32"):
        cpu_only = f"activations={activations!r} are for the CPU"
    found = settle(device, target, need=need, cpu_only=cpu_only)
    if found.line:
        level = logging.WARNING if found.passed_over else logging.INFO
        logging.getLogger("pumice").log(level, found.line)
    return found


class ChatModule(rooms.ChatModule):
    """A conversation with a model by name: `ChatModule(model="smollm2-135m")`.

    Keyword arguments are those of `Engine`, `system` and the fields of `SamplingParams`.
    """

    def __init__(
        self, model: str = DEFAULT_MODEL, *, system: str | None = None, **options: Any
    ) -> None:
        import inspect

        names = set(inspect.signature(Engine).parameters) - {"model"}
        engine = Engine(model, **{k: v for k, v in options.items() if k in names})
        sampling = {k: v for k, v in options.items() if k not in names}
        super().__init__(engine, system=system, **sampling)


class AsyncEngine(rooms.AsyncEngine):
    """An engine for asyncio by a model's name; keyword arguments are those of `Engine`."""

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        super().__init__(Engine(model, **options))
