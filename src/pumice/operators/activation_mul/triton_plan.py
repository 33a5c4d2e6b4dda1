"""Plans of activation_mul: those of quantization, with the gate in front."""

from __future__ import annotations

from pumice.operators.activation_mul.spec import ACTIVATIONS
from pumice.operators.quantize_fp8.triton_plan import MapLoop, MapTiles
from pumice.operators.triton.plan import Problem
from pumice.targets import Target


def _reason(problem: Problem) -> str | None:
    known = ", ".join(ACTIVATIONS)
    if problem.attrs.get("activation") not in ACTIVATIONS:
        return f"activation_mul: {problem.attrs.get('activation')!r} is none of {known}"
    if problem["x"].shape[-1] % 2:
        return f"activation_mul: x has an odd width {problem['x'].shape[-1]}; gate and up are equal"
    return None


class ActivationTiles(MapTiles):
    """Tiles of rows, or whole rows where a scale belongs to a row."""

    name = "activation_mul.triton.tiles"
    operator = "activation_mul"

    def activation(self, problem: Problem) -> int:
        return ACTIVATIONS[problem.attrs["activation"]]

    def reason(self, problem: Problem, target: Target) -> str | None:
        return _reason(problem)


class ActivationLoop(MapLoop):
    """One scale a row of any width."""

    name = "activation_mul.triton.loop"
    operator = "activation_mul"

    def activation(self, problem: Problem) -> int:
        return ACTIVATIONS[problem.attrs["activation"]]

    def reason(self, problem: Problem, target: Target) -> str | None:
        return _reason(problem)
