"""A context that allows or forbids TF32 in matrix products; --against runs this with kernels that may have none."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def products(*, allowed: bool) -> Iterator[None]:
    """Allow float32 products to be rounded to TF32 within this block, or do not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
