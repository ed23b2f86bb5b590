"""TF32 in matrix products on tensor cores, allowed or not for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def products(*, allowed: bool) -> Iterator[None]:
    """Within this block float32 products may be rounded to TF32, or may not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
