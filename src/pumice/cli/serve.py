"""`pumice serve`: one model for many clients, over HTTP."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli import options
from pumice.errors import StorageError, UsageError

if TYPE_CHECKING:
    from pumice.cli.session import ModelRequest
    from pumice.engine.engine import LLMEngine
    from pumice.engine.speculation import Speculation
    from pumice.server.settings import ServerSettings

NAME = "serve"

# Contexts that a GPU's cache holds at most, and a draft model's beside it.
_CONTEXTS, _DRAFT_CONTEXTS = 64, 4

HostOption = Annotated[
    str, typer.Option("--host", help="Address to listen at; 0.0.0.0 is every one.")
]
PortOption = Annotated[int, typer.Option("--port", help="0 takes a free one.")]
ApiKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        help="Ask for this key; may be repeated. Others see it in the list of processes.",
        show_default=False,
    ),
]
ApiKeyFileOption = Annotated[
    Path | None,
    typer.Option("--api-key-file", help="A file with one key a line.", show_default=False),
]
NameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        help="What the model is called in requests; may be repeated. [default: as it was given]",
        show_default=False,
    ),
]
CorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin", help="Web pages that may call, e.g. https://x.org.", show_default=False
    ),
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="A name by which this server is called.", show_default=False),
]
MaxWaitingOption = Annotated[
    int, typer.Option("--max-waiting", help="Requests that may wait before others get 429.")
]
MaxRunningOption = Annotated[
    int | None,
    typer.Option(
        "--max-running",
        help="Requests that run at once. [default: what a step holds]",
        show_default=False,
    ),
]
CacheTokensOption = Annotated[
    int | None,
    typer.Option(
        "--cache-tokens",
        help="Tokens that all requests have together. [default: four contexts, if memory allows]",
        show_default=False,
    ),
]
SpeculateOption = Annotated[
    str,
    typer.Option("--speculate", help="Guess tokens and check several at once: ngram or off."),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft", help="A smaller model of the same vocabulary that guesses.", show_default=False
    ),
]
DrainOption = Annotated[
    float, typer.Option("--drain-timeout", help="Seconds for what runs when told to end.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No line for every request.")]


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    api_key: ApiKeyOption = None,
    api_key_file: ApiKeyFileOption = None,
    name: NameOption = None,
    cors_origin: CorsOption = None,
    allow_host: AllowHostOption = None,
    max_waiting: MaxWaitingOption = 256,
    max_running: MaxRunningOption = None,
    cache_tokens: CacheTokensOption = None,
    speculate: SpeculateOption = "ngram",
    draft: DraftOption = None,
    drain_timeout: DrainOption = 30.0,
    quiet: QuietOption = False,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    context: options.ContextOption = None,
    target: options.TargetOption = None,
    quant: options.QuantOption = None,
    activations: options.ActivationsOption = None,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Serve a model: OpenAI's, Anthropic's and Ollama's protocols, and a page for the browser."""
    from pumice.cli.session import ModelRequest, choose_model
    from pumice.server.settings import ServerSettings

    chosen = choose_model(model, model_option)
    request = ModelRequest(
        model=chosen, device=device, threads=threads, context=context, target=target,
        quantization=quant, activations=activations, cache_dir=cache_dir,
    )  # fmt: skip
    settings = ServerSettings(
        names=tuple(name or [served_name(chosen)]),
        api_keys=(*(api_key or ()), *_keys(api_key_file)),
        cors_origins=tuple(cors_origin or ()),
        hosts=(host, *(allow_host or ())),
        drain_timeout=drain_timeout,
        access_log=not quiet,
    )
    counts = {"cache-tokens": cache_tokens, "max-waiting": max_waiting, "max-running": max_running}
    for option, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"--{option} is {value}; it must be at least 1")
    if speculate not in ("ngram", "off"):
        raise UsageError(f"--speculate is {speculate!r}; allowed: ngram, off")
    request.check()

    from pumice.server.serve import bind

    sock = bind(host, port)  # a port in use is told before a model is fetched and loaded
    try:
        request = request.settled()
        artifact = request.prepare(text=True)
        guessing = None if draft is None else _draft_request(request, draft)
        engine = _load(
            request, artifact, cache_tokens, max_waiting=max_waiting, max_running=max_running,
            speculation=_speculation(speculate, guessing, artifact),
        )  # fmt: skip
        status = _run(engine, settings, sock, host)
    finally:
        sock.close()
    if status:
        raise typer.Exit(status)


def served_name(model: str) -> str:
    """A name for requests: a catalogue's, `org/name` of the hub, or a file's without its ending."""
    if model.startswith("hf:"):
        return model.removeprefix("hf:")
    path = Path(model)
    if path.suffix == ".gguf":
        return path.stem
    return path.absolute().name if "/" in model or path.is_dir() else model


def _keys(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StorageError(f"the keys of {path} cannot be read: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise UsageError(f"{path} holds no key; one a line is expected")
    return keys


def _load(
    request: ModelRequest, artifact: Path, cache_tokens: int | None, **options: Any
) -> LLMEngine:
    from pumice.cli.progress import counting
    from pumice.runtime.gpu_executor import GpuExecutor

    engine = request.engine(
        artifact,
        num_blocks=_blocks(artifact, request.context, cache_tokens),
        contexts=_CONTEXTS,
        **options,
    )
    if isinstance(engine.executable, GpuExecutor):
        # Once it listens, nobody should wait for the capture of a plan.
        plans = engine.executable.plans_to_capture()
        with counting(f"capturing {len(plans)} plans", len(plans)) as captured:
            for plan in plans:
                engine.executable.capture(plan)
                captured()
    return engine


def _draft_request(request: ModelRequest, draft: str) -> ModelRequest:
    """The draft model, compiled as the model is; an artifact is what it is."""
    from pumice.prepare import is_artifact

    found = dataclasses.replace(request, model=draft)
    if is_artifact(draft):
        found = dataclasses.replace(found, target=None, quantization=None, activations=None)
    return found.settled()


def _speculation(method: str, draft: ModelRequest | None, artifact: Path) -> Speculation | None:
    """How guesses are made. UsageError for a draft model of another vocabulary."""
    from pumice.engine.speculation import Speculation

    if draft is None:
        return Speculation("ngram") if method == "ngram" else None
    from pumice.artifact import Manifest
    from pumice.text.tokenizer import Tokenizer

    directory = draft.prepare()
    sizes = [Manifest.load(d / "manifest.json").model.vocab_size for d in (artifact, directory)]
    text = "Guesses are token ids: 12 words, 😀 and\n\tspaces."
    ids = [
        Tokenizer.load(d).encode(text, add_special=True, parse_special=False)
        for d in (artifact, directory)
    ]
    if sizes[0] != sizes[1] or ids[0] != ids[1]:
        raise UsageError(
            f"--draft {draft.model} has another vocabulary than the model",
            hint="A draft model is a smaller one of the same family.",
        )
    return Speculation("draft", draft=draft.load(directory, contexts=_DRAFT_CONTEXTS))


def _blocks(artifact: Path, context: int | None, cache_tokens: int | None) -> int | None:
    """Blocks of the cache; None: what a GPU has left. By default of a CPU four contexts, unless
    that is over a quarter of the memory that is free; one context at least.
    """
    from pumice.artifact import Manifest
    from pumice.runtime.load import DEFAULT_CONTEXT
    from pumice.runtime.memory import available_bytes

    manifest = Manifest.load(artifact / "manifest.json")
    size = manifest.cache.block_size
    if cache_tokens is not None:
        least = _least_tokens(artifact, size)
        if cache_tokens < least:
            raise UsageError(
                f"--cache-tokens is {cache_tokens:,}; this model's shortest conversation with an "
                f"answer takes at least {least:,}",
                hint="Many requests at once need their prompts' and answers' tokens together.",
            )
        return -(-cache_tokens // size)
    if manifest.target.get("api") != "cpu":
        return None
    longest = context or min(manifest.model.context_length, DEFAULT_CONTEXT)
    one = -(-longest // size) + 1
    free = available_bytes()
    if free is None:
        return one
    return max(one, min(4 * one, free // 4 // manifest.cache.bytes_per_block()))


def _least_tokens(artifact: Path, block_size: int) -> int:
    """Below which no request would fit: what the template adds, and a block for what is said."""
    from pumice.text.chat_template import ChatTemplate
    from pumice.text.prompt import encode_chat
    from pumice.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(artifact)
    if tokenizer.chat_template is None:
        return block_size
    hello = [{"role": "user", "content": "Hi"}]
    prompt = encode_chat(tokenizer, ChatTemplate.of(tokenizer), hello)
    return (-(-len(prompt) // block_size) + 1) * block_size


def _run(engine: LLMEngine, settings: ServerSettings, sock: Any, host: str) -> int:
    import gc
    import signal

    from pumice import event_loop
    from pumice.server.serve import serve

    address, port = sock.getsockname()[:2]
    shown = "127.0.0.1" if address in ("0.0.0.0", "::") else address
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

    def started(_: object) -> None:
        # What is loaded stays: looking through it for garbage would hold all streams up, 50 ms a
        # time.
        gc.collect()
        gc.freeze()
        limits = engine.limits
        _say(
            f"{settings.names[0]} at {url} (context {limits.context_length:,} tokens, cache "
            f"{limits.num_blocks * limits.block_size:,}). Ctrl-C ends it."
        )
        if not settings.api_keys and address not in ("127.0.0.1", "::1"):
            _say("warning: anybody who reaches this address may use it; --api-key asks for a key")
        _say(_example(url, settings), dim=False)

    ended_by = event_loop.run(
        serve(engine, settings, sock, model_info=_info(engine), on_start=started,
              on_drain=lambda: _say(f"ending; what runs has {settings.drain_timeout:g} s")),
    )  # fmt: skip
    return 130 if ended_by == signal.SIGINT else 0


def _say(text: str, *, dim: bool = True) -> None:
    """A line on standard error. A full disk below it, or a closed pipe, is no reason to end."""
    from pumice.cli.console import note

    try:
        if dim:
            note(text)
        else:
            print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def _example(url: str, settings: ServerSettings) -> str:
    key = " -H 'Authorization: Bearer KEY'" if settings.api_keys else ""
    body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    return f"curl {url}/v1/chat/completions{key} -d '{body}'"


def _info(engine: LLMEngine) -> dict[str, Any]:
    """What /api/show and the fingerprint tell of the model; no path is among it."""
    model = engine.executable.manifest.model  # type: ignore[attr-defined]
    return {
        "name": model.name,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "weight_bytes": model.weight_bytes,
        "quantization": model.quantization,
        "context_length": model.context_length,
        "digest": model.digest,
    }
