"""What the environment decides, in one object: nothing else reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pumice.errors import UsageError

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Settings:
    """cache_dir: downloads and compiled artifacts, safe to delete. state_dir: the chat's history.

    color: None leaves it to what the output is (a terminal or not). library_homes: of CUDA and
    ROCm, below which vendors' libraries are looked for first.
    """

    cache_dir: Path
    state_dir: Path
    color: bool | None = None
    library_homes: tuple[Path, ...] = ()

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """PUMICE_CACHE, else XDG_CACHE_HOME/pumice, else ~/.cache/pumice; the same for
        XDG_STATE_HOME.

        NO_COLOR (https://no-color.org) turns colours off, FORCE_COLOR on. CUDA_HOME, CUDA_PATH,
        ROCM_PATH: library_homes.
        """
        env = os.environ if environment is None else environment
        color = None
        if env.get("NO_COLOR"):
            color = False
        elif env.get("FORCE_COLOR"):
            color = True
        own = env.get("PUMICE_CACHE")
        cache = _absolute("PUMICE_CACHE", own) if own else _xdg(env, "XDG_CACHE_HOME", ".cache")
        homes = [env.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH")]
        return Settings(
            cache,
            _xdg(env, "XDG_STATE_HOME", ".local/state"),
            color,
            tuple(Path(home) for home in dict.fromkeys(homes) if home),
        )


def keep_triton_cache(cache_dir: Path) -> None:
    """Has Triton keep compiled kernels in `triton` below the cache of this process, and of those
    that it starts, unless TRITON_CACHE_DIR says where.
    """
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_dir / "triton"))


def _xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    """The base directory specification: a relative value is ignored."""
    value = env.get(name, "")
    if value and Path(value).is_absolute():
        return Path(value) / "pumice"
    home = env.get("HOME")
    base = Path(home) if home else _home()
    return base / default / "pumice"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            "there is no home directory to keep the cache in", hint="Set PUMICE_CACHE."
        ) from None


def _absolute(name: str, value: str) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise UsageError(f"{name} is {value!r}; it must be an absolute path")
    return path
