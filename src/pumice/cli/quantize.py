"""`pumice quantize`: a float checkpoint written anew with quantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pumice.cli import options

NAME = "quantize"


def command(
    model: Annotated[
        str, typer.Argument(help="A directory of safetensors, or hf:org/name.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Argument(help="The new directory: missing, or empty.", show_default=False)
    ],
    quant: Annotated[str, typer.Option("--quant", help="q4f16_1, q4f16_1_min, q8f16, f16 ...")] = (
        "q4f16_1"
    ),
    json_output: options.JsonOption = False,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Write a quantized model directory."""
    from pumice.cli.console import note, print_json
    from pumice.cli.session import ModelRequest, choose_model
    from pumice.compiler.progress import make_progress
    from pumice.weights.write import write_quantized

    request = ModelRequest(choose_model(model, None), quantization=quant, cache_dir=cache_dir)
    request.check()
    source = Path(request.fetch())
    with make_progress(quiet=False) as report:
        written = write_quantized(
            source, quant, output, lambda what, done, total: report("quantize", done, total)
        )
    before, after = _bytes(source), _bytes(written)
    if json_output:
        print_json({"path": str(written), "format": quant, "bytes": after, "source_bytes": before})
    else:
        note(f"{before / 1e6:,.1f} MB became {after / 1e6:,.1f} MB in {quant}")
        print(written)


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
