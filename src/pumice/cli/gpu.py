"""Finds the GPU that PyTorch sees, or says what is missing."""

from __future__ import annotations

from typing import Any

from pumice.errors import DeviceError, UsageError


def require_gpu() -> Any:
    """The first GPU's target. UsageError without PyTorch or Triton, DeviceError without a GPU."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"GPU operators are measured through PyTorch and Triton; {error.name} is missing",
            hint="pip install 'pumice[gpu]' torch",
        ) from None
    if not torch.cuda.is_available():
        raise DeviceError(
            f"PyTorch {torch.__version__} sees no ROCm or CUDA GPU on this machine",
            hint="`pumice doctor` shows the devices that are there. A CPU-only PyTorch wheel sees "
            "no GPU, either.",
        )
    from pumice.torch.launch import architecture_of

    return architecture_of(0)
