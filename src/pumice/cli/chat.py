"""`pumice chat`: a conversation in the terminal, or one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pumice.cli import options
from pumice.errors import UsageError

NAME = "chat"


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="Answer this and leave. [default: standard input, when it is no terminal]",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="The system message.", show_default=False)
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    repetition_penalty: options.RepetitionOption = None,
    seed: options.SeedOption = None,
    max_tokens: options.MaxTokensOption = None,
    stop: options.StopOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = None,
    context: options.ContextOption = None,
    target: options.TargetOption = None,
    quant: options.QuantOption = None,
    activations: options.ActivationsOption = None,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Talk to a model; /help shows the commands of a conversation."""
    from pumice.cli.console import note, settings
    from pumice.cli.repl import Repl, line_reader
    from pumice.cli.sampling import given
    from pumice.cli.session import ModelRequest, choose_model

    if raw and system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out")
    request = ModelRequest(
        model=choose_model(model, model_option), device=device, threads=threads, context=context,
        target=target, quantization=quant, activations=activations, cache_dir=cache_dir,
    )  # fmt: skip
    sampling = given(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, max_tokens=max_tokens, stop=stop or None,
    )  # fmt: skip
    text = prompt if prompt is not None else _piped()

    from pumice.cli.conversation import ModelConversation, check_sampling

    check_sampling(sampling)
    conversation = ModelConversation(request, system=system, raw=raw, sampling=sampling)
    if text is not None:
        for piece in conversation.ask(text):
            sys.stdout.write(piece)
            sys.stdout.flush()
        print(flush=True)
        return
    note(f"{conversation.describe()}. /help shows the commands, Ctrl-D leaves.")
    with line_reader(Path(settings().state_dir) / "chat-history") as read:
        Repl(conversation, read).run()


def _piped() -> str | None:
    """The whole of standard input when it is no terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    text = sys.stdin.read()
    if not text.strip():
        raise UsageError("standard input is empty and is no terminal", hint='Give --prompt "...".')
    return text.rstrip("\n")
