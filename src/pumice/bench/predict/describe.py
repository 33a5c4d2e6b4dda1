"""Predicted steps and tests as plain rows, for tables and JSON."""

from __future__ import annotations

from typing import Any

from pumice.bench.predict.measured import FAR, MEASURED_ON
from pumice.bench.predict.speeds import PredictedCall, PredictedStep, PredictedTest


def call_row(predicted: PredictedCall) -> dict[str, Any]:
    """One call of a step; figures are of one layer's, `count` says how many there are."""
    call, cost, time, held = predicted.call, predicted.cost, predicted.time, predicted.occupancy
    record, resources = call.record, call.record.resources
    return {
        "call": call.label,
        "count": call.count,
        "operator": call.operator,
        "kernel": call.kernel,
        "symbol": record.symbol,
        "config": record.config,
        "launches": len(call.launches),
        "grid": list(call.main.grid or ()),
        "threads": record.threads,
        "registers": resources.get("vgprs"),
        "spills": resources.get("spills"),
        "scratch_bytes": resources.get("scratch_bytes"),
        "shared_bytes": max(record.shared_bytes, resources.get("lds_bytes", 0)),
        "occupancy": round(held.part, 3),
        "blocks_per_unit": held.blocks,
        "limited_by": held.limit,
        "bytes": round(cost.nbytes),
        "activation_bytes": round(cost.activations),
        "operations": round(cost.operations),
        "floor_us": round(time.floor * 1e6, 3),
        "predicted_us": round(time.seconds * 1e6, 3),
        "bound": time.bound,
        "basis": basis(predicted),
        "reason": record.reason,
    }


def basis(predicted: PredictedCall) -> str:
    """Where a predicted time comes from, for a person."""
    line = predicted.line
    if not line.rows:
        return "assumed: no measured row"
    text = f"{line.rows} rows of {MEASURED_ON}"
    if line.relative:
        text += f", of {line.relative}"
    if line.distance > FAR:
        text += f", extrapolated by {line.distance:.1f} doublings of operations per byte"
    return text


def step_row(step: PredictedStep) -> dict[str, Any]:
    """A step in all."""
    return {
        "plan": step.plan,
        "launches": step.launches,
        "bytes": round(step.nbytes),
        "operations": round(step.operations),
        "floor_us": round(sum(p.call.count * p.time.floor for p in step.calls) * 1e6, 1),
        "launching_us": round(step.launching * 1e6, 1),
        "predicted_us": round(step.seconds * 1e6, 1),
    }


def test_row(predicted: PredictedTest) -> dict[str, Any]:
    """A test on a card. The first keys are those of measured rows (`bench.report`)."""
    card, test = predicted.card, predicted.test
    return {
        "engine": "pumice",
        "predicted": True,
        "test": test.name,
        "card": card.name,
        "target": card.arch,
        "tokens_per_s": round(predicted.tokens_per_s, 1),
        "step_ms": round(predicted.seconds * 1e3, 4),
        "bytes": round(predicted.nbytes),
        "gb_per_s": round(predicted.gb_per_s, 1),
        "of_attainable": round(predicted.attainable_s / predicted.seconds, 4),
        "launches": predicted.launches,
        "launching_ms": round(predicted.launching * 1e3, 4),
        "without_rows": round(predicted.without_rows, 4),
        "fits_memory": predicted.fits,
    }
