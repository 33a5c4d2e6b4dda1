"""`pumice run`: one completion on standard output, for scripts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pumice.cli import options
from pumice.errors import UsageError

NAME = "run"


def command(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The text; - or nothing is standard input.", show_default=False),
    ] = None,
    model_option: options.ModelOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The text is a message: use the chat template.")
    ] = False,
    system: Annotated[
        str | None,
        typer.Option("--system", help="The system message; implies --chat.", show_default=False),
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before it.")] = False,
    json_output: options.JsonOption = False,
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
    """Complete a text, or answer one message, and leave."""
    from pumice.cli.console import print_json
    from pumice.cli.sampling import given
    from pumice.cli.session import ModelRequest, choose_model

    text = _text(prompt)
    request = ModelRequest(
        model=choose_model(None, model_option), device=device, threads=threads, context=context,
        target=target, quantization=quant, activations=activations, cache_dir=cache_dir,
    )  # fmt: skip
    sampling = given(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, max_tokens=max_tokens, stop=stop or None,
    )  # fmt: skip

    from pumice.cli.conversation import ModelConversation, check_sampling

    check_sampling(sampling)
    raw = not chat and system is None
    conversation = ModelConversation(request, system=system, raw=raw, sampling=sampling)
    if json_output:
        answer = "".join(conversation.ask(text))
        print_json(
            {"model": request.model, "prompt": text, "text": answer} | conversation.figures()
        )
        return
    if echo:
        sys.stdout.write(text)
    for piece in conversation.ask(text):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print(flush=True)


def _text(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        if not prompt:
            raise UsageError("the prompt is empty")
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint='pumice run "Once upon a time"')
    text = sys.stdin.read().rstrip("\n")
    if not text:
        raise UsageError("standard input is empty")
    return text
