"""How the tokens of one request are chosen, and when they end: validated once, then read only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.engine.grammar import Grammar
from pumice.errors import UsageError

MAX_SEED = 2**63 - 1  # as in JSON's signed 64-bit integers
MAX_TOP_LOGPROBS = 20
GREEDY_BELOW = 1e-5  # a temperature under this is greedy: 1 / temperature would leave float32


@dataclass(frozen=True)
class SamplingParams:
    """
    temperature: 0 (the default) always takes the likeliest token, ties to the lowest id.
    top_k: only the k likeliest; 0 is off. top_p: only the fewest likeliest whose probabilities
    reach p; 1 is off (Holtzman et al., 2020). min_p: only those of at least min_p times the
    likeliest's probability; 0 is off (Nguyen et al., 2024). They apply in this order, after the
    temperature.
    repetition_penalty: logits of tokens in prompt or output are divided by it when positive, else
    multiplied (Keskar et al., 2019); 1 is off. frequency_penalty, presence_penalty: subtracted from
    the logits of output tokens, per occurrence and once (OpenAI's definition); 0 is off.
    logit_bias: token id → what is added to its logit, -100 to 100.
    seed: the same seed gives the same text whatever else runs; None draws one.
    max_tokens: longest output; None goes on until the context is full.
    stop: the text ends before the first of these. stop_token_ids: tokens that end the output,
    beside the model's own. ignore_eos: the model's own do not end it.
    logprobs: report each token's log-probability under the model's unchanged distribution;
    top_logprobs: and that of so many likeliest ones.
    skip_special: control tokens add no text.
    grammar: what the output must look like; only tokens that keep to it are possible.

    UsageError names a value that is not allowed, and what is.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    skip_special: bool = True
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, math.inf)
        _integer("top_k", self.top_k, 0, None, "0 (off) or more")
        _number("top_p", self.top_p, 0, 1, open_low=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, math.inf, open_low=True)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED, f"0 to {MAX_SEED}")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None, "at least 1")
        _integer("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}")
        for name in ("ignore_eos", "logprobs", "skip_special"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        if self.top_logprobs and not self.logprobs:
            raise UsageError(f"top_logprobs is {self.top_logprobs}; it needs logprobs=True")
        if self.grammar is not None:
            if not isinstance(self.grammar, Grammar):
                raise UsageError(f"grammar is a {type(self.grammar).__name__}; allowed: a Grammar")
            if self.ignore_eos:
                raise UsageError("ignore_eos is on; the end of a grammar must end the output")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(
            self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids)
        )
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether no token is drawn at random."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        """Whether the logits depend on the tokens before."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed; UsageError for an unknown field."""
        _known(changes)
        return dataclasses.replace(self, **changes)

    @staticmethod
    def from_model(recommended: Mapping[str, Any], **given: Any) -> SamplingParams:
        """The fields that were given, else what the model's authors recommend, else the defaults.

        recommended: keys of Transformers' generation_config.json; those that are no fields are
        left out, and so is all of it when a value is not allowed: that is the file's mistake.
        """
        _known(given)
        names = {f.name for f in dataclasses.fields(SamplingParams)}
        values = {k: v for k, v in recommended.items() if k in names and v is not None}
        if recommended.get("do_sample") is False:
            values["temperature"] = 0.0
        try:
            base = SamplingParams(**values)
        except UsageError:
            base = SamplingParams()
        return dataclasses.replace(base, **given)


def _known(values: Mapping[str, Any]) -> None:
    names = [f.name for f in dataclasses.fields(SamplingParams)]
    for name in values:
        if name not in names:
            raise UsageError(f"{name!r} is no sampling parameter; there are {', '.join(names)}")


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    above = is_number and (value > low if open_low else value >= low)
    if above and value <= high and math.isfinite(value):
        return
    if high == math.inf:
        allowed = f"a finite number, {'above' if open_low else 'at least'} {low:g}"
    else:
        allowed = f"{'above ' if open_low else ''}{low:g} to {high:g}"
    raise UsageError(f"{name} is {value!r}; allowed: {allowed}")


def _integer(name: str, value: Any, low: int, high: int | None, allowed: str) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and value >= low and (high is None or value <= high):
        return
    raise UsageError(f"{name} is {value!r}; allowed: an integer, {allowed}")


def _stop_strings(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Iterable):
        raise UsageError(f"stop is {stop!r}; allowed: a string or a list of strings")
    strings = tuple(strings)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise UsageError(f"stop holds {string!r}; allowed: strings that are not empty")
    return strings


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise UsageError(f"{name} is {ids!r}; allowed: a list of token ids")
    checked: tuple[int, ...] = tuple(ids)
    for i in checked:
        _integer(f"an entry of {name}", i, 0, None, "0 or more")
    return checked


def _bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise UsageError(f"logit_bias is {bias!r}; allowed: a mapping of token ids to numbers")
    for token, value in bias.items():
        _integer("a token of logit_bias", token, 0, None, "0 or more")
        _number(f"logit_bias[{token}]", value, -100, 100)
    return dict(bias)
