"""`pumice pull`: fetch a model's files, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pumice.cli import options

NAME = "pull"


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    list_models: Annotated[
        bool, typer.Option("--list", help="List the catalogue of models with a short name.")
    ] = False,
    json_output: options.JsonOption = False,
    cache_dir: options.CacheDirOption = None,
) -> None:
    """Download a model into the cache."""
    from pumice.cli.console import print_json
    from pumice.cli.session import ModelRequest, choose_model

    if list_models:
        _print_catalogue(json_output)
        return
    request = ModelRequest(choose_model(model, model_option), cache_dir=cache_dir)
    path = Path(request.fetch())
    if json_output:
        print_json({"model": request.model, "path": str(path)})
    else:
        print(path)


def _print_catalogue(json_output: bool) -> None:
    from pumice.cli.console import print_json
    from pumice.weights.catalogue import CATALOGUE

    for entry in CATALOGUE:
        if json_output:
            print_json(
                {"name": entry.name, "parameters": entry.parameters, "licence": entry.licence}
            )
        else:
            print(f"{entry.name:<20} {entry.parameters:>6}  {entry.licence}")
