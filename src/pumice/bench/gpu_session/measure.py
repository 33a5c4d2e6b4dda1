"""The run on the GPU: answers first, then speeds, each with its prediction beside it.

Needs the driver, NumPy, and Triton for the predictions (it reads the operators' plans); neither
PyTorch nor TVM. The results are written after every part, so that a run that is cut off leaves what
it has.
"""

from __future__ import annotations

import functools
import gc
import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pumice.artifact import Manifest
from pumice.bench import gpu_roofline, report
from pumice.bench.gpu_session.check import check_answers, check_logits
from pumice.bench.gpu_session.contents import FILE, Speeds
from pumice.bench.model import check_context, run_test
from pumice.bench.predict.cards import Card, cards_of
from pumice.bench.predict.speeds import PredictedStep, Predictor
from pumice.bench.profile import StepProfile, profile_step, write_trace
from pumice.bench.roofline import Roofline
from pumice.bench.tests import ModelTest
from pumice.errors import ArtifactError, PumiceError
from pumice.files import atomic_write_text
from pumice.runtime.found_devices import driver_version
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.load import load
from pumice.targets import get_target

Say = Callable[[str], None]
_REPEAT = 3
_BLOCK_RESERVE = 1  # blocks beyond those of the sequences


class Run:
    """One run. folder: of an unpacked preparation. out: the results' file. budget: seconds after
    which parts are left out, which the results say."""

    def __init__(self, folder: Path, device: str, out: Path, budget: float, say: Say) -> None:
        self.folder, self.device, self.out, self.say = folder, device, out, say
        self._start = time.perf_counter()
        self._budget = budget
        self._session = read_session(folder)
        self._roofline: Roofline | None = None
        self.results: dict[str, Any] = {
            "facts": {}, "answers": [], "rows": [], "profiles": [], "failed": [], "left_out": [],
        }  # fmt: skip

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def all(self) -> bool:
        """Everything; returns whether all answers are right, and nothing failed or was left out."""
        for record in self._session["answers"]:
            self._part(f"answers of {record['artifact']}", functools.partial(self._answers, record))
        for data in self._session["speeds"]:
            speeds, artifact = Speeds.from_dict(data), str(data["artifact"])
            self._part(speeds.shape, functools.partial(self._speeds, artifact, speeds))
        right = all(row["passed"] for row in self.results["answers"])
        return right and not self.results["failed"] and not self.results["left_out"]

    def _part(self, name: str, work: Callable[[], None]) -> None:
        if self.seconds > self._budget:
            self.results["left_out"].append(name)
            self.say(f"{self.seconds:5.0f} s  {name}: left out, the time is used up")
        else:
            try:
                work()
            except Exception as error:  # of any kind: the parts after it must have their turn
                text = str(error) if isinstance(error, PumiceError) else traceback.format_exc()
                self.results["failed"].append({"part": name, "error": text})
                self.say(f"{self.seconds:5.0f} s  {name}: FAILED, {text}")
            gc.collect()  # what the part had on the device
        self._write()

    def _write(self) -> None:
        self.results["facts"]["seconds"] = round(self.seconds, 1)
        lines = [
            f'"{key}": ' + (
                "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
                if isinstance(value, list) else json.dumps(value)
            )
            for key, value in self.results.items()
        ]  # fmt: skip
        atomic_write_text(self.out, "{" + ",\n".join(lines) + "}\n")

    def _load(self, artifact: str, *, context: int, sequences: int) -> GpuExecutor:
        start = time.perf_counter()
        manifest = Manifest.load(self.folder / artifact / "manifest.json")
        each = -(-context // manifest.cache.block_size)
        executor = load(
            self.folder / artifact, device=self.device, context_length=context,
            num_blocks=sequences * each + _BLOCK_RESERVE, random_weights=True,
        )  # fmt: skip
        if not isinstance(executor, GpuExecutor):
            raise ArtifactError(f"{artifact} was not compiled for a GPU")
        if self._roofline is None:
            self._facts(executor)
        self.say(f"{self.seconds:5.0f} s  {artifact} loaded in {time.perf_counter() - start:.1f} s")
        return executor

    def _facts(self, executor: GpuExecutor) -> None:
        device = executor.device
        self._roofline = gpu_roofline.measure(device, get_target(self._session["target"]))
        self.results["facts"] = {
            "device": str(device), "target": self._session["target"],
            "driver": driver_version(device.driver),
            "memory_bytes": device.properties.memory_bytes,
            "copy_gb_per_s": round(self._roofline.read_bytes_per_s / 1e9, 1),
            "commit": self._session["commit"], "prepared": self._session["prepared"],
            "measured": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        self.say(json.dumps(self.results["facts"]))

    # -- answers ----------------------------------------------------------------------------------

    def _answers(self, record: Mapping[str, Any]) -> None:
        name, expected, limit = record["artifact"], record["answers"], float(record["limit"])
        longest = max(len(row["prompt"]) + len(row["tokens"]) for row in expected)
        longest = max(longest, len(record.get("tokens", ())))
        executor = self._load(name, context=longest, sequences=len(expected))
        with np.load(self.folder / record["logits"]) as file:
            logits = {key: file[key] for key in file.files}
        found = check_answers(executor, expected, logits["first"], limit)
        if "tokens" in record:
            error = check_logits(executor, record["tokens"], logits["every"])
            found.append(
                {"way": "logits of a prompt in chunks", "tokens": len(record["tokens"]),
                 "different": None, "margin": None, "logits_error": round(error, 6),
                 "passed": error <= limit}
            )  # fmt: skip
        for index, row in enumerate(found):
            self.results["answers"].append({"model": name, "index": index, **row})
        wrong = [row for row in found if not row["passed"]]
        worst = max(row["logits_error"] or 0.0 for row in found)
        self.say(
            f"{self.seconds:5.0f} s  {name}: {len(found) - len(wrong)} of {len(found)} as on the "
            f"CPU; largest error of logits {worst:.2g}"
            + "".join(f"\n        {json.dumps(row)}" for row in wrong)
        )

    # -- speeds -----------------------------------------------------------------------------------

    def _speeds(self, artifact: str, speeds: Speeds) -> None:
        tests = speeds.tests
        manifest = Manifest.load(self.folder / artifact / "manifest.json")
        check_context(tests, manifest)
        blocks = max(t.batch * -(-t.context // manifest.cache.block_size) for t in tests)
        context = max(test.context for test in tests)
        each = -(-context // manifest.cache.block_size)
        executor = self._load(artifact, context=context, sequences=-(-blocks // each))
        card = self._card(str(executor.device))
        predictor = Predictor(manifest, card)
        for test in tests:
            if self.seconds > self._budget:
                self.results["left_out"].append(f"{speeds.shape} {test.name}")
                continue
            self._test(executor, manifest, test, predictor)
        for test in tests:
            if test.name in speeds.profiles and self.seconds <= self._budget:
                self._profile(executor, speeds.shape, test, predictor)

    def _card(self, device: str) -> Card:
        """The card that this is, or the first of its architecture, which predictions then name."""
        cards = cards_of(self._session["target"])
        return next((card for card in cards if card.name in device), cards[0])

    def _test(
        self, executor: GpuExecutor, manifest: Manifest, test: ModelTest, predictor: Predictor
    ) -> None:
        result = run_test(executor, manifest, test, repeat=_REPEAT, roofline=self._roofline)
        predicted = predictor.test(test)
        row = report.row(
            result, manifest, device=str(executor.device), threads=0, roofline=self._roofline
        )
        assert self._roofline is not None
        row |= {
            "of_copy": round(result.bytes_per_s / self._roofline.read_bytes_per_s, 4),
            "predicted_tokens_per_s": round(predicted.tokens_per_s, 1),
            "predicted_for": predicted.card.name,
            "commit": self._session["commit"],
        }
        self.results["rows"].append(row)
        self.say(
            f"{self.seconds:5.0f} s  {manifest.model.name} {test.name}: {result.median:,.1f} "
            f"tokens/s, {result.bytes_per_s / 1e9:,.0f} GB/s ({row['of_copy']:.0%} of copies); "
            f"predicted {predicted.tokens_per_s:,.1f}"
        )

    def _profile(
        self, executor: GpuExecutor, shape: str, test: ModelTest, predictor: Predictor
    ) -> None:
        profile = profile_step(executor, test, roofline=self._roofline)
        step = _predicted_step(test, predictor, executor.limits.max_tokens)
        for row in beside(profile, step):
            self.results["profiles"].append({"model": shape, "test": test.name, **row})
        name = f"{self.out.stem}-{Path(shape).name}-{test.name}.trace.json".replace("@", "-")
        write_trace(self.out.with_name(name), [profile])
        self.say(
            f"{self.seconds:5.0f} s  {shape} {test.name}: a step's kernels take "
            f"{profile.seconds * 1e3:.3f} ms one by one, predicted {step.seconds * 1e3:.3f} ms"
        )


def _predicted_step(test: ModelTest, predictor: Predictor, max_tokens: int) -> PredictedStep:
    """The step that `profile_step` profiles."""
    if test.kind == "tg":
        return predictor.step(
            "decode", tokens=test.batch, sequences=test.batch, context=test.depth + 1
        )
    count = min(test.tokens, max_tokens)
    return predictor.step(
        "extend", tokens=count, sequences=1, context=test.depth + count,
        mean_keys=test.depth + (count + 1) / 2,
    )  # fmt: skip


def beside(profile: StepProfile, step: PredictedStep) -> list[dict[str, Any]]:
    """A step's calls, all layers' together: measured one by one, predicted, and at the floor, in
    microseconds; the longest first. Between events a launch takes some microseconds more than in a
    graph."""
    rows: dict[str, dict[str, Any]] = {}
    for kernel in profile.kernels:
        row = rows.setdefault(
            kernel.call,
            {"call": kernel.call, "operator": kernel.operator, "kernels": [], "launches": 0,
             "us": 0.0, "predicted_us": 0.0, "floor_us": 0.0, "bytes": 0.0, "operations": 0.0},
        )  # fmt: skip
        row["kernels"].append(kernel.kernel)
        row["launches"] += kernel.launches
        row["us"] += kernel.seconds * 1e6
        row["bytes"] += kernel.cost.nbytes
        row["operations"] += kernel.cost.operations
    for predicted in step.calls:
        if predicted.call.operator == "sample_tokens":
            continue  # drawn after the step, and not profiled
        row = rows[predicted.call.label]
        row["predicted_us"] += predicted.seconds * 1e6
        row["floor_us"] += predicted.call.count * predicted.time.floor * 1e6
    for row in rows.values():
        for key in ("us", "predicted_us", "floor_us"):
            row[key] = round(row[key], 2)
    return sorted(rows.values(), key=lambda row: -row["us"])


def read_session(folder: Path) -> dict[str, Any]:
    """What `prepare` wrote; ArtifactError when it is missing."""
    try:
        data = json.loads((folder / FILE).read_text())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} holds no prepared run: {error}") from None
    assert isinstance(data, dict)
    return data
