"""embedding on this machine: rows of packed tables in every format."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Output, Runner, host_target, relative_error
from linear_harness import random_weight

from pumice.operators.base import OperatorCall
from pumice.operators.embedding.kernel_tir import Embedding
from pumice.operators.linear import layout_for
from pumice.operators.registry import get_spec
from pumice.quantization import FORMATS


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("entry", ["decode", "extend"])
def test_matches_reference(fmt: object, entry: str) -> None:
    spec, target, rng = get_spec("embedding"), host_target(), np.random.default_rng(3)
    kernel = Embedding()
    runners: dict[str, Runner] = {}
    for attrs, inputs in spec.cases(rng):
        if attrs["H"] > 96 and fmt.name not in ("q4_1", "q8_0", "f16"):  # type: ignore[attr-defined]
            continue
        call = OperatorCall("embedding", attrs, {"w": (fmt, layout_for(target, fmt))}, entry)  # type: ignore[arg-type]
        assert kernel.supports(call, target) is None
        source = kernel.source(call, target, {})
        runner = runners.setdefault(
            source.symbol,
            Runner(source) if source.symbol not in runners else runners[source.symbol],
        )
        packed, values = random_weight(rng, fmt, attrs["V"], attrs["H"], target)  # type: ignore[arg-type]
        tokens = inputs["tokens"]
        out = Output((len(tokens), attrs["H"]), "float32")
        runner({"tokens": tokens, **packed}, {"out": out}, {"T": len(tokens)})
        expected = spec.reference(attrs, {"tokens": tokens, "weight": values})["out"]
        assert relative_error(out.array, expected) <= spec.tolerance["float32"]
