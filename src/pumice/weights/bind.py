"""A model's parameters from a file: names and shapes are checked first, values come one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pumice.errors import ModelFileError, WeightMismatchError
from pumice.models import get_gguf_model, get_model
from pumice.models.config import ModelConfig
from pumice.models.parameters import EMBEDDING, LM_HEAD
from pumice.models.record import ROPE_FACTORS, ModelRecord, SourceRule, unpermute
from pumice.quantization import AffineWeight, QuantFormat, get_format
from pumice.weights.source import Loaded, WeightSource

_SHOWN = 8  # names that a message lists of each kind


def identify(source: WeightSource) -> tuple[ModelRecord, ModelConfig]:
    """The architecture and the config of an open file.

    UnsupportedError for an architecture or a setting that is not known.
    """
    if source.kind == "gguf":
        architecture = source.config.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelFileError(f"{source.path}: GGUF metadata has no general.architecture")
        record = get_gguf_model(architecture)
        return record, record.config_from_gguf(source.config, source.names())
    model_type = source.config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelFileError(f"{source.path}: config.json has no model_type")
    record = get_model(model_type)
    return record, record.config_from_hf(source.config)


@dataclass(frozen=True)
class BoundWeights:
    """Parameters by the graph's names. Iterating gives (name, format, value), one at a time.

    shapes: logical shapes. formats: what `load` will give, known without reading data.
    """

    source: WeightSource
    shapes: dict[str, tuple[int, ...]]
    formats: dict[str, QuantFormat]
    rules: dict[str, SourceRule] = field(repr=False)
    constants: dict[str, np.ndarray] = field(repr=False)

    def load(self, name: str) -> Loaded:
        """A parameter: an AffineWeight [N, K] or a dense array of its logical shape."""
        if name in self.constants:
            return self.formats[name], self.constants[name]
        rule = self.rules[name]
        fmt, value = self.source.affine_or_dense(rule.name)
        self._check_finite(rule.name, value)
        heads = rule.unpermute_heads
        if heads and isinstance(value, AffineWeight):
            mins = None if value.mins is None else unpermute(value.mins, heads)
            codes, scales = unpermute(value.codes, heads), unpermute(value.scales, heads)
            value = AffineWeight(codes, scales, mins)
        elif heads:
            assert isinstance(value, np.ndarray)
            value = unpermute(value, heads)
        return fmt, value

    def _check_finite(self, name: str, value: AffineWeight | np.ndarray) -> None:
        """ModelFileError names a tensor that holds NaN or infinity, and where."""
        parts = [value] if isinstance(value, np.ndarray) else [value.scales, value.mins]
        for part in parts:
            if part is None or all(_finite(rows) for rows in _runs(part)):
                continue
            flat = np.asarray(part).reshape(-1)
            bad = np.flatnonzero(~np.isfinite(flat.astype(np.float32)))
            what = "" if part is value else " among its scales"
            raise ModelFileError(
                f"{self.source.path}: tensor {name!r} holds {bad.size:,} values that are NaN or "
                f"infinite{what}, the first at {int(bad[0]):,} of {flat.size:,}",
                hint="The file is damaged, or a training diverged: fetch it again.",
            )

    def release(self, name: str) -> None:
        """The file's pages of this parameter need not stay in memory."""
        if name in self.rules:
            self.source.release(self.rules[name].name)

    def __iter__(self) -> Iterator[tuple[str, QuantFormat, AffineWeight | np.ndarray]]:
        for name in self.shapes:
            yield (name, *self.load(name))
            self.release(name)


def bind(record: ModelRecord, config: ModelConfig, source: WeightSource) -> BoundWeights:
    """Checks a file's tensors against the model and says where each parameter comes from.

    WeightMismatchError lists every tensor that is missing, extra or misshapen.
    """
    kind = "gguf" if source.kind == "gguf" else "hf"
    shapes, rules = record.parameters(config), record.weight_map(config, kind)
    names = set(source.names())
    _check(record, config, source, kind, shapes, rules, names)
    factors = None
    if kind == "gguf" and ROPE_FACTORS in names:
        _, value = source.affine_or_dense(ROPE_FACTORS)
        assert isinstance(value, np.ndarray)
        factors = value
    constants = record.constants(config, factors)
    formats = {name: source.format(rule.name) for name, rule in rules.items()}
    for name, shape in shapes.items():
        if len(shape) == 1 and name in formats and formats[name].affine:
            raise ModelFileError(
                f"{source.path}: tensor {rules[name].name!r} is {formats[name].name}; a vector "
                "must be f32, f16 or bf16"
            )
    formats |= {name: get_format("f32") for name in constants}
    return BoundWeights(source, shapes, formats, rules, constants)


def _check(
    record: ModelRecord,
    config: ModelConfig,
    source: WeightSource,
    kind: str,
    shapes: dict[str, tuple[int, ...]],
    rules: dict[str, SourceRule],
    names: set[str],
) -> None:
    wanted = {rule.name: shapes[name] for name, rule in rules.items()}
    if kind == "gguf" and ROPE_FACTORS in names:
        wanted[ROPE_FACTORS] = (config.rope.dim // 2,)
    missing = [name for name in wanted if name not in names]
    known = [re.compile(pattern) for pattern in record.known_extra(kind)]
    extra = [
        name
        for name in sorted(names - set(wanted))
        if not any(pattern.fullmatch(name) for pattern in known)
    ]
    if config.tie_word_embeddings and LM_HEAD in extra and _same(source, LM_HEAD, EMBEDDING):
        extra.remove(LM_HEAD)
    misshapen = [
        f"{name} is {_shape(source.shape(name))}, expected {_shape(shape)}"
        for name, shape in wanted.items()
        if name in names and tuple(source.shape(name)) != shape
    ]
    kinds = (("missing", missing), ("extra", extra), ("misshapen", misshapen))
    if any(found for _, found in kinds):
        listed = "; ".join(f"{len(f)} {what}: {_listed(f)}" for what, f in kinds if f)
        raise WeightMismatchError(
            f"{source.path}: the tensors are not those of a {config.model_type} model of "
            f"{config.num_hidden_layers} layers: {listed}",
            hint="The file and its settings belong to different models, or the file is incomplete.",
        )


def _same(source: WeightSource, a: str, b: str) -> bool:
    """Whether two tensors hold the same: a checkpoint may store tied embeddings twice."""
    if source.shape(a) != source.shape(b) or source.format(a) != source.format(b):
        return False
    (_, x), (_, y) = source.affine_or_dense(a), source.affine_or_dense(b)
    if isinstance(x, AffineWeight) and isinstance(y, AffineWeight):
        if not (np.array_equal(x.codes, y.codes) and np.array_equal(x.scales, y.scales)):
            return False
        return x.mins is None or (y.mins is not None and np.array_equal(x.mins, y.mins))
    return (
        isinstance(x, np.ndarray)
        and isinstance(y, np.ndarray)
        and np.array_equal(x.view(np.uint8), y.view(np.uint8))
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in shape) or "a scalar"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _runs(array: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of an array, a few million values at a time."""
    rows = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
    step = max(1, (1 << 22) // max(1, rows.shape[1]))
    return (rows[start : start + step] for start in range(0, len(rows), step))


def _finite(rows: np.ndarray) -> bool:
    # A sum is finite when all its parts are, but for an overflow: then look at each.
    with np.errstate(all="ignore"):
        total = rows.sum(dtype=np.float32)
    return bool(np.isfinite(total)) or bool(np.isfinite(rows.astype(np.float32)).all())
