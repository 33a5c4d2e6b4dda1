"""Plans of sample_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.quantize_fp8.triton_plan import row_reason
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, next_power_of_2
from pumice.targets import Target

_ROWS = {
    "temperature": "float32", "seeds": "int64", "positions": "int32", "top_k": "int32",
    "top_p": "float32", "min_p": "float32", "repetition": "float32", "frequency": "float32",
    "presence": "float32",
}  # fmt: skip
_TOKENS = {"counts": "int32", "prompt": "uint8"}
_TOGETHER = (
    ("temperature", "seeds", "positions"),
    ("counts", "prompt", "repetition", "frequency", "presence"),
)


class SampleTokens:
    """A row a program."""

    name = "sample_tokens.triton"

    def supports(self, problem: Problem, target: Target) -> str | None:
        logits = problem["logits"]
        if (reason := row_reason("sample_tokens", "logits", logits)) is not None:
            return reason
        rows, vocabulary = logits.shape
        if not 0 < vocabulary < 2**31:
            return f"sample_tokens: a vocabulary of {vocabulary} is empty or too large"
        for names in _TOGETHER:
            given = [name in problem for name in names]
            if any(given) and not all(given):
                return f"sample_tokens: {', '.join(names)} go together"
        for name, dtype in (_ROWS | _TOKENS).items():
            shape = (rows, vocabulary) if name in _TOKENS else (rows,)
            if name in problem:
                spec = problem[name]
                if spec.shape != shape or spec.dtype != dtype:
                    return f"sample_tokens: {name} is {spec.dtype}{spec.shape}, not {dtype}{shape}"
                # one row offset serves the logits and what belongs to their tokens
                if name in _TOKENS and spec.stride != logits.stride:
                    return f"sample_tokens: {name} must have the logits' strides {logits.stride}"
                if name in _ROWS and not spec.contiguous:
                    return f"sample_tokens: {name} must be contiguous"
        if "temperature" not in problem and any(n in problem for n in ("top_k", "top_p", "min_p")):
            return "sample_tokens: filters need a temperature"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        widest = max(next_power_of_2(problem["logits"].shape[1]), 128)
        most = 1024 // target.wave
        found: list[Config] = []
        for block, warps in ((4096, 16), (8192, 32), (4096, 32), (2048, 8), (8192, 16)):
            config = {"block": min(block, widest), "warps": min(warps, most)}
            if config not in found:
                found.append(config)
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.sample_tokens.kernel_triton import sample_rows

        rows, vocabulary = problem["logits"].shape
        if rows == 0:
            return Plan(())
        names = ("logits", *_ROWS, *_TOKENS)
        arguments: dict[str, str | int | float] = {n: n for n in names if n in problem}
        constants: dict[str, Any] = {n: None for n in names if n not in problem}
        arguments |= {"tokens": "tokens", "logprobs": "logprobs", "V": vocabulary}
        arguments["logits_stride"] = problem["logits"].stride[0]
        constants["BLOCK"] = config["block"]
        return Plan(
            (Launch(sample_rows, (rows, 1, 1), arguments, constants, num_warps=config["warps"]),)
        )
