"""Rotary frequencies: the plain ones (Su et al., arXiv:2104.09864) and their scalings.

linear  positions divided by a factor (Chen et al., arXiv:2306.15595)
llama3  low frequencies divided by a factor, high ones kept, a ramp between (Llama 3.1's model card)
yarn    the same, the ramp over dimensions, attention sharpened (Peng et al., arXiv:2309.00071)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pumice.errors import ModelFileError, UnsupportedError

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """theta: the base of the wavelengths. dim: how many of a head's values are rotated, in halves.

    factor, original_context: of every scaling but "default".
    attention_factor None: from `factor`, as the yarn paper has it.
    """

    theta: float
    dim: int
    kind: str = "default"
    factor: float = 1.0
    original_context: int | None = None
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    truncate: bool = True  # yarn: the ramp begins and ends at whole dimensions

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnsupportedError(
                f"rope scaling {self.kind!r} is not supported; known: {', '.join(KINDS)}"
            )
        if not self.theta > 1:
            raise ModelFileError(f"the rope base is {self.theta}; it must be larger than 1")
        if not self.factor > 0:
            raise ModelFileError(f"the rope scaling factor is {self.factor}; it must be positive")
        if self.kind in ("llama3", "yarn") and not (self.original_context or 0) > 0:
            raise ModelFileError(
                f"rope scaling {self.kind!r} needs original_max_position_embeddings, "
                f"which is {self.original_context}"
            )
        if self.kind == "llama3" and not self.high_freq_factor > self.low_freq_factor:
            raise ModelFileError(
                f"rope scaling 'llama3' has high_freq_factor {self.high_freq_factor}, which must "
                f"be larger than low_freq_factor {self.low_freq_factor}"
            )

    @property
    def mscale(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return yarn_mscale(self.factor)

    def inv_freq(self) -> np.ndarray:
        """Radians a position, float32[dim/2], in the float32 steps that checkpoints know."""
        exponent = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        periods = np.power(self.theta, exponent.astype(np.float64)).astype(np.float32)
        plain: np.ndarray = np.float32(1) / periods
        if self.kind == "linear":
            plain /= np.float32(self.factor)
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(plain, periods)
        return plain

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        assert self.original_context is not None
        length, low, high = self.original_context, self.low_freq_factor, self.high_freq_factor
        wavelength = np.float32(2 * math.pi) / plain
        scaled = plain / np.float32(self.factor)
        smooth = (np.float32(length) / wavelength - np.float32(low)) / np.float32(high - low)
        between = (1 - smooth) * scaled + smooth * plain
        out = np.where(wavelength > length / low, scaled, plain)
        medium = (wavelength >= length / high) & (wavelength <= length / low)
        result: np.ndarray = np.where(medium, between, out).astype(np.float32)
        return result

    def _yarn(self, plain: np.ndarray, periods: np.ndarray) -> np.ndarray:
        assert self.original_context is not None

        def dimension(rotations: float) -> float:
            """The dimension that turns so many times over the original context."""
            assert self.original_context is not None
            turns = self.original_context / (rotations * 2 * math.pi)
            return self.dim * math.log(turns) / (2 * math.log(self.theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        if low == high:
            high += 0.001
        index = np.arange(self.dim // 2, dtype=np.float32)
        ramp = np.clip((index - np.float32(low)) / np.float32(high - low), 0, 1)
        kept = 1 - ramp
        scaled = np.float32(1) / (np.float32(self.factor) * periods)
        result: np.ndarray = (scaled * (1 - kept) + plain * kept).astype(np.float32)
        return result


def yarn_mscale(factor: float, multiplier: float = 1.0) -> float:
    """0.1·multiplier·ln(factor) + 1, which the yarn paper multiplies cosine and sine by."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0
