"""Checks of the tensors of a call; each refusal is a sentence of decode_refusals.toml."""

import tomllib
from pathlib import Path

import torch

from ...plans import MAX_HEAD_DIM
from ...registry import UnsupportedCase, refuse_cpu

MAX_SEQLEN_Q = 16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("NHD", "HND")
MAX_LATENT_DIM = 512
ROPE_DIMS = (16, 32, 64, 128)
_DTYPE_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
_ROPE_NAMES = ", ".join(map(str, ROPE_DIMS))
_OFFSETS = 1 << 31
_SENTENCES = tomllib.loads((Path(__file__).parents[2] / "decode_refusals.toml").read_text())


def require(holds: bool, sentence: str, *values: object) -> None:
    """Raise UnsupportedCase unless `holds`; the sentence is formatted only then, because formatting takes time."""
    if not holds:
        raise UnsupportedCase(_SENTENCES[sentence].format(*values))


def check_tensors(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Refuse a query and a cache of keys and values that do not fit together."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        require(x.dim() == 4, "dimensions", name, x.dim())
    _check_query(q, k_cache)
    require(v_cache.device == q.device, "devices", "v_cache", v_cache.device, "q", q.device)
    require(k_cache.dtype == v_cache.dtype, "dtypes", "k_cache", k_cache.dtype, "v_cache", v_cache.dtype)
    eight_bits = k_cache.dtype == torch.float8_e4m3fn and q.dtype != torch.float32
    require(k_cache.dtype == q.dtype or eight_bits, "eight_bits", k_cache.dtype, q.dtype)
    require(k_cache.shape[:3] == v_cache.shape[:3], "shapes", tuple(k_cache.shape), tuple(v_cache.shape))
    require(k_cache.shape[3] == q.shape[3], "head_dims", q.shape[3], "k_cache", k_cache.shape[3])
    largest = max(q.shape[3], v_cache.shape[3])
    require(0 < largest <= MAX_HEAD_DIM, "largest", largest, MAX_HEAD_DIM)


def _check_query(q: torch.Tensor, cache: torch.Tensor) -> None:
    for name, x in (("q", q), ("the cache", cache)):
        require(x.device == q.device, "devices", name, x.device, "q", q.device)
        require(not (x.requires_grad and torch.is_grad_enabled()), "gradient", name)
    require(q.dtype in DTYPES, "dtype", "q", q.dtype, _DTYPE_NAMES)
    require(1 <= q.shape[2] <= MAX_SEQLEN_Q, "tokens", MAX_SEQLEN_Q, q.shape[2])
    require(q.shape[0] > 0 and q.shape[1] > 0, "empty")
    require(q.stride(3) == 1 or q.shape[3] == 1, "contiguous", "q")


def check_latents(q: torch.Tensor, kv_cache: torch.Tensor, latent_dim: int) -> None:
    """Refuse an absorbed query and a cache of latents that do not fit together."""
    require(kv_cache.dim() == 3, "latent_dimensions", kv_cache.dim())
    require(q.dim() == 4, "dimensions", "q", q.dim())
    _check_query(q, kv_cache)
    require(kv_cache.dtype == q.dtype, "dtypes", "kv_cache", kv_cache.dtype, "q", q.dtype)
    require(kv_cache.shape[2] == q.shape[3], "head_dims", q.shape[3], "kv_cache", kv_cache.shape[2])
    rope_dim = q.shape[3] - latent_dim
    fits = 0 < latent_dim <= MAX_LATENT_DIM and rope_dim in ROPE_DIMS
    require(fits, "latents", latent_dim, rope_dim, MAX_LATENT_DIM, _ROPE_NAMES)


def check_sharing(num_heads: int, num_kv_heads: int) -> None:
    """Refuse query heads that cannot share the key heads evenly."""
    require(num_kv_heads > 0 and num_heads % num_kv_heads == 0, "sharing", num_heads, num_kv_heads)


def check_lengths(q: torch.Tensor, cache_seqlens: torch.Tensor | None, page_table: torch.Tensor | None) -> None:
    """Refuse lengths or a page table with a wrong shape, dtype or device."""
    if page_table is not None:
        _check_integers("page_table", page_table, (q.shape[0], None), q.device)
    if cache_seqlens is not None:
        _check_integers("cache_seqlens", cache_seqlens, (q.shape[0],), q.device)


def check_spacing(name: str, stride: int, capacity: int) -> None:
    """Refuse keys that 32-bit positions, or 32-bit offsets within a block, cannot address."""
    require(capacity < _OFFSETS, "room", name, capacity, _OFFSETS - 1)
    require(256 * stride < _OFFSETS, "spacing", name, stride, _OFFSETS // 256 - 1)


def check_device(q: torch.Tensor) -> None:
    """Refuse devices without support for the kernels."""
    if q.device.type == "cuda":
        capability = torch.cuda.get_device_capability(q.device)
        require(capability >= (8, 0), "capability", capability)
    else:
        refuse_cpu("decode", q)


def _check_integers(name: str, x: torch.Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    wanted = "(" + ", ".join("pages" if size is None else str(size) for size in shape) + ")"
    fits = x.dim() == len(shape) and all(size in (None, given) for size, given in zip(shape, x.shape, strict=False))
    require(fits, "shape", name, tuple(x.shape), wanted)
    require(x.dtype == torch.int32, "dtype", name, x.dtype, "torch.int32")
    require(x.device == device, "devices", name, x.device, "q", device)
    require(x.stride(-1) == 1 or x.shape[-1] <= 1, "contiguous", name)


def scale_strides(
    name: str, scale: torch.Tensor | None, cache: torch.Tensor, shape: tuple[int, int]
) -> tuple[int, int]:
    """Return the strides of the factors of an e4m3 cache over sequences and key heads; 0, 0 without factors."""
    require(scale is None or cache.dtype == torch.float8_e4m3fn, "scales", name, cache.dtype)
    if scale is None:
        return 0, 0
    require(scale.dtype == torch.float32, "dtype", name, scale.dtype, "torch.float32")
    require(scale.device == cache.device, "devices", name, scale.device, "the cache", cache.device)
    require(scale.shape in ((), shape[1:], shape), "scale_shapes", name, tuple(scale.shape), shape[1:], shape)
    strides = scale.expand(shape).stride()
    return strides[0], strides[1]
