"""`pumice bench --predict ARCH`: speeds from an artifact's plans, on cards that are not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pumice.cli.session import ModelRequest
from pumice.errors import UsageError

if TYPE_CHECKING:
    from pumice.artifact import Manifest
    from pumice.bench.predict.beside import Measured
    from pumice.bench.predict.speeds import PredictedTest
    from pumice.bench.tests import ModelTest


def run(request: ModelRequest, arch: str, tests: Sequence[ModelTest], json_output: bool) -> None:
    """Compiles without weights where the cache has no such artifact, and prints a table."""
    from pumice.artifact import Manifest
    from pumice.bench.model import check_context
    from pumice.bench.predict.beside import read_results
    from pumice.bench.predict.cards import cards_of
    from pumice.bench.predict.speeds import predict
    from pumice.cli.console import print_json

    arch = arch.strip().lower()
    cards = cards_of(arch)
    manifest = Manifest.load(_artifact(request, arch, tests) / "manifest.json")
    if manifest.target["name"] != arch:
        raise UsageError(
            f"the artifact {request.model} was compiled for {manifest.target['name']}, "
            f"not for {arch}"
        )
    check_context(list(tests), manifest)
    found = predict(manifest, cards, tests)
    measured = read_results()
    if json_output:
        for predicted in found:
            print_json(_row(predicted, manifest, measured))
    else:
        _print(found, manifest, measured)


def _artifact(request: ModelRequest, arch: str, tests: Sequence[ModelTest]) -> Path:
    """Compiled for the architecture, unless the model is an artifact."""
    from pumice.prepare import is_artifact

    if is_artifact(request.model):
        replace(request, context=None).check()
        return Path(request.model)
    request = replace(request, target=arch, context=None).settled(runs=False)
    settings = request.prepare_settings()
    batch = max(test.batch for test in tests)
    settings = replace(
        settings,
        max_sequences=max(settings.max_sequences, batch),
        options=settings.options | {"weights": False},
    )
    return request.prepare(settings)


def _measured(
    predicted: PredictedTest, manifest: Manifest, measured: Sequence[Measured]
) -> Measured | None:
    from pumice.bench.predict.beside import measured_for

    model = manifest.model
    return measured_for(
        measured, predicted.card.name, model.name, model.quantization, predicted.test.name
    )


def _row(
    predicted: PredictedTest, manifest: Manifest, measured: Sequence[Measured]
) -> dict[str, object]:
    from pumice._version import __version__
    from pumice.bench.predict.describe import test_row
    from pumice.bench.predict.model import ASSUMPTIONS

    beside = _measured(predicted, manifest, measured)
    return {
        **test_row(predicted),
        "model": manifest.model.name,
        "quantization": manifest.model.quantization,
        "measured_tokens_per_s": None if beside is None else beside.tokens_per_s,
        "measured_commit": None if beside is None else beside.when,
        "assumptions": [*ASSUMPTIONS, predicted.card.attainable.source],
        "version": __version__,
    }


def _print(
    found: Sequence[PredictedTest], manifest: Manifest, measured: Sequence[Measured]
) -> None:
    from rich.table import Table

    from pumice.bench.predict.model import ASSUMPTIONS
    from pumice.cli.console import stdout
    from pumice.targets import get_target

    console, model = stdout(), manifest.model
    target = get_target(str(manifest.target["name"]))
    console.print(
        f"{model.name}, {model.quantization}, {model.weight_bytes / 1e6:,.1f} MB, compiled for "
        f"{target.name} ({target.devices})"
    )
    console.print("PREDICTED from its plans; never run on these cards:")
    beside = [_measured(predicted, manifest, measured) for predicted in found]
    table = Table(box=None, pad_edge=False)
    table.add_column("card")
    table.add_column("test")
    headings = ["tokens/s", "step ms", "GB/step", "GB/s", "of attainable", "launches", "launching"]
    headings.append("without rows")
    if any(beside):
        headings += ["measured", "predicted / measured"]
    for heading in headings:
        table.add_column(heading, justify="right")
    last = None
    for predicted, row in zip(found, beside, strict=True):
        values = [
            f"{predicted.tokens_per_s:,.1f}" if predicted.fits else "no room",
            f"{predicted.seconds * 1e3:,.3f}",
            f"{predicted.nbytes / 1e9:,.3f}",
            f"{predicted.gb_per_s:,.0f}",
            f"{predicted.attainable_s / predicted.seconds:.0%}",
            f"{predicted.launches:,}",
            f"{predicted.launching / predicted.seconds:.0%}",
            f"{predicted.without_rows:.0%}",
        ]
        if any(beside):
            speed = row.tokens_per_s if row else 0.0
            values += [
                f"{speed:,.1f}" if row else "",
                f"{predicted.tokens_per_s / speed:.2f}" if row and speed else "",
            ]
        name = predicted.card.name
        table.add_row("" if name == last else name, predicted.test.name, *values)
        last = name
    console.print(table, markup=False)
    console.print(
        "A step is one token of every sequence (tg), or the whole prompt (pp). Of attainable: "
        "least time at the card's\nattainable bandwidth and matrix peak, over predicted time. "
        "Launching: the part of the time that launches cost by\ntheir number. Without rows: the "
        "part that no measured row is near, and that is therefore a guess."
    )
    console.print("assumptions:")
    for text in ASSUMPTIONS:
        console.print(f"- {text}", markup=False)
    for card in dict.fromkeys(predicted.card for predicted in found):
        console.print(
            f"- {card.name}: {card.units} units, {card.bandwidth / 1e9:,.0f} GB/s × "
            f"{card.attainable.copy:.2f}, float16 {card.float16 / 1e12:,.0f} TFLOP/s × "
            f"{card.attainable.matrix:.2f} ({card.attainable.source})",
            markup=False,
        )
