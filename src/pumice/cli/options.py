"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def directory(text: str) -> Path:
    """A folder's name. An empty one, of a variable that is not set, would be the folder one is
    in.
    """
    if not str(text):
        raise typer.BadParameter("it is empty")
    return Path(text)


MODEL_HELP = (
    "A catalogue name, hf:org/name, a .gguf file, a directory of safetensors or an artifact. "
    "[default: smollm2-135m]"
)

ModelArgument = Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help=MODEL_HELP, show_default=False)
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        help="auto (what the artifact is for; for a model a GPU where one is usable, else the "
        "CPU), cpu, rocm or cuda (with :N or :PCI-ID), or rocm:emulated-gfx1100.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", "-t", help="Of the CPU. [default: physical cores]", show_default=False
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        "-c",
        help="Longest conversation, in tokens. [default: the model's, at most 8192]",
        show_default=False,
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="What to compile for: native, or a target's name. [default: native, of --device]",
        show_default=False,
    ),
]
QuantOption = Annotated[
    str | None,
    typer.Option(
        "--quant",
        help="Weight format, such as q4f16_1. [default: the file's own; q4f16_1 for float files]",
        show_default=False,
    ),
]
ActivationsOption = Annotated[
    str | None,
    typer.Option(
        "--activations",
        help="Of quantized products: int16 (15 bits), int8 (faster, coarser) or float32 (exact). "
        "On GPUs float16 (which int16 means, too) or bfloat16. [default: int16; float16 on GPUs]",
        show_default=False,
    ),
]

CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        parser=directory,
        metavar="<path>",
        help="Downloads and compiled models. [default: $PUMICE_CACHE or ~/.cache/pumice]",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]

TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="0 is greedy. [default: the model's]", show_default=False),
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", help="Sample among the K likeliest.", show_default=False)
]
TopPOption = Annotated[
    float | None,
    typer.Option("--top-p", help="Sample among the likeliest of mass P.", show_default=False),
]
MinPOption = Annotated[
    float | None,
    typer.Option("--min-p", help="Drop tokens below P times the likeliest's.", show_default=False),
]
RepetitionOption = Annotated[
    float | None,
    typer.Option("--repetition-penalty", help="1 is none.", show_default=False),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Makes sampling repeatable.", show_default=False)
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        help="Longest answer. [default: to the end of the context]",
        show_default=False,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Ends the answer; may be repeated.", show_default=False),
]
