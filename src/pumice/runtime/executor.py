"""Runs a plan on a device: the only executor there is, for every model and (by its device) every
API."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pumice.artifact import BufferRef, Manifest, Plan, evaluate
from pumice.errors import ArtifactError, UnsupportedError, UsageError
from pumice.runtime.devices.cpu import CapturedPlan, CpuDevice
from pumice.runtime.step import StepBatch, StepLimits
from pumice.runtime.weights import MappedWeights

INPUTS = (
    "tokens", "positions", "slots", "query_start", "context_len", "block_table", "sample_rows"
)  # fmt: skip


class Executor:
    """A model loaded on the CPU; implements `runtime.step.Executable`.

    All buffers are allocated once, at the plan's bounds, so every pointer of every launch is known
    at load time; a step copies
    its small arrays in, writes the integers that changed, and makes one call.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        device: CpuDevice,
        *,
        num_blocks: int,
        context_length: int,
    ) -> None:
        self.manifest = manifest
        self.device = device
        device.ready()
        self._weights = MappedWeights(directory / "weights.safetensors")
        self._weights.populate()
        self._library = device.load_kernels(directory / "model.so")
        cache = manifest.cache
        bounds = manifest.entries["extend"].bounds
        self.max_blocks = -(-context_length // cache.block_size)
        self.limits = StepLimits(
            vocab_size=manifest.model.vocab_size,
            max_tokens=bounds["T"],
            max_sequences=bounds["S"],
            max_rows=bounds["R"],
            context_length=context_length,
            block_size=cache.block_size,
            num_blocks=num_blocks,
            hidden_size=_width(manifest, "embed") if "embed" in manifest.entries else 0,
        )
        most_rows = max(plan.bounds["R"] for plan in manifest.entries.values())
        self._inputs = {
            "tokens": self._int32(bounds["T"]),
            "positions": self._int32(bounds["T"]),
            "slots": self._int32(bounds["T"]),
            "query_start": self._int32(bounds["S"] + 1),
            "context_len": self._int32(bounds["S"]),
            "block_table": self._int32(bounds["S"] * self.max_blocks).reshape(-1, self.max_blocks),
            "sample_rows": self._int32(most_rows),
        }
        self._arena = device.allocate(max(p.arena_bytes for p in manifest.entries.values()))
        k = num_blocks * 2 * int(np.prod(cache.k_block_shape))
        v = num_blocks * 2 * int(np.prod(cache.v_block_shape))
        self._cache = [(device.allocate(k), device.allocate(v)) for _ in range(cache.layers)]
        self._entries = {
            name: _BoundEntry(plan, self._capture(plan)) for name, plan in manifest.entries.items()
        }
        self._results = {name: self._result(name) for name in manifest.entries}

    def _result(self, name: str) -> np.ndarray:
        """Where an entry point leaves its rows: float32[R, V] or [R, H]."""
        plan, width = self.manifest.entries[name], _width(self.manifest, name)
        rows = plan.bounds["R"]
        part = self._arena[plan.output.offset :][: rows * width * 4]
        return part.view(np.float32).reshape(rows, width)

    def _int32(self, count: int) -> np.ndarray:
        return self.device.allocate(count * 4).view(np.int32)

    def _address(self, ref: BufferRef) -> int:
        match ref.space:
            case "arena":
                return int(self._arena.ctypes.data) + ref.offset
            case "weight":
                return self._weights.address(ref.name)
            case "input":
                return int(self._inputs[ref.name].ctypes.data)
            case "cache":
                k, v = self._cache[ref.layer]
                return int((k if ref.name == "k" else v).ctypes.data)
        raise ArtifactError(f"the plan refers to the unknown space {ref.space!r}")

    def _capture(self, plan: Plan) -> CapturedPlan:
        arguments = [
            [self._address(a) if isinstance(a, BufferRef) else None for a in launch.arguments]
            for launch in plan.launches
        ]
        return CapturedPlan(self._library, [launch.kernel for launch in plan.launches], arguments)

    def step(self, batch: StepBatch) -> np.ndarray:
        """Runs a batch; returns logits float32[R, V], valid until the next step.

        UsageError when the batch is larger than `limits`.
        """
        return self._run(self._entry_for(batch), batch)

    def embed(self, batch: StepBatch) -> np.ndarray:
        """Runs a batch; returns hidden states float32[R, H], R up to max_tokens, valid until the
        next step.

        UsageError when the batch is larger than `limits`, UnsupportedError when the artifact was
        compiled without this entry point.
        """
        if "embed" not in self._entries:
            raise UnsupportedError(
                f"the artifact of {self.manifest.model.name} has no entry point for hidden states",
                hint="Compile the model again with `pumice compile`.",
            )
        return self._run("embed", batch)

    def _run(self, name: str, batch: StepBatch) -> np.ndarray:
        entry = self._entries[name]
        symbols = self._stage(entry, batch)
        self.device.ready()
        entry.bind(symbols)
        entry.captured.replay()
        return self._results[name][: symbols["R"]]

    def plan_name(self, batch: StepBatch) -> str:
        """Which of the manifest's entries a batch runs."""
        return self._entry_for(batch)

    def _entry_for(self, batch: StepBatch) -> str:
        """The entry point that gives a batch's logits."""
        tokens, rows = len(batch.tokens), len(batch.sample_rows)
        decode = self._entries.get("decode")
        one_each = tokens == len(batch.context_len) == rows
        fits = decode is not None and tokens <= decode.plan.bounds["T"]
        return "decode" if one_each and fits else "extend"

    def _stage(self, entry: _BoundEntry, batch: StepBatch) -> dict[str, int]:
        """Copies the batch's arrays in; returns its sizes."""
        tokens, sequences, rows = len(batch.tokens), len(batch.context_len), len(batch.sample_rows)
        limits = self.limits
        columns = batch.block_table.shape[1]
        if (
            tokens > limits.max_tokens
            or sequences > limits.max_sequences
            or rows > entry.plan.bounds["R"]
            or columns > self.max_blocks
        ):
            raise UsageError(
                f"a step of {tokens} tokens, {sequences} sequences, {rows} rows and {columns} "
                f"blocks a "
                f"sequence is larger than the limits {limits}"
            )
        inputs = self._inputs
        inputs["tokens"][:tokens] = batch.tokens
        inputs["positions"][:tokens] = batch.positions
        inputs["slots"][:tokens] = batch.slots
        inputs["query_start"][: sequences + 1] = batch.query_start
        inputs["context_len"][:sequences] = batch.context_len
        inputs["block_table"][:sequences, :columns] = batch.block_table
        inputs["sample_rows"][:rows] = batch.sample_rows
        return {"T": tokens, "S": sequences, "M": self.max_blocks, "R": rows}

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks of the cache, in all layers: (from, to), one after the other."""
        for part in (buffer for layer in self._cache for buffer in layer):
            blocks = part.reshape(self.limits.num_blocks, -1)
            for source, target in pairs:
                blocks[target] = blocks[source]

    def profile(self, batch: StepBatch) -> list[tuple[str, str, float]]:
        """Runs a batch launch by launch; returns (label, kernel, seconds) of each."""
        entry = self._entries[self._entry_for(batch)]
        symbols = self._stage(entry, batch)
        self.device.ready()
        entry.bind(symbols)
        rows = []
        for index, launch in enumerate(entry.plan.launches):
            start = time.perf_counter()
            entry.captured.replay_one(index)
            rows.append((launch.label, launch.kernel, time.perf_counter() - start))
        return rows


def _width(manifest: Manifest, name: str) -> int:
    """Columns of an entry point's result."""
    width = manifest.entries[name].width
    return manifest.model.vocab_size if width is None else width


class _BoundEntry:
    """An entry point with the integers of the batch shape that it was last bound to."""

    def __init__(self, plan: Plan, captured: CapturedPlan) -> None:
        self.plan = plan
        self.captured = captured
        self._bound: Mapping[str, int] = {}
        groups: dict[str, tuple[object, list[int]]] = {}
        slot = 0
        for launch in plan.launches:
            for argument in launch.arguments:
                if not isinstance(argument, BufferRef):
                    groups.setdefault(repr(argument), (argument, []))[1].append(slot)
                slot += 1
        self._integers = [(expr, np.array(slots)) for expr, slots in groups.values()]

    def bind(self, symbols: dict[str, int]) -> None:
        if symbols == self._bound:
            return
        for expr, slots in self._integers:
            self.captured.set_integers(slots, evaluate(expr, symbols))
        self._bound = dict(symbols)
