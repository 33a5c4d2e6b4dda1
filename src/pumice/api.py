"""`pumice.Engine`, `pumice.ChatModule`, `pumice.AsyncEngine`: by a model's name, compiled when it
must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pumice import engine as rooms
from pumice.prepare import PrepareSettings, is_artifact, prepare, resolve_target

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
    target: str = "native",
    quantization: str | None = None,
    activations: str = "int16",
    cache_dir: Path | None = None,
) -> rooms.LLMEngine:
    """A loaded model, as `pumice.engine.LLMEngine`.

    model: a catalogue name, `hf:org/name`, a directory of safetensors, a `.gguf` file or an
    artifact directory. device: "auto" (what an artifact was compiled for, else the CPU), "cpu",
    "rocm", "cuda:1", … (`pumice.runtime.devices.driver.choose`).
    """
    settings = PrepareSettings(
        cache_dir=cache_dir or default_cache_dir(),
        target=target if is_artifact(model) else resolve_target(target, device).name,
        quantization=quantization,
        activations=activations,
    )
    return rooms.LLMEngine.from_artifact(
        prepare(model, settings=settings),
        device=device,
        threads=threads,
        context_length=context_length,
        num_blocks=num_blocks,
        prefix_cache=prefix_cache,
    )


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
