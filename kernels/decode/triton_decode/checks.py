"""Checks of the tensors of a call; each refusal is a sentence."""

import os

import torch

from ...plans import MAX_HEAD_DIM
from ...registry import UnsupportedCase

MAX_SEQLEN_Q = 16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("NHD", "HND")
MAX_LATENT_DIM = 512
ROPE_DIMS = (16, 32, 64, 128)
_DTYPE_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
_OFFSETS = 1 << 31


def require(holds: bool, sentence: str, *values: object) -> None:
    """Raise UnsupportedCase unless `holds`; the sentence is formatted only then, because formatting takes time."""
    if not holds:
        raise UnsupportedCase(sentence.format(*values))


def check_tensors(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Refuse a query and a cache of keys and values that do not fit together."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        require(x.dim() == 4, "{} has {} dimensions; decode takes 4, as its docstring names them.", name, x.dim())
    _check_query(q, k_cache)
    require(
        v_cache.device == q.device, "v_cache is on {}, q on {}; they must be on one device.", v_cache.device, q.device
    )
    require(k_cache.dtype == v_cache.dtype, "k_cache is {}, v_cache {}; they must agree.", k_cache.dtype, v_cache.dtype)
    eight_bit = k_cache.dtype == torch.float8_e4m3fn and q.dtype != torch.float32
    require(
        k_cache.dtype == q.dtype or eight_bit,
        "A cache of {} does not go with q of {}; it may be of q's dtype, or torch.float8_e4m3fn if q has 16 bits.",
        k_cache.dtype,
        q.dtype,
    )
    require(
        k_cache.shape[:3] == v_cache.shape[:3],
        "k_cache {} and v_cache {} may differ in the last dimension alone.",
        tuple(k_cache.shape),
        tuple(v_cache.shape),
    )
    require(
        k_cache.shape[3] == q.shape[3], "q has head_dim {}, k_cache {}; they must agree.", q.shape[3], k_cache.shape[3]
    )
    largest = max(q.shape[3], v_cache.shape[3])
    require(0 < largest <= MAX_HEAD_DIM, "decode does not support head_dim {} (up to {}).", largest, MAX_HEAD_DIM)


def _check_query(q: torch.Tensor, cache: torch.Tensor) -> None:
    for name, x in (("q", q), ("the cache", cache)):
        require(x.device == q.device, "{} is on {}, q on {}; they must be on one device.", name, x.device, q.device)
        require(
            not (x.requires_grad and torch.is_grad_enabled()),
            "{} requires a gradient, which decoding does not have; call it under torch.no_grad().",
            name,
        )
    require(q.dtype in DTYPES, "q is {}; decode takes {}.", q.dtype, _DTYPE_NAMES)
    require(
        1 <= q.shape[2] <= MAX_SEQLEN_Q,
        "decode takes 1 to {} query tokens, not {}; use kernels.attention for more.",
        MAX_SEQLEN_Q,
        q.shape[2],
    )
    require(q.shape[0] > 0 and q.shape[1] > 0, "q holds no sequence or no head.")
    require(q.stride(3) == 1 or q.shape[3] == 1, "The last dimension of q must be contiguous; call q.contiguous().")


def check_latents(q: torch.Tensor, kv_cache: torch.Tensor, latent_dim: int) -> None:
    """Refuse an absorbed query and a cache of latents that do not fit together."""
    require(kv_cache.dim() == 3, "kv_cache has {} dimensions; mla_decode takes 3: its heads share it.", kv_cache.dim())
    require(q.dim() == 4, "q has {} dimensions; mla_decode takes 4, as its docstring names them.", q.dim())
    _check_query(q, kv_cache)
    require(kv_cache.dtype == q.dtype, "kv_cache is {}, q {}; they must agree.", kv_cache.dtype, q.dtype)
    require(kv_cache.shape[2] == q.shape[3], "q has {} dimensions a head, kv_cache {}.", q.shape[3], kv_cache.shape[2])
    rope_dim = q.shape[3] - latent_dim
    require(
        0 < latent_dim <= MAX_LATENT_DIM and rope_dim in ROPE_DIMS,
        "mla_decode does not support {} latent and {} rotary dimensions; possible are up to {}, and {}.",
        latent_dim,
        rope_dim,
        MAX_LATENT_DIM,
        ", ".join(map(str, ROPE_DIMS)),
    )


def check_sharing(num_heads: int, num_kv_heads: int) -> None:
    """Refuse query heads that cannot share the key heads evenly."""
    require(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        "{} query heads cannot share {} key heads evenly; q's heads must be a multiple.",
        num_heads,
        num_kv_heads,
    )


def check_lengths(q: torch.Tensor, cache_seqlens: torch.Tensor | None, page_table: torch.Tensor | None) -> None:
    """Refuse lengths or a page table with a wrong shape, dtype or device."""
    if page_table is not None:
        _check_integers("page_table", page_table, (q.shape[0], None), q.device)
    if cache_seqlens is not None:
        _check_integers("cache_seqlens", cache_seqlens, (q.shape[0],), q.device)


def check_spacing(name: str, stride: int, capacity: int) -> None:
    """Refuse keys that 32-bit positions, or 32-bit offsets within a block, cannot address."""
    require(
        capacity < _OFFSETS, "{} has room for {} keys a sequence; up to {} are possible.", name, capacity, _OFFSETS - 1
    )
    require(
        256 * stride < _OFFSETS,
        "The keys of {} lie {} elements apart; up to {} are possible.",
        name,
        stride,
        _OFFSETS // 256 - 1,
    )


def check_device(q: torch.Tensor) -> None:
    """Refuse devices without support for the kernels."""
    if q.device.type == "cuda":
        capability = torch.cuda.get_device_capability(q.device)
        require(capability >= (8, 0), "decode needs compute capability 8.0, this device has {}.", capability)
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
    require(fits, "{} has shape {}; decode needs {}.", name, tuple(x.shape), wanted)
    require(x.dtype == torch.int32, "{} is {}; decode needs torch.int32.", name, x.dtype)
    require(x.device == device, "{} is on {}, q on {}; they must be on one device.", name, x.device, device)
    require(x.stride(-1) == 1 or x.shape[-1] <= 1, "The last dimension of {} must be contiguous.", name)


def scale_strides(
    name: str, scale: torch.Tensor | None, cache: torch.Tensor, shape: tuple[int, int]
) -> tuple[int, int]:
    """Return the strides of the factors of an e4m3 cache over sequences and key heads; 0, 0 without factors."""
    if cache.dtype != torch.float8_e4m3fn:
        require(scale is None, "{} is for caches of torch.float8_e4m3fn; this one is {}.", name, cache.dtype)
        return 0, 0
    if scale is None:
        return 0, 0
    require(scale.dtype == torch.float32, "{} is {}; decode needs torch.float32.", name, scale.dtype)
    require(scale.device == cache.device, "{} is on {}, the cache on {}.", name, scale.device, cache.device)
    require(
        scale.shape in ((), shape[1:], shape),
        "{} has shape {}; possible are (), {} and {}.",
        name,
        tuple(scale.shape),
        shape[1:],
        shape,
    )
    strides = scale.expand(shape).stride()
    return strides[0], strides[1]
