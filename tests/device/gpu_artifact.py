"""A model of one attention layer, written as a GPU artifact by hand, and the same in NumPy.

x = embedding[tokens];  h = norm(x);  q, k = rope(h), v = x, appended to the cache;
a = attention(q);  r = a[sample_rows];  logits = r · headᵀ;  hidden = r · projᵀ
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pumice.artifact import (
    FILL,
    BufferRef,
    CacheSpec,
    KernelRecord,
    Launch,
    Manifest,
    ModelInfo,
    Plan,
    WeightRecord,
)
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import binary_key, build
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.load import load
from pumice.runtime.step import StepBatch
from pumice.targets import Target, get_target

VOCABULARY, WIDTH, BLOCK, CONTEXT = 43, 32, 16, 64
EPS = 1e-5
CARD = "rocm:emulated-gfx1100"
_KINDS = {"i32": "int32", "i64": "int64", "fp32": "float32"}


def weights(seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "embedding": rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float16),
        "norm": rng.uniform(0.5, 1.5, WIDTH).astype(np.float16),
        "inv_freq": (10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)).astype(np.float32),
        "head": rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float16),
        "proj": rng.standard_normal((WIDTH, WIDTH)).astype(np.float16),
    }


@dataclass
class _Builder:
    """Launches of plans, and the kernels that they share."""

    target: Target
    directory: Path
    records: dict[Any, KernelRecord] = field(default_factory=dict)

    def plan(self, entry: str, tokens: int, sequences: int, blocks: int, rows: int) -> Plan:
        launches: list[Launch] = []
        places: dict[str, tuple[BufferRef, TensorSpec]] = {}
        end = 0

        def put(name: str, spec: TensorSpec) -> None:
            nonlocal end
            places[name] = (BufferRef("arena", offset=end), spec)
            end += -(-spec.nbytes // 256) * 256

        def call(operator: str, attrs: Mapping[str, Any], result: str, **given: str) -> None:
            """One operator; `result` is where its only new tensor goes."""
            spec = get_spec(operator)
            problem = make_problem(
                spec, attrs, {name: places[where][1] for name, where in given.items()}
            )
            where = dict(given)
            for name in problem.outputs:
                if not result:  # an extra output nobody wants
                    continue
                put(result, problem.tensors[name])
                where[name] = result
            kernel = next(
                k for k in triton_kernels_of(operator) if k.supports(problem, self.target) is None
            )
            made = kernel.plan(problem, self.target, kernel.configs(problem, self.target)[0])
            for name, workspace in made.workspaces.items():
                key = f"{len(launches)}.{name}"
                put(key, workspace)
                where[name] = key
                if name in made.zeroed:
                    launches.append(
                        Launch(FILL, (places[key][0], workspace.nbytes, 0), f"zero {name}")
                    )
            tensors = {**problem.tensors, **made.workspaces}
            for launch in made.launches:
                record = self._record(operator, kernel.name, launch, tensors)
                arguments = [
                    places[where[v]][0] if isinstance(v := launch.arguments[p], str) else v
                    for p in record.arguments[:-2]
                ]
                launches.append(
                    Launch(record.symbol, (*arguments, 0, 0), f"{operator} {result}", launch.grid)
                )

        ints = {
            "tokens": (tokens,), "positions": (tokens,), "slots": (tokens,),
            "query_start": (sequences + 1,), "context_len": (sequences,),
            "block_table": (sequences, blocks), "sample_rows": (rows,),
        }  # fmt: skip
        for name, shape in ints.items():
            places[name] = (BufferRef("input", name), TensorSpec(shape, "int32"))
        for name, array in weights().items():
            places[name] = (BufferRef("weight", name), TensorSpec(array.shape, array.dtype.name))
        for name in ("k", "v"):
            # Blocks are counted at run time: the plan knows their stride alone.
            spec = TensorSpec((2, BLOCK, 1, WIDTH), "float16")
            places[f"{name}_cache"] = (BufferRef("cache", name), spec)

        def view(name: str, source: str, *shape: int) -> None:
            ref, spec = places[source]
            places[name] = (ref, TensorSpec(shape, spec.dtype))

        call("token_embedding", {}, "x", tokens="tokens", weight="embedding")
        call("norm", {"kind": "rms", "eps": EPS}, "h", x="x", weight="norm")
        view("h3", "h", tokens, 1, WIDTH)
        view("x3", "x", tokens, 1, WIDTH)
        call("rope_cache", {}, "q", q="h3", k="h3", v="x3", positions="positions",
             inv_freq="inv_freq", slots="slots", k_cache="k_cache", v_cache="v_cache")  # fmt: skip
        call("paged_prefill", {}, "a3", q="q", k_cache="k_cache", v_cache="v_cache",
             block_table="block_table", context_len="context_len",
             query_start="query_start")  # fmt: skip
        view("a", "a3", tokens, WIDTH)
        call("token_embedding", {}, "rows", tokens="sample_rows", weight="a")
        matrix = "proj" if entry == "embed" else "head"
        call("gemm", {"out_dtype": "float32"}, "out", x="rows", w=matrix)
        bounds = {"T": tokens, "S": sequences, "M": blocks, "R": rows}
        width = WIDTH if entry == "embed" else None
        poison = Launch(FILL, (BufferRef("arena"), end, 0xFF), "poison")  # NaN
        return Plan((poison, *launches), end, bounds, places["out"][0], width)

    def sample(self, rows: int) -> Plan:
        """Draws a token from each row of logits."""
        given = {
            "logits": ("output", (rows, VOCABULARY), "float32"),
            "temperature": ("input", (rows,), "float32"), "seeds": ("input", (rows,), "int64"),
            "positions": ("input", (rows,), "int32"), "top_k": ("input", (rows,), "int32"),
            "top_p": ("input", (rows,), "float32"), "min_p": ("input", (rows,), "float32"),
        }  # fmt: skip
        problem = make_problem(
            get_spec("sample_tokens"),
            {},
            {name: TensorSpec(shape, dtype) for name, (_, shape, dtype) in given.items()},
        )
        kernel = triton_kernels_of("sample_tokens")[0]
        made = kernel.plan(problem, self.target, kernel.configs(problem, self.target)[0])
        (launch,) = made.launches
        record = self._record("sample_tokens", kernel.name, launch, problem.tensors)
        renamed = {"positions": "draws"}
        arguments = [
            BufferRef(given[v][0] if v in given else "output", renamed.get(v, v))
            if isinstance(v := launch.arguments[p], str)
            else v
            for p in record.arguments[:-2]
        ]
        drawing = Launch(record.symbol, (*arguments, 0, 0), "sample_tokens", launch.grid)
        return Plan((drawing,), 0, {"R": rows}, BufferRef("output", "tokens"), 1)

    def _record(self, operator: str, kernel: str, launch: Any, tensors: Any) -> KernelRecord:
        key = binary_key(launch, tensors, self.target)
        if key not in self.records:
            binary = build(launch, tensors, self.target)
            symbol = f"{operator}_{len(self.records)}"
            (self.directory / f"{symbol}.hsaco").write_bytes(binary.code)
            names = [name for name, _ in binary.parameters]
            kinds = [_KINDS.get(kind, "pointer") for _, kind in binary.parameters]
            self.records[key] = KernelRecord(
                symbol=symbol, operator=operator, kernel=kernel, reason="the first that can",
                file=f"{symbol}.hsaco", arguments=(*names, "scratch", "profile"),
                entry=binary.symbol, kinds=(*kinds, "pointer", "pointer"),
                threads=binary.threads, shared_bytes=binary.shared_bytes,
            )  # fmt: skip
        return self.records[key]


def write(
    directory: Path,
    arch: str = "gfx1100",
    shapes: Sequence[str] = ("decode@2x2x4", "extend@8x3x4", "embed@8x3x4"),
    *,
    samples: bool = True,
) -> Manifest:
    """The artifact. R of a plan is S, and T for hidden states. samples: with plans that draw."""
    target = get_target(arch)
    builder = _Builder(target, directory)
    entries = {}
    for name in shapes:
        entry, _, sizes = name.partition("@")
        tokens, sequences, blocks = (int(n) for n in sizes.split("x"))
        rows = tokens if entry == "embed" else sequences
        entries[name] = builder.plan(entry, tokens, sequences, blocks, rows)
        if samples and entry != "embed":
            entries[f"sample@{rows}"] = builder.sample(rows)
    arrays = weights()
    save_file(arrays, directory / "weights.safetensors")
    total = sum(a.nbytes for a in arrays.values())
    manifest = Manifest(
        pumice="0",
        target={"name": target.name, "api": target.api, "arch": target.arch, "features": []},
        model=ModelInfo(
            "toy", "toy", VOCABULARY, CONTEXT, sum(a.size for a in arrays.values()), total, total,
            "none",
        ),
        cache=CacheSpec(1, BLOCK, (BLOCK, 1, WIDTH), (BLOCK, 1, WIDTH)),
        entries=entries,
        kernels=tuple(builder.records.values()),
        weights=tuple(
            WeightRecord(name, a.dtype.name, a.shape, 1.0 if name == "norm" else None)
            for name, a in arrays.items()
        ),
    )  # fmt: skip
    manifest.save(directory / "manifest.json")
    return manifest


def reference(prompt: Sequence[int], matrix: str = "head") -> np.ndarray:
    """The result of every position of a sequence alone, float64 [tokens, width]."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    x = w["embedding"][np.asarray(prompt)]
    h = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * w["norm"]
    angle = np.arange(len(x))[:, None] * w["inv_freq"]
    first, second = h[:, : WIDTH // 2], h[:, WIDTH // 2 :]
    cos, sin = np.cos(angle), np.sin(angle)
    q = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)
    scores = q @ q.T / np.sqrt(WIDTH)
    scores[np.triu_indices(len(x), 1)] = -np.inf
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray((p / p.sum(axis=1, keepdims=True)) @ x @ w[matrix].T)


def batch(
    parts: Sequence[tuple[Sequence[int], int, Sequence[int]]], rows: Sequence[int] | None = None
) -> StepBatch:
    """parts: (new tokens, position of the first, blocks) of each sequence. rows: default, the last
    of each."""
    tokens, positions, slots, start, lengths, last = [], [], [], [0], [], []
    table = np.zeros((len(parts), max(len(blocks) for _, _, blocks in parts)), np.int32)
    for index, (new, first, blocks) in enumerate(parts):
        where = range(first, first + len(new))
        tokens += list(new)
        positions += list(where)
        slots += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in where]
        start.append(len(tokens))
        lengths.append(first + len(new))
        last.append(len(tokens) - 1)
        table[index, : len(blocks)] = blocks

    def ints(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.int32)

    return StepBatch(
        ints(tokens), ints(positions), ints(slots), ints(start), ints(lengths), table,
        ints(last if rows is None else rows),
    )  # fmt: skip


def loaded(directory: Path, device: str = CARD, **options: object) -> GpuExecutor:
    executor = load(directory, device=device, **options)  # type: ignore[arg-type]
    assert isinstance(executor, GpuExecutor)
    return executor


def altered(artifact: Path, folder: Path, **changes: object) -> Path:
    """The artifact with another manifest."""
    for file in artifact.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    manifest = Manifest.load(artifact / "manifest.json")
    replace(manifest, **changes).save(folder / "manifest.json")  # type: ignore[arg-type]
    return folder
