"""From a command's options to a loaded model: the same steps for every command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.cli.console import note, settings
from pumice.cli.devices import GPUS, is_gpu, parse_device
from pumice.errors import UnsupportedError, UsageError
from pumice.settings import DEFAULT_MODEL

if TYPE_CHECKING:
    from pumice.engine.engine import LLMEngine
    from pumice.prepare import PrepareSettings
    from pumice.runtime.load import Loaded
    from pumice.targets import Target

RANDOM = "random:"  # as `pumice.summary` has it
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


def keep_kernels(option: Path | None) -> Path:
    """Has Triton keep what it compiles in this process in the cache, too; returns the cache."""
    from pumice.settings import keep_triton_cache

    directory = cache_directory(option)
    keep_triton_cache(directory)
    return directory


@dataclass(frozen=True)
class ModelRequest:
    """Which model, compiled how, on what. None is what nobody said."""

    model: str
    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    target: str | None = None
    quantization: str | None = None
    activations: str | None = None
    cache_dir: Path | None = None

    def check(self) -> None:
        """Every value that can be judged without the model's files, so that a bad one fails before
        a download. An artifact has its own target, formats and activations.
        """
        from pumice.artifact import Manifest
        from pumice.prepare import check_artifact_options, is_artifact
        from pumice.runtime.memory import check_context

        device = parse_device(self.device)
        api = "" if device == "auto" else device.partition(":")[0]
        longest, whose = self.context or 1, ""
        if is_artifact(self.model):
            manifest = Manifest.load(Path(self.model) / "manifest.json")
            check_artifact_options(
                self.model,
                manifest,
                target=self.target,
                quantization=self.quantization,
                activations=self.activations,
            )
            api = str(manifest.target["api"])
            longest, whose = manifest.model.context_length, "the model's own"
        else:
            api = self._check_target(device, api)
        if self.quantization is not None:
            from pumice.quantization import get_format

            get_format(self.quantization)
        if self.context is not None:
            check_context(self.context, longest, whose)
        if self.threads is not None:
            from pumice.runtime.devices.cpu import CpuDevice

            CpuDevice(self.threads)  # says how many there are
            if api in GPUS:
                raise UsageError(
                    f"--threads {self.threads} is for the CPU; the model runs on {api}",
                    hint="Leave --threads out, or choose --device cpu.",
                )

    def _check_target(self, device: str, api: str) -> str:
        """The API that the model will run by, "" when that is still open."""
        from pumice.prepare import resolve_target

        where = device
        if not self._native or api in GPUS:
            target = resolve_target(self.target or "native", device)
            if api and api != target.api:
                raise UsageError(
                    f"--target {target.name} is for {target.api}; --device is {device}"
                )
            _check_emulated(device, target)
            api, where = target.api, target.name
        allowed: tuple[str, ...] = GPU_ACTIVATIONS if api in GPUS else ACTIVATIONS
        if not api:
            allowed = (*ACTIVATIONS, *(a for a in GPU_ACTIVATIONS if a not in ACTIVATIONS))
        if self.activations not in (None, *allowed):
            raise UsageError(
                f"activations is {self.activations!r}; allowed for {where}: {', '.join(allowed)}"
            )
        return api

    @property
    def _native(self) -> bool:
        return self.target is None or self.target.lower() == "native"

    def settled(self, *, runs: bool = True) -> ModelRequest:
        """The same with what "auto" and "native" mean here, told in a line; checked. Where there is
        a GPU, the model is fetched to see whether it fits. Of an artifact its loading says it.
        runs: the model will run here, so there must be a device that a named target's code runs on.
        """
        from pumice.device_choice import settle
        from pumice.prepare import is_artifact
        from pumice.runtime.gpu_load import device_for

        self.check()
        if is_artifact(self.model):
            return self
        found = settle(
            parse_device(self.device), self.target, need=self._gpu_bytes, cpu_only=self._cpu_only()
        )
        if found.line:
            note(found.line)
        device = found.device
        if runs and not self._native and found.target.api in GPUS:
            device = device_for(found.target, device)  # before minutes of compiling
        settled = replace(self, device=device, target=found.target.name)
        settled.check()  # activations, now that it is known of what
        return settled

    def _cpu_only(self) -> str:
        """Why only the CPU will do, in what was asked for; "" when nothing says so."""
        if self.threads is not None:
            return f"--threads {self.threads} is for the CPU"
        if self.activations is not None and self.activations not in GPU_ACTIVATIONS:
            return f"--activations {self.activations} are for the CPU"
        return ""

    def _gpu_bytes(self, target: Target) -> int:
        from pumice.summary import summarize

        return summarize(self.fetch(), self.quantization).gpu_bytes(target, self.context)

    def prepare_settings(self) -> PrepareSettings:
        """How `prepare` compiles: of a request that is settled."""
        from pumice.prepare import MAX_TOKENS, PrepareSettings, activations_for
        from pumice.targets import get_target

        settings = PrepareSettings(
            cache_dir=cache_directory(self.cache_dir), quantization=self.quantization
        )
        if self._native:  # an artifact
            return settings
        target = get_target(str(self.target))
        return replace(
            settings,
            target=target.name,
            activations=activations_for(target, self.activations),
            max_tokens=MAX_TOKENS[target.api],
        )

    def fetch(self) -> str:
        """The model as a local path (downloaded when it must be) or "random:<shape>"."""
        if self.model.startswith(RANDOM):
            return self.model
        from pumice.cli.progress import download_progress
        from pumice.weights.hub import resolve

        with download_progress() as report:
            return str(resolve(self.model, cache_directory(self.cache_dir), progress=report))

    def prepare(
        self, prepare_settings: PrepareSettings | None = None, *, text: bool = False
    ) -> Path:
        """The artifact's directory, after fetching and compiling where needed.

        The memory that the model will need is compared with what is free before it is compiled.
        text: a tokenizer is needed; UnsupportedError, before anything is compiled, without.
        """
        from pumice.artifact import Manifest
        from pumice.artifact_files import MANIFEST, check_files
        from pumice.cli.progress import download_progress
        from pumice.prepare import prepare
        from pumice.text.tokenizer import TOKENIZER_FILE

        if prepare_settings is None:
            prepare_settings = self.prepare_settings()
        with download_progress() as report:
            directory = prepare(
                self.model,
                settings=prepare_settings,
                progress=report,
                check=lambda source: self._check(source, prepare_settings, text),
            )
        if text and not (directory / TOKENIZER_FILE).is_file():
            # An error of its own kind where there was one once.
            check_files(directory, Manifest.load(directory / MANIFEST))
            raise no_tokenizer(self.model)
        return directory

    def _check(self, source: str, prepare_settings: PrepareSettings, text: bool) -> None:
        from pumice.runtime.memory import check_context
        from pumice.summary import check_disk, check_memory, summarize
        from pumice.targets import get_target

        if text:
            _check_text(source, self.model)
        summary = summarize(source, self.quantization)
        if self.context is not None:
            check_context(self.context, summary.config.context_length, f"{self.model}'s own")
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

        manifest = Manifest.load(directory / "manifest.json")
        gpu = manifest.target.get("api") != "cpu"
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
                library_homes=_library_homes(),
            )
        self._tell(loaded)
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
                library_homes=_library_homes(),
                **options,
            )
        self._tell(engine.executable)
        return engine

    def _tell(self, executable: Any) -> None:
        """Which device "auto" was for an artifact, and what there is to say about the loading."""
        if parse_device(self.device) == "auto":
            name = executable.manifest.target["name"]
            cpu = executable.manifest.target["api"] == "cpu"
            where = "the CPU" if cpu else executable.device
            note(f"on {where}: what was compiled is for {name}")
        tell_notes(executable)

    @contextlib.contextmanager
    def _loading(self) -> Iterator[Callable[[int, int], None]]:
        """Shows how much of the weights is on a GPU."""
        from pumice.cli.progress import transfer_progress

        with transfer_progress() as report:
            yield lambda done, total: report("weights", done, total)


def _library_homes() -> tuple[Path, ...]:
    from pumice.settings import Settings

    return Settings.from_environment().library_homes


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


def _check_text(source: str, model: str) -> None:
    """UnsupportedError for a model without a tokenizer. A GGUF file's is read when it is compiled,
    before all else.
    """
    from pumice.compiler.source import TOKENIZER_FILES

    path = Path(source)
    if path.is_file() or (
        path.is_dir() and any((path / name).exists() for name in TOKENIZER_FILES)
    ):
        return
    raise no_tokenizer(model)


def no_tokenizer(model: str) -> UnsupportedError:
    return UnsupportedError(
        f"{model} has no tokenizer: it can only be measured",
        hint=f"A tokenizer.json beside the weights is what is missing; `pumice bench {model}` "
        "needs none.",
    )


def tell_notes(executable: object) -> None:
    """What a loaded model has to say about its loading."""
    for text in getattr(executable, "notes", ()):
        note(text)
