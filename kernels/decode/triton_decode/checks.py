"""What can be computed, and the sentence for what cannot."""

from __future__ import annotations

import os

import torch

from kernels.registry import UnsupportedCase

MAX_SEQLEN_Q = 16
MAX_HEAD_DIM = 256
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("NHD", "HND")
MAX_LATENT_DIM = 512
ROPE_DIMS = (16, 32, 64, 128)
_OFFSETS = 1 << 31


def require(holds: bool, sentence: str) -> None:
    """Raise UnsupportedCase with the sentence unless it holds."""
    if not holds:
        raise UnsupportedCase(sentence)


def check_tensors(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Refuse a query and a cache of keys and values that do not go together."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        require(x.dim() == 4, f"{name} has {x.dim()} dimensions; decode takes 4, as its docstring names them.")
    _check_query(q, k_cache)
    require(v_cache.device == q.device, f"v_cache is on {v_cache.device}, q on {q.device}; they must be on one device.")
    require(k_cache.dtype == v_cache.dtype, f"k_cache is {k_cache.dtype}, v_cache {v_cache.dtype}; they must agree.")
    eight_bit = k_cache.dtype == torch.float8_e4m3fn and q.dtype != torch.float32
    require(
        k_cache.dtype == q.dtype or eight_bit,
        f"A cache of {k_cache.dtype} does not go with q of {q.dtype}; it may be of q's dtype, or torch.float8_e4m3fn "
        "if q has 16 bits.",
    )
    require(
        k_cache.shape[:3] == v_cache.shape[:3],
        f"k_cache {tuple(k_cache.shape)} and v_cache {tuple(v_cache.shape)} may differ in the last dimension alone.",
    )
    require(
        k_cache.shape[3] == q.shape[3], f"q has head_dim {q.shape[3]}, k_cache {k_cache.shape[3]}; they must agree."
    )
    largest = max(q.shape[3], v_cache.shape[3])
    require(0 < largest <= MAX_HEAD_DIM, f"decode does not support head_dim {largest} (up to {MAX_HEAD_DIM}).")


def _check_query(q: torch.Tensor, cache: torch.Tensor) -> None:
    for name, x in (("q", q), ("the cache", cache)):
        require(x.device == q.device, f"{name} is on {x.device}, q on {q.device}; they must be on one device.")
        require(
            not (x.requires_grad and torch.is_grad_enabled()),
            f"{name} requires a gradient, which decoding does not have; call it under torch.no_grad().",
        )
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    require(q.dtype in DTYPES, f"q is {q.dtype}; decode takes {names}.")
    require(
        1 <= q.shape[2] <= MAX_SEQLEN_Q,
        f"decode takes 1 to {MAX_SEQLEN_Q} query tokens, not {q.shape[2]}; use kernels.attention for more.",
    )
    require(q.shape[0] > 0 and q.shape[1] > 0, "q holds no sequence or no head.")
    require(q.stride(3) == 1 or q.shape[3] == 1, "The last dimension of q must be contiguous; call q.contiguous().")


def check_latents(q: torch.Tensor, kv_cache: torch.Tensor, latent_dim: int) -> None:
    """Refuse an absorbed query and a cache of latents that do not go together."""
    require(kv_cache.dim() == 3, f"kv_cache has {kv_cache.dim()} dimensions; mla_decode takes 3: its heads share it.")
    require(q.dim() == 4, f"q has {q.dim()} dimensions; mla_decode takes 4, as its docstring names them.")
    _check_query(q, kv_cache)
    require(kv_cache.dtype == q.dtype, f"kv_cache is {kv_cache.dtype}, q {q.dtype}; they must agree.")
    require(kv_cache.shape[2] == q.shape[3], f"q has {q.shape[3]} dimensions a head, kv_cache {kv_cache.shape[2]}.")
    rope_dim = q.shape[3] - latent_dim
    require(
        0 < latent_dim <= MAX_LATENT_DIM and rope_dim in ROPE_DIMS,
        f"mla_decode does not support {latent_dim} latent and {rope_dim} rotary dimensions; possible are up to "
        f"{MAX_LATENT_DIM}, and {', '.join(map(str, ROPE_DIMS))}.",
    )


def check_sharing(num_heads: int, num_kv_heads: int) -> None:
    """Refuse query heads that cannot share the key heads evenly."""
    require(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        f"{num_heads} query heads cannot share {num_kv_heads} key heads evenly; q's heads must be a multiple.",
    )


def check_lengths(q: torch.Tensor, cache_seqlens: torch.Tensor | None, page_table: torch.Tensor | None) -> None:
    """Refuse lengths or a page table of another shape, dtype or device than the kernels read."""
    if page_table is not None:
        _check_integers("page_table", page_table, (q.shape[0], None), q.device)
    if cache_seqlens is not None:
        _check_integers("cache_seqlens", cache_seqlens, (q.shape[0],), q.device)


def check_spacing(name: str, stride: int, capacity: int) -> None:
    """Refuse keys so many, or so far apart, that 32-bit positions and offsets within a block do not reach them."""
    require(capacity < _OFFSETS, f"{name} has room for {capacity} keys a sequence; up to {_OFFSETS - 1} are possible.")
    require(
        256 * stride < _OFFSETS,
        f"The keys of {name} lie {stride} elements apart; up to {_OFFSETS // 256 - 1} are possible.",
    )


def check_device(q: torch.Tensor) -> None:
    """Refuse devices that the kernels do not run on."""
    if q.device.type == "cuda":
        capability = torch.cuda.get_device_capability(q.device)
        require(capability >= (8, 0), f"decode needs compute capability 8.0, this device has {capability}.")
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise UnsupportedCase(
            "decode runs on the CPU only in Triton's interpreter: set TRITON_INTERPRET=1 before Python starts."
        )
    require(
        q.dtype != torch.bfloat16,
        "Triton's interpreter multiplies bfloat16 wrongly (triton issue 11584); on the CPU, decode takes float16 and "
        "float32.",
    )


def _check_integers(name: str, x: torch.Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    wanted = "(" + ", ".join("pages" if size is None else str(size) for size in shape) + ")"
    fits = x.dim() == len(shape) and all(size in (None, given) for size, given in zip(shape, x.shape, strict=False))
    require(fits, f"{name} has shape {tuple(x.shape)}; decode needs {wanted}.")
    require(x.dtype == torch.int32, f"{name} is {x.dtype}; decode needs torch.int32.")
    require(x.device == device, f"{name} is on {x.device}, q on {device}; they must be on one device.")
    require(x.stride(-1) == 1 or x.shape[-1] <= 1, f"The last dimension of {name} must be contiguous.")


def scale_strides(
    name: str, scale: torch.Tensor | None, cache: torch.Tensor, shape: tuple[int, int]
) -> tuple[int, int]:
    """Return the strides of an e4m3 cache's factors over sequences and key heads; 0, 0 for none."""
    if cache.dtype != torch.float8_e4m3fn:
        require(scale is None, f"{name} is for caches of torch.float8_e4m3fn; this one is {cache.dtype}.")
        return 0, 0
    if scale is None:
        return 0, 0
    require(scale.dtype == torch.float32, f"{name} is {scale.dtype}; decode needs torch.float32.")
    require(scale.device == cache.device, f"{name} is on {scale.device}, the cache on {cache.device}.")
    require(
        scale.shape in ((), shape[1:], shape),
        f"{name} has shape {tuple(scale.shape)}; possible are (), {shape[1:]} and {shape}.",
    )
    strides = scale.expand(shape).stride()
    return strides[0], strides[1]
