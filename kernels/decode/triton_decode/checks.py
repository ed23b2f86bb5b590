"""What can be computed, and the sentence for what cannot: from the tensors of a call to a Request."""

from __future__ import annotations

import os

import torch

from kernels.decode.triton_decode import DTYPES, LAYOUTS, MAX_HEAD_DIM, MAX_SEQLEN_Q
from kernels.decode.triton_decode.plan import Request
from kernels.registry import UnsupportedCase

_OFFSETS = 1 << 31
MAX_LATENT_DIM = 512
ROPE_DIMS = (16, 32, 64, 128)


def request_of(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor | None,
    page_table: torch.Tensor | None,
    kv_layout: str,
    softmax_scale: float | None,
    causal: bool,
    window_size: int | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    *,
    check_device: bool = True,
) -> Request:
    """The request of a call of `decode`. Raises UnsupportedCase with what was given and what is possible."""
    _check_tensors(q, k_cache, v_cache)
    if check_device:
        _check_device(q)
    batch, num_heads, seqlen_q, head_dim = q.shape
    if page_table is None:
        num_kv_heads, capacity, page = k_cache.shape[1], k_cache.shape[2], 0
        order = (0, 1, 2, 3)
        _check(k_cache.shape[0] == batch, f"The cache holds {k_cache.shape[0]} sequences, q {batch}; they must agree.")
    else:
        _check(kv_layout in LAYOUTS, f"Unknown kv_layout {kv_layout!r}. Available: {', '.join(LAYOUTS)}.")
        order = (0, 2, 1, 3) if kv_layout == "NHD" else (0, 1, 2, 3)
        num_kv_heads, page = k_cache.shape[order[1]], k_cache.shape[order[2]]
        _check_integers("page_table", page_table, (batch, None), q.device)
        _check(page > 0, "The pages of k_cache hold no keys.")
        capacity = page_table.shape[1] * page
    _check(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        f"{num_heads} query heads cannot share {num_kv_heads} key heads evenly; q's heads must be a multiple.",
    )
    if cache_seqlens is not None:
        _check_integers("cache_seqlens", cache_seqlens, (batch,), q.device)
    _check(
        capacity < _OFFSETS, f"The cache has room for {capacity} keys a sequence; up to {_OFFSETS - 1} are possible."
    )
    strides = [(*(x.stride(dim) for dim in order),) for x in (k_cache, v_cache)]
    for name, (_, _, stride, _) in zip(("k_cache", "v_cache"), strides, strict=True):
        _check_spacing(name, stride, capacity)
    scales = [
        _scale_strides(name, x, k_cache, (batch, num_kv_heads))
        for name, x in (("k_scale", k_scale), ("v_scale", v_scale))
    ]
    return Request(
        dtype=q.dtype,
        cache_dtype=k_cache.dtype,
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        seqlen_q=seqlen_q,
        capacity=capacity,
        page=page,
        head_dim=head_dim,
        head_dim_v=v_cache.shape[3],
        ragged=cache_seqlens is not None,
        causal=causal,
        window_size=window_size or 0,
        softmax_scale=head_dim**-0.5 if softmax_scale is None else softmax_scale,
        strides=(
            *q.stride()[:3],
            *strides[0],
            *strides[1],
            page_table.stride(0) if page_table is not None else 0,
            *scales[0],
            *scales[1],
        ),  # fmt: skip
        scaled=(k_scale is not None, v_scale is not None),
        rope_dim=0,
        pairs=strides[1][3] == 1 and v_cache.shape[3] % 2 == 0 and not any(x % 2 for x in strides[1][:3]),
        device=q.device,
    )


def latent_request_of(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    latent_dim: int,
    cache_seqlens: torch.Tensor | None,
    page_table: torch.Tensor | None,
    softmax_scale: float,
    causal: bool,
    *,
    check_device: bool = True,
) -> Request:
    """The request of a call of `mla_decode`. Raises UnsupportedCase with what was given and what is possible."""
    _check(kv_cache.dim() == 3, f"kv_cache has {kv_cache.dim()} dimensions; mla_decode takes 3: its heads share it.")
    _check(q.dim() == 4, f"q has {q.dim()} dimensions; mla_decode takes 4, as its docstring names them.")
    if check_device:
        _check_device(q)
    batch, num_heads, seqlen_q, head_dim = q.shape
    _check_query(q, kv_cache)
    _check(kv_cache.dtype == q.dtype, f"kv_cache is {kv_cache.dtype}, q {q.dtype}; they must agree.")
    _check(kv_cache.shape[2] == head_dim, f"q has {head_dim} dimensions a head, kv_cache {kv_cache.shape[2]}.")
    rope_dim = head_dim - latent_dim
    _check(
        0 < latent_dim <= MAX_LATENT_DIM and rope_dim in ROPE_DIMS,
        f"mla_decode does not support {latent_dim} latent and {rope_dim} rotary dimensions; possible are up to "
        f"{MAX_LATENT_DIM}, and {', '.join(map(str, ROPE_DIMS))}.",
    )
    page = 0
    capacity = kv_cache.shape[1]
    if page_table is None:
        _check(kv_cache.shape[0] == batch, f"The cache holds {kv_cache.shape[0]} sequences, q {batch}.")
    else:
        page = kv_cache.shape[1]
        _check_integers("page_table", page_table, (batch, None), q.device)
        _check(page > 0, "The pages of kv_cache hold no keys.")
        capacity = page_table.shape[1] * page
    if cache_seqlens is not None:
        _check_integers("cache_seqlens", cache_seqlens, (batch,), q.device)
    sequence, key, dim = kv_cache.stride()
    _check_spacing("kv_cache", key, capacity)
    strides = (sequence, 0, key, dim)
    return Request(
        dtype=q.dtype,
        cache_dtype=kv_cache.dtype,
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=1,
        seqlen_q=seqlen_q,
        capacity=capacity,
        page=page,
        head_dim=latent_dim,
        head_dim_v=latent_dim,
        ragged=cache_seqlens is not None,
        causal=causal,
        window_size=0,
        softmax_scale=softmax_scale,
        strides=(
            *q.stride()[:3],
            *strides,
            *strides,
            page_table.stride(0) if page_table is not None else 0,
            0,
            0,
            0,
            0,
        ),
        scaled=(False, False),
        rope_dim=rope_dim,
        pairs=False,
        device=q.device,
    )


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise UnsupportedCase(sentence)


def _check_tensors(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check(x.dim() == 4, f"{name} has {x.dim()} dimensions; decode takes 4, as its docstring names them.")
    _check_query(q, k_cache)
    _check(v_cache.device == q.device, f"v_cache is on {v_cache.device}, q on {q.device}; they must be on one device.")
    _check(k_cache.dtype == v_cache.dtype, f"k_cache is {k_cache.dtype}, v_cache {v_cache.dtype}; they must agree.")
    eight_bit = k_cache.dtype == torch.float8_e4m3fn and q.dtype != torch.float32
    _check(
        k_cache.dtype == q.dtype or eight_bit,
        f"A cache of {k_cache.dtype} does not go with q of {q.dtype}; it may be of q's dtype, or torch.float8_e4m3fn "
        "if q has 16 bits.",
    )
    _check(
        k_cache.shape[:3] == v_cache.shape[:3],
        f"k_cache {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)} may differ in the last dimension alone.",
    )
    _check(k_cache.shape[3] == q.shape[3], f"q has head_dim {q.shape[3]}, k_cache {k_cache.shape[3]}; they must agree.")
    largest = max(q.shape[3], v_cache.shape[3])
    _check(0 < largest <= MAX_HEAD_DIM, f"decode does not support head_dim {largest} (up to {MAX_HEAD_DIM}).")


def _check_query(q: torch.Tensor, cache: torch.Tensor) -> None:
    for name, x in (("q", q), ("the cache", cache)):
        _check(x.device == q.device, f"{name} is on {x.device}, q on {q.device}; they must be on one device.")
        _check(
            not (x.requires_grad and torch.is_grad_enabled()),
            f"{name} requires a gradient, which decoding does not have; call it under torch.no_grad().",
        )
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    _check(q.dtype in DTYPES, f"q is {q.dtype}; decode takes {names}.")
    _check(
        1 <= q.shape[2] <= MAX_SEQLEN_Q,
        f"decode takes 1 to {MAX_SEQLEN_Q} query tokens, not {q.shape[2]}; use kernels.attention for more.",
    )
    _check(q.shape[0] > 0 and q.shape[1] > 0, "q holds no sequence or no head.")
    _check(q.stride(3) == 1 or q.shape[3] == 1, "The last dimension of q must be contiguous; call q.contiguous().")


def _check_spacing(name: str, stride: int, capacity: int) -> None:
    _check(capacity < _OFFSETS, f"{name} has room for {capacity} keys a sequence; up to {_OFFSETS - 1} are possible.")
    _check(
        256 * stride < _OFFSETS,
        f"The keys of {name} lie {stride} elements apart; up to {_OFFSETS // 256 - 1} are possible.",
    )


def _check_device(q: torch.Tensor) -> None:
    if q.device.type == "cuda":
        capability = torch.cuda.get_device_capability(q.device)
        _check(capability >= (8, 0), f"decode needs compute capability 8.0, this device has {capability}.")
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise UnsupportedCase(
            "decode runs on the CPU only in Triton's interpreter: set TRITON_INTERPRET=1 before Python starts."
        )
    _check(
        q.dtype != torch.bfloat16,
        "Triton's interpreter multiplies bfloat16 wrongly (triton issue 11584); on the CPU, decode takes float16 and "
        "float32.",
    )


def _check_integers(name: str, x: torch.Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    wanted = "(" + ", ".join("pages" if size is None else str(size) for size in shape) + ")"
    fits = x.dim() == len(shape) and all(size in (None, given) for size, given in zip(shape, x.shape, strict=False))
    _check(fits, f"{name} has shape {tuple(x.shape)}; decode needs {wanted}.")
    _check(x.dtype == torch.int32, f"{name} is {x.dtype}; decode needs torch.int32.")
    _check(x.device == device, f"{name} is on {x.device}, q on {device}; they must be on one device.")
    _check(x.stride(-1) == 1 or x.shape[-1] <= 1, f"The last dimension of {name} must be contiguous.")


def _scale_strides(
    name: str, scale: torch.Tensor | None, cache: torch.Tensor, shape: tuple[int, int]
) -> tuple[int, int]:
    """Strides over sequences and key heads."""
    if cache.dtype != torch.float8_e4m3fn:
        _check(scale is None, f"{name} is for caches of torch.float8_e4m3fn; this one is {cache.dtype}.")
        return 0, 0
    if scale is None:
        return 0, 0
    _check(scale.dtype == torch.float32, f"{name} is {scale.dtype}; decode needs torch.float32.")
    _check(scale.device == cache.device, f"{name} is on {scale.device}, the cache on {cache.device}.")
    _check(
        scale.shape in ((), shape[1:], shape),
        f"{name} has shape {tuple(scale.shape)}; possible are (), {shape[1:]} and {shape}.",
    )
    strides = scale.expand(shape).stride()
    return strides[0], strides[1]
