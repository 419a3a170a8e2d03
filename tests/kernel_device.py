"""Where tests of kernels run: on a GPU, or in Triton's interpreter. Without Triton, whoever imports this is skipped."""

import os
from typing import Any

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="the kernels are Triton's, which comes with torch for GPUs")

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
"""What layers are computed in; the interpreter has no products in bf16."""


class Nothing:
    """A kernel that does nothing."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **sizes: None
