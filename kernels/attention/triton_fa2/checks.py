"""Which tensors the kernels take."""

from __future__ import annotations

import torch

from kernels.registry import UnsupportedCase

MAX_ROW_STRIDE = 1 << 23  # a tile's offsets are 32-bit: 256 rows of this stride stay below 2**31
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def too_far(x: torch.Tensor) -> bool:
    """Whether the rows lie further apart than a tile's offsets reach."""
    return x.stride(-2) >= MAX_ROW_STRIDE


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise UnsupportedCase if the tensors do not belong together or the kernels cannot take them."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.dim() != 4:
        raise UnsupportedCase(f"triton_fa2 got {shapes}: q, k and v must be (batch, heads, seqlen, head_dim).")
    dtypes, devices = {q.dtype, k.dtype, v.dtype}, {q.device, k.device, v.device}
    problems = (
        (k.shape != v.shape, "k and v must have the same shape"),
        (q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1], "q and k must agree in batch and head_dim"),
        (not k.shape[1] or bool(q.shape[1] % max(1, k.shape[1])), "num_heads must be a multiple of num_kv_heads"),
        (not 0 < q.shape[-1] <= 256, "head_dim must be 1 to 256"),
        (len(dtypes) > 1 or q.dtype not in DTYPES, f"one dtype of {', '.join(map(str, DTYPES))}, not {dtypes}"),
        (len(devices) > 1, f"q, k and v must be on one device, not {devices}"),
        (any(map(too_far, (q, k, v))), f"a row stride must be below {MAX_ROW_STRIDE} elements; call .contiguous()"),
    )
    problem = next((text for failed, text in problems if failed), None)
    if problem:
        raise UnsupportedCase(f"triton_fa2 got {shapes}: {problem}.")
