"""Compiles what a run needs, on a machine without that GPU, and records what a CPU answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pumice.bench.gpu_session import contents
from pumice.bench.gpu_session.check import LIMIT, REAL_LIMIT
from pumice.bench.gpu_session.greedy import Answer, alone, lanes, ragged
from pumice.bench.report import commit
from pumice.compiler.compile import CompileOptions, compile_model
from pumice.runtime.load import load
from pumice.runtime.step import Executable
from pumice.targets import Target
from pumice.targets.detect import detect_cpu
from pumice.text.tokenizer import Tokenizer

Say = Callable[[str], None]
MakeTiny = Callable[[str, Path], Path]  # model type, folder → a checkpoint with random weights
_TINY_SIZES = {"max_tokens": 32, "max_sequences": 4, "max_rows": 16}


class Preparation:
    """`folder` gets an artifact each and session.json."""

    def __init__(self, folder: Path, target: Target, say: Say) -> None:
        self.folder, self.target, self.say = folder, target, say
        folder.mkdir(parents=True, exist_ok=True)
        self._start = time.perf_counter()
        self._session: dict[str, Any] = {
            "target": target.name, "commit": commit(),
            "prepared": time.strftime("%Y-%m-%d"), "speeds": [], "answers": [],
        }  # fmt: skip

    def _compile(self, source: str | Path, name: str, **options: Any) -> None:
        compile_model(
            source,
            target=self.target,
            output=self.folder / name,
            options=CompileOptions(**options),
        )
        self.say(f"{time.perf_counter() - self._start:5.0f} s  {name} compiled")

    def speeds(self, models: Sequence[contents.Speeds], *, max_tokens: int = 2048) -> None:
        """Shapes without weights."""
        for model in models:
            checkpoint = Path(model.shape)
            name = f"speed-{checkpoint.name}"
            source = checkpoint if checkpoint.exists() else f"random:{model.shape}"
            self._compile(
                source, name, quantization="q4f16_1", weights=False,
                max_tokens=max_tokens, max_sequences=model.sequences,
                max_rows=max(2, model.sequences),
            )  # fmt: skip
            self._session["speeds"].append({"artifact": name, **model.as_dict()})

    def small(self, source: Path, scratch: Path, sequences: int = 4) -> None:
        """A real model with its weights: answers to prompts. sequences: more than 4 where it shall
        be served as well."""
        self._compile(source, "small", max_tokens=128, max_sequences=sequences, max_rows=sequences)
        tokenizer = Tokenizer.load(self.folder / "small")
        prompts = [
            tokenizer.encode(text, add_special=True, parse_special=False)
            for text in contents.PROMPTS
        ]
        self._answers("small", source, scratch, prompts, contents.ANSWER, None, REAL_LIMIT)

    def tiny(self, make: MakeTiny, scratch: Path) -> None:
        """A TINY model of each architecture: answers, and logits of every token of a prompt."""
        for model_type, quantization in contents.TINY:
            name = f"tiny-{model_type}"
            source = make(model_type, scratch / f"{name}-checkpoint")
            self._compile(source, name, quantization=quantization, **_TINY_SIZES)
            rng = np.random.default_rng(5)
            prompts = [rng.integers(3, 90, n).tolist() for n in (5, 12, 1, 9)]
            self._answers(name, source, scratch, prompts, contents.TINY_ANSWER, quantization, LIMIT)

    def _answers(
        self,
        name: str,
        source: Path,
        scratch: Path,
        prompts: Sequence[Sequence[int]],
        count: int,
        quantization: str | None,
        limit: float,
    ) -> None:
        """The same model on this CPU, with float32 activations."""
        folder = scratch / f"{name}-cpu"
        options = CompileOptions(quantization=quantization, activations="float32")
        compile_model(source, target=detect_cpu(), output=folder, options=options)
        executor = load(folder, context_length=max(len(p) for p in prompts) + count + 64)
        found = alone(executor, prompts, count)
        first = np.stack([a.first for a in found if a.first is not None])
        rows: dict[str, np.ndarray] = {"first": first}
        record: dict[str, Any] = {
            "artifact": name, "limit": limit, "logits": f"{name}.npz",
            "answers": [certain(p, a) for p, a in zip(prompts, found, strict=True)],
        }  # fmt: skip
        if name.startswith("tiny"):
            rng = np.random.default_rng(6)
            tokens = rng.integers(3, 90, contents.TINY_PROMPT).tolist()
            record["tokens"], rows["every"] = tokens, _every(executor, tokens)
        np.savez_compressed(self.folder / f"{name}.npz", **rows)  # type: ignore[arg-type]
        self._session["answers"].append(record)
        self.say(f"{time.perf_counter() - self._start:5.0f} s  {name}: a CPU's answers recorded")

    def finish(self) -> None:
        (self.folder / contents.FILE).write_text(json.dumps(self._session))


def certain(prompt: Sequence[int], answer: Answer) -> dict[str, Any]:
    """A record of an answer, up to the first near tie."""
    near = (i for i, margin in enumerate(answer.margins) if margin < contents.NEAR_TIE)
    end = next(near, len(answer.tokens))
    return {
        "prompt": list(prompt),
        "tokens": answer.tokens[:end],
        "margins": [round(margin, 5) for margin in answer.margins[:end]],
    }


def _every(executor: Executable, tokens: Sequence[int]) -> np.ndarray:
    """Logits of every token, float32[tokens, V]."""
    (lane,) = lanes(executor.limits, 1, len(tokens))
    batch = ragged([(lane, tokens)], executor.limits, every=True)
    return np.array(executor.step(batch), np.float32)
