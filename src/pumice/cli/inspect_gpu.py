"""`pumice inspect` of a GPU's artifact: its plans, and a decode step call by call."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.errors import ArtifactError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pumice.artifact import Manifest
    from pumice.bench.predict.speeds import PredictedStep

_CONTEXT = 1024  # tokens of the step that is shown, where the model allows as many


def as_dict(directory: Path, manifest: Manifest, context: int | None) -> dict[str, Any]:
    """For `--json`."""
    from dataclasses import asdict

    tokens = _context(manifest, context)
    found: dict[str, Any] = {
        "path": str(directory),
        "pumice": manifest.pumice,
        "versions": manifest.versions,
        "target": manifest.target,
        "model": asdict(manifest.model),
        "memory": manifest.memory,
        "fusions": manifest.options.get("fusions", {}),
        "vendor_blas": manifest.options.get("vendor_blas", {}),
        "cache_bytes_per_token": manifest.cache.bytes_per_block() // manifest.cache.block_size,
        "launches": {name: len(plan.launches) for name, plan in manifest.entries.items()},
        "bounds": {name: plan.bounds for name, plan in manifest.entries.items()},
        "kernels": [
            {k: v for k, v in asdict(record).items() if k not in ("arguments", "kinds")}
            for record in manifest.kernels
        ],
    }
    if _predicts():
        from pumice.bench.predict.describe import call_row, step_row
        from pumice.bench.predict.model import ASSUMPTIONS

        steps = _steps(manifest, tokens)
        (card, first), *_ = steps
        found["decode"] = {
            **step_row(first),
            "context": tokens,
            "card": card,
            "calls": [call_row(call) for call in first.calls],
        }
        found["predicted"] = [
            {"card": name, "tokens_per_s": round(1 / step.seconds, 1), **step_row(step)}
            for name, step in steps
        ]
        found["assumptions"] = list(ASSUMPTIONS)
    return found


def _predicts() -> bool:
    """Measured rows are read with the operators' plans, which need Triton."""
    return find_spec("triton") is not None


def _context(manifest: Manifest, asked: int | None) -> int:
    from pumice.runtime.memory import check_context

    longest = manifest.model.context_length
    if asked is None:
        return min(_CONTEXT, longest)
    check_context(asked, longest, "the model's own")
    return asked


def _steps(manifest: Manifest, tokens: int) -> list[tuple[str, PredictedStep]]:
    """A decode step of one sequence on every card of the artifact's architecture."""
    from pumice.bench.predict.cards import cards_of
    from pumice.bench.predict.speeds import Predictor

    return [
        (card.name, Predictor(manifest, card).step("decode", tokens=1, sequences=1, context=tokens))
        for card in cards_of(str(manifest.target["name"]))
    ]


def print_artifact(
    console: Console, directory: Path, manifest: Manifest, context: int | None, with_kernels: bool
) -> None:
    from pumice.cli.inspect import facts_table
    from pumice.targets import get_target

    tokens = _context(manifest, context)
    model, memory, cache = manifest.model, manifest.memory, manifest.cache
    target = get_target(str(manifest.target["name"]))
    facts = facts_table()
    facts.add_row("artifact", str(directory))
    facts.add_row("model", f"{model.name} ({model.architecture}), from {model.source}")
    facts.add_row("compiled for", f"{target.name}: {target.devices}")
    versions = [f"pumice {manifest.pumice}", *(f"{k} {v}" for k, v in manifest.versions.items())]
    facts.add_row("with", ", ".join(versions))
    facts.add_row("parameters", f"{model.parameters / 1e6:,.1f} million, {model.quantization}")
    stored = _stored_bytes(directory)
    facts.add_row(
        "weights",
        f"{_mb(model.weight_bytes)} on the device"
        + ("" if stored >= 0.99 * model.weight_bytes else
           f", {_mb(stored)} of them in the file: the rest is random when loaded"),
    )  # fmt: skip
    token = cache.bytes_per_block() / cache.block_size
    facts.add_row(
        "cache",
        f"{token / 1e3:,.1f} kB a token ({cache.dtype}), {_mb(token * model.context_length)} for "
        f"the whole context of {model.context_length:,}",
    )
    facts.add_row("work", _mb(memory.get("arena", 0)))
    for entry, text in _plans(manifest).items():
        facts.add_row(f"{entry} plans", text)
    fusions = manifest.options.get("fusions", {})
    if fusions:
        facts.add_row("fusions", "\n".join(f"{name}: {said}" for name, said in fusions.items()))
    if said := _vendor_blas(manifest, with_kernels):
        facts.add_row("vendor BLAS", said)
    facts.add_row("kernels", _kernels(manifest))
    console.print(facts)
    if not _predicts():
        console.print("\nPredicted times need the package triton: pip install 'pumice[gpu]'")
        return
    steps = _steps(manifest, tokens)
    card, first = steps[0]
    console.print(
        f"\none decoded token of one sequence with {tokens:,} tokens "
        f"({first.plan}), predicted for {card}:"
    )
    if with_kernels:
        console.print(_calls(first), markup=False)
        console.print()
        console.print(_reasons(first), markup=False)
    console.print()
    console.print(_totals(steps), markup=False)
    console.print(f"predicted, not run: `pumice bench --predict {target.name}` says how")


def _stored_bytes(directory: Path) -> int:
    """Of the file of weights; ArtifactError without one."""
    try:
        return (directory / "weights.safetensors").stat().st_size
    except OSError as error:
        raise ArtifactError(
            f"{directory} has no weights.safetensors: {error.strerror}",
            hint="Compile the model again: pumice compile MODEL --rebuild",
        ) from None


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _plans(manifest: Manifest) -> dict[str, str]:
    """Entry point → the shapes and launches of its plans."""
    size = manifest.cache.block_size
    found: dict[str, list[tuple[dict[str, int], int]]] = {}
    for name, plan in manifest.entries.items():
        if "T" not in plan.bounds:  # it draws tokens
            continue
        found.setdefault(name.partition("@")[0], []).append((plan.bounds, len(plan.launches)))
    texts = {}
    for entry, rows in found.items():
        counts = [count for _, count in rows]
        parts = [
            f"{what} {', '.join(map(str, sorted({b[symbol] * scale for b, _ in rows})))}"
            for what, symbol, scale in (("tokens", "T", 1), ("sequences", "S", 1),
                                        ("contexts", "M", size))
            if not (entry == "decode" and symbol == "T")
        ]  # fmt: skip
        texts[entry] = f"{len(rows)}: {'; '.join(parts)}; {min(counts)} to {max(counts)} launches"
    return texts


def _vendor_blas(manifest: Manifest, with_reasons: bool) -> str:
    """What may be left to a vendor's library, and with reasons why each product is or is not."""
    from pumice.runtime.devices.blas.library import TABLES
    from pumice.runtime.gpu_products import count

    known = manifest.options.get("vendor_blas")
    if known is None:  # compiled before there was a choice
        return ""
    name, launches = TABLES[str(manifest.target["api"])].name, count(manifest)
    text = f"{launches:,} launches of all plans are {name}'s where it is found"
    lines = [f"{text if launches else 'none'} (--vendor-blas {known['when']})"]
    if with_reasons:
        lines += [f"{product}: {said}" for product, said in known["products"].items()]
    return "\n".join(lines)


def _kernels(manifest: Manifest) -> str:
    records = manifest.kernels
    spilling = [
        r.symbol for r in records if r.resources.get("spills") or r.resources.get("scratch_bytes")
    ]
    text = f"{len(records)}, "
    return text + (f"{len(spilling)} spill: {', '.join(spilling)}" if spilling else "none spills")


def _calls(step: PredictedStep) -> Table:
    from rich.table import Table

    from pumice.bench.predict.describe import call_row

    table = Table(box=None, pad_edge=False)
    right = ("n", "MB", "floor µs", "µs", "share", "grid", "waves", "regs", "LDS kB", "held")
    table.add_column("call", overflow="ellipsis", no_wrap=True, max_width=56)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound by")
    for predicted in step.calls:
        row = call_row(predicted)
        table.add_row(
            row["call"].replace("model.", ""),
            str(row["count"]),
            f"{row['bytes'] / 1e6:,.2f}",
            f"{row['floor_us']:,.2f}",
            f"{row['predicted_us']:,.2f}",
            f"{predicted.seconds / step.seconds:.1%}",
            "×".join(str(n) for n in row["grid"]),
            str(predicted.occupancy.waves // predicted.occupancy.blocks),
            str(row["registers"] or ""),
            f"{row['shared_bytes'] / 1024:.1f}",
            f"{row['occupancy']:.0%}",
            row["bound"],
        )
    return table


def _reasons(step: PredictedStep) -> Table:
    """Each kernel of the step once: why it was chosen, and where its predicted time is from."""
    from rich.table import Table

    from pumice.bench.predict.describe import call_row

    table = Table(box=None, pad_edge=False)
    table.add_column("operator")
    table.add_column("kernel, configuration and reason", overflow="fold")
    found: dict[tuple[str, str], str] = {}
    for predicted in step.calls:
        row = call_row(predicted)
        config = ", ".join(f"{k}={v}" for k, v in row["config"].items())
        text = f"{row['kernel']} [{config}]"
        if row["launches"] > 1:
            text += f", {row['launches']} launches"
        found[(row["operator"], text)] = f"{row['reason']}; predicted: {row['basis']}"
    for (operator, text), reason in found.items():
        table.add_row(operator, f"{text}\n{reason}")
    return table


def _totals(steps: list[tuple[str, PredictedStep]]) -> Table:
    from rich.table import Table

    from pumice.bench.predict.describe import step_row

    table = Table(box=None, pad_edge=False)
    table.add_column("card")
    for heading in ("launches", "MB a token", "floor ms", "predicted ms", "tokens/s"):
        table.add_column(heading, justify="right")
    for card, step in steps:
        row = step_row(step)
        table.add_row(
            card,
            str(row["launches"]),
            f"{row['bytes'] / 1e6:,.1f}",
            f"{row['floor_us'] / 1e3:.3f}",
            f"{row['predicted_us'] / 1e3:.3f}",
            f"{1 / step.seconds:,.1f}",
        )
    return table
