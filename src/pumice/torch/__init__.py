"""The operators for PyTorch: `torch.ops.pumice.*`, `tgemm`, modules, `accelerate`.

import pumice.torch                      # registers torch.ops.pumice.*
from pumice.torch import tgemm
y = tgemm.mm(x, weight, bias, None, None)
"""

from __future__ import annotations

from pumice.torch import operators as operators
from pumice.torch.dispatch import explain as explain
from pumice.torch.gemm import tgemm as tgemm
from pumice.torch.swap import accelerate as accelerate

__all__ = ["accelerate", "explain", "operators", "tgemm"]
