"""Tensor sizes and query-key pairs of an attention call. Standard library only.

Functions take the fields of a case as a mapping. They return None if a field is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results import features

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
MIB = 1024 * 1024
BF16X6 = "bf16x6"  # precision of a float32 product computed as six products of bfloat16 parts, with a separate peak
Fields = Mapping[str, Any]  # fields of a case, or a row of a table with these columns


@dataclass(frozen=True)
class TensorBytes:
    """Bytes of the tensors of one attention call."""

    q: float  # (batch, num_heads, seqlen_q, head_dim)
    k: float  # (batch, num_kv_heads, seqlen_k, head_dim)
    v: float  # (batch, num_kv_heads, seqlen_k, head_dim_v)
    out: float  # (batch, num_heads, seqlen_q, head_dim_v)
    lse: float  # (batch, num_heads, seqlen_q) in float32


def known(value: Any) -> Any:
    """Return a value unchanged, or None for None and for NaN or NA in a table."""
    return None if value is None or str(value) in ("nan", "<NA>") else value


def numbers_of(case: Fields, *names: str) -> tuple[float, ...] | None:
    """Return fields of a case; None if one of them is not stated."""
    found = tuple(known(case.get(name)) for name in names)
    return None if None in found else found


def tensor_bytes(case: Fields) -> TensorBytes | None:
    """Return the bytes of q, k, v, out and lse; None if a size is not stated."""
    found = numbers_of(case, "batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim")
    size = DTYPE_BYTES.get(str(case.get("dtype")))
    if found is None or size is None:
        return None
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim = found
    head_dim_v = known(case.get("head_dim_v")) or head_dim
    queries, keys = batch * heads * seqlen_q, batch * kv_heads * seqlen_k
    return TensorBytes(
        q=queries * head_dim * size,
        k=keys * head_dim * size,
        v=keys * head_dim_v * size,
        out=queries * head_dim_v * size,
        lse=queries * 4.0,
    )


def unmasked_pairs(
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool,
    window_size: int = 0,
    ahead: int | None = None,
    real: int | None = None,
) -> int:
    """Count the query-key pairs that the mask leaves, for one head; causal masks are aligned bottom-right.

    With a window that is not causal, a query sees `ahead` keys after its position, by default as many as before. Of the
    keys only the first `real` are seen, by default all.
    """
    offset = seqlen_k - seqlen_q
    upto = seqlen_k if not causal else offset
    before = -seqlen_q
    if window_size:
        upto = min(upto, offset + (window_size - 1 if ahead is None else ahead))
        before = offset - window_size
    keys = seqlen_k if real is None else real
    return _keys_up_to(upto, seqlen_q, keys) - _keys_up_to(before, seqlen_q, keys)


def pairs_in_batch(case: Fields) -> int | None:
    """Count the query-key pairs of one head that masks and features leave, over the whole batch.

    None if a size or the mask is not stated.
    """
    found = numbers_of(case, "batch", "seqlen_q", "seqlen_k", "causal", "window_size")
    if found is None:
        return None
    batch, seqlen_q, seqlen_k, causal, window = map(int, found)
    asked = features.parsed(known(case.get("features")))
    mask: dict[str, Any] = {"causal": bool(causal), "window_size": window}
    mask["ahead"] = int(asked["ahead"]) if "ahead" in asked else None
    if listed := features.listed_blocks(case) if asked else None:
        size, counts = listed
        above = len(counts) * size * (size - 1) // 2 if causal else 0  # pairs in the blocks at the diagonal
        return batch * (sum(counts) * size * size - above)
    rows = features.lengths_of(case) if asked else ()
    if not rows:
        return batch * unmasked_pairs(seqlen_q, seqlen_k, **mask)
    if "prefix" in asked:
        return sum(unmasked_pairs(seqlen_q, seqlen_k, **mask) + n * (n - 1) // 2 for (n,) in rows)
    if "mask" in asked:
        return sum(unmasked_pairs(seqlen_q, seqlen_k, **mask, real=n) for (n,) in rows)
    return sum(unmasked_pairs(n, n, **mask) for row in rows for n in row)


def product_flops(case: Fields, over_head_dim: int, over_head_dim_v: int) -> float | None:
    """Count the operations of matrix products over the unmasked pairs, two for each multiply-add.

    `over_head_dim` products have the width of q and k, and `over_head_dim_v` products the width of v. None if a size or
    the mask is not stated.
    """
    found, pairs = numbers_of(case, "num_heads", "head_dim"), pairs_in_batch(case)
    if found is None or pairs is None:
        return None
    heads, head_dim = found
    width = over_head_dim * head_dim + over_head_dim_v * (known(case.get("head_dim_v")) or head_dim)
    return 2.0 * heads * pairs * width


def kv_cache_mb(case: Fields) -> float | None:
    """Return the size of one layer's cached keys and values, or latents, in MiB."""
    sizes = tensor_bytes(case)
    if sizes is None:
        return None
    if latent := known(case.get("latent_dim")):
        return float(case["batch"]) * case["seqlen_k"] * latent * DTYPE_BYTES[str(case["dtype"])] / MIB
    return (sizes.k + sizes.v) / MIB


def query_tokens(case: Fields) -> float | None:
    """Count the query tokens of a call."""
    found = numbers_of(case, "batch", "seqlen_q")
    return None if found is None else found[0] * found[1]


def _keys_up_to(shift: int, seqlen_q: int, seqlen_k: int) -> int:
    """Count the pairs (i, j) with 0 <= j <= i + shift, over all queries i."""
    return _ramp(shift + 1, seqlen_q) - _ramp(shift + 1 - seqlen_k, seqlen_q)


def _ramp(start: int, count: int) -> int:
    """Sum max(0, start + i) for i below count."""
    return _triangle(count - 1 + start) - _triangle(start - 1)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0
