"""From a command's options to a loaded model: the same steps for every command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.cli.console import note, settings
from pumice.cli.devices import is_gpu, parse_device
from pumice.cli.summary import RANDOM
from pumice.errors import ContextLengthError, UsageError
from pumice.settings import DEFAULT_MODEL

if TYPE_CHECKING:
    from pumice.engine.engine import LLMEngine
    from pumice.prepare import PrepareSettings
    from pumice.runtime.load import Loaded
    from pumice.targets import Target

ACTIVATIONS = ("int8", "int16", "float32")
GPU_ACTIVATIONS = ("float16", "bfloat16", "int16")  # the CPU's default means float16 there


def choose_model(positional: str | None, option: str | None) -> str:
    """The model that was named, in whichever of the two ways; the default when none was."""
    if positional and option and positional != option:
        raise UsageError(f"two models were given: {positional!r} and --model {option!r}")
    for value in (positional, option):
        if value is not None and not value.strip():
            raise UsageError("the model's name is empty")
    return positional or option or DEFAULT_MODEL


def cache_directory(option: Path | None) -> Path:
    """--cache-dir, else the environment's."""
    return option.expanduser().absolute() if option is not None else settings().cache_dir


@dataclass(frozen=True)
class ModelRequest:
    """Which model, compiled how, on what."""

    model: str
    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    target: str = "native"
    quantization: str | None = None
    activations: str = "int16"
    cache_dir: Path | None = None

    def prepare_settings(self) -> PrepareSettings:
        """How `prepare` compiles; checked here, so that a bad value fails before a download."""
        from pumice.prepare import PrepareSettings, is_artifact, resolve_target

        device, target = parse_device(self.device), self.target
        if not is_artifact(self.model):  # which has its own
            found = resolve_target(target, device)
            target = found.name
            if device != "auto" and device.partition(":")[0] != found.api:
                raise UsageError(f"--target {target} is for {found.api}; --device is {device}")
            _check_emulated(device, found)
            allowed = ACTIVATIONS if found.api == "cpu" else GPU_ACTIVATIONS
            if self.activations not in allowed:
                raise UsageError(
                    f"activations is {self.activations!r}; allowed for {target}: "
                    f"{', '.join(allowed)}"
                )
        if self.quantization is not None:
            from pumice.quantization import get_format

            get_format(self.quantization)
        if self.context is not None and self.context < 1:
            raise UsageError(f"context is {self.context}; it must be at least 1 token")
        if self.threads is not None:
            from pumice.runtime.devices.cpu import CpuDevice

            CpuDevice(self.threads)  # says how many there are
        return PrepareSettings(
            cache_dir=cache_directory(self.cache_dir),
            target=target,
            quantization=self.quantization,
            activations=self.activations,
        )

    def fetch(self, prepare_settings: PrepareSettings) -> str:
        """The model as a local path (downloaded when it must be) or "random:<shape>"."""
        if self.model.startswith(RANDOM):
            return self.model
        from pumice.cli.progress import download_progress
        from pumice.weights.hub import resolve

        with download_progress() as report:
            return str(resolve(self.model, prepare_settings.cache_dir, progress=report))

    def prepare(self, prepare_settings: PrepareSettings | None = None) -> Path:
        """The artifact's directory, after fetching and compiling where needed.

        The memory that the model will need is compared with what is free before it is compiled.
        """
        from pumice.cli.progress import download_progress
        from pumice.prepare import prepare

        if prepare_settings is None:
            prepare_settings = self.prepare_settings()
        with download_progress() as report:
            return prepare(
                self.model,
                settings=prepare_settings,
                progress=report,
                check=lambda source: self._check(source, prepare_settings),
            )

    def _check(self, source: str, prepare_settings: PrepareSettings) -> None:
        from pumice.cli.summary import check_disk, check_memory, summarize
        from pumice.targets import get_target

        summary = summarize(source, self.quantization)
        longest = summary.config.context_length
        if self.context is not None and self.context > longest:
            raise ContextLengthError(
                f"a context of {self.context:,} tokens was asked for; {self.model} has {longest:,}"
            )
        if get_target(prepare_settings.target).api == "cpu":  # a GPU's is asked when it is loaded
            check_memory(summary, self.context, name=self.model)
        check_disk(summary, prepare_settings.cache_dir)

    def load(
        self,
        directory: Path,
        *,
        contexts: int | None = None,
        num_blocks: int | None = None,
        random_weights: bool = False,
    ) -> Loaded:
        """The artifact on the device. num_blocks: of the cache, when it must have so many.
        random_weights: made up where the artifact has none, for measurements.
        """
        from pumice.artifact import Manifest
        from pumice.runtime.load import load

        gpu = Manifest.load(directory / "manifest.json").target.get("api") != "cpu"
        with self._loading() as progress:
            loaded = load(
                directory,
                device=parse_device(self.device),
                threads=self.threads,
                context_length=self.context,
                contexts=contexts if gpu else None,
                num_blocks=num_blocks,
                random_weights=random_weights and gpu,
                progress=progress,
            )
        tell_notes(loaded)
        return loaded

    def engine(self, directory: Path, **options: Any) -> LLMEngine:
        """The artifact on the device, with an engine. options: those of `LLMEngine.from_artifact`
        that no field of the request says.
        """
        from pumice.engine.engine import LLMEngine

        with self._loading() as progress:
            engine = LLMEngine.from_artifact(
                directory,
                device=parse_device(self.device),
                threads=self.threads,
                context_length=self.context,
                progress=progress,
                **options,
            )
        tell_notes(engine.executable)
        return engine

    @contextlib.contextmanager
    def _loading(self) -> Iterator[Callable[[int, int], None]]:
        """Shows how much of the weights is on a GPU."""
        from pumice.cli.progress import transfer_progress

        with transfer_progress() as report:
            yield lambda done, total: report("weights", done, total)


def _check_emulated(device: str, target: Target) -> None:
    """UsageError when a target's code does not run on the emulated card that a device names, so
    that nothing is compiled for minutes first.
    """
    if not is_gpu(device):
        return
    from pumice.runtime.devices.driver.choose import parse
    from pumice.runtime.gpu_load import runs_on

    arch = parse(device).emulated
    if arch is not None and not runs_on(target.arch, arch):
        raise UsageError(
            f"--target {target.name} does not run on --device {device}",
            hint="Leave --target out: it follows the device.",
        )


def tell_notes(executable: object) -> None:
    """What a loaded model has to say about its loading."""
    for text in getattr(executable, "notes", ()):
        note(text)
