"""Decoding: one to sixteen query tokens of each sequence against its KV cache.

`seqlen_q` counts the query tokens, `seqlen_k` the tokens in the cache (the context), and the causal mask is aligned
bottom-right, so that the last query token sees the whole context. `page_size` 0 is a contiguous cache. With
`latent_dim` the cache holds one record of width head_dim a token that serves as key and, its first head_dim_v numbers,
as value (multi-head latent attention, absorbed).
"""

from __future__ import annotations

from results.levels import Axis, Level
from results.levels.memory import MemoryParts, WorkspaceLaw, attention_parts
from results.levels.tensors import DTYPE_BYTES, MIB, Fields, known, numbers_of, product_flops
from results.records import Case

FLOP_SOURCE = (
    "Multiply-adds of the two matrix products over the query-key pairs that the mask leaves: "
    "2 x batch x heads x pairs x (head_dim + head_dim_v), pairs aligned bottom-right and counted exactly "
    "(cuDNN counts the full rectangle, FlashMLA and FlashAttention-3 the mean length)."
)
BYTES_SOURCE = (
    "Keys and values that the mask leaves, read once a key head, and q and out: "
    "batch x keys x kv_heads x (head_dim + head_dim_v) x size + batch x tokens x heads x (head_dim + head_dim_v) x "
    "size, and 4 bytes a page of the page table. Of a latent cache max(head_dim, head_dim_v) in place of the sum of "
    "keys and values. With a window, keys are at most window + tokens - 1."
)
_PAGE_ENTRY_BYTES = 4  # int32

SHAPE_SQL = (
    "'H' || coalesce(num_heads::VARCHAR, '?') "
    "|| CASE WHEN num_kv_heads <> num_heads THEN ' KV' || num_kv_heads ELSE '' END "
    "|| ' D' || coalesce(head_dim::VARCHAR, '?') "
    "|| CASE WHEN head_dim_v <> head_dim THEN ' DV' || head_dim_v ELSE '' END "
    "|| CASE WHEN latent_dim > 0 THEN ' latent ' || latent_dim ELSE '' END "
    "|| CASE WHEN seqlen_q > 1 THEN ' ' || seqlen_q || ' tokens' ELSE '' END "
    "|| CASE WHEN page_size > 0 THEN ' page ' || page_size WHEN page_size = 0 THEN '' ELSE ' page ?' END"
)


def flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of one call by FLOP_SOURCE; None if the case leaves something open."""
    return product_flops(case, 1, 1) if mode == "decode" else None


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    """Return the bytes of one call by BYTES_SOURCE; None if the case leaves something open."""
    names = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "window_size")
    found, size = numbers_of(case, *names), DTYPE_BYTES.get(str(case.get("dtype")))
    if mode != "decode" or found is None or size is None:
        return None
    batch, heads, kv_heads, tokens, context, head_dim, window = found
    head_dim_v = known(case.get("head_dim_v")) or head_dim
    keys = min(context, window + tokens - 1) if window else context
    width = max(head_dim, head_dim_v) if known(case.get("latent_dim")) else head_dim + head_dim_v
    cache = float(batch) * keys * kv_heads * width * size
    queries = float(batch) * tokens * heads * (head_dim + head_dim_v) * size
    return cache + queries + _page_table_bytes(case, keys)


def memory(case: Fields, work: WorkspaceLaw, of_pass: str) -> MemoryParts | None:
    """Return what the peak of one call is made of, the whole cache and its page table given."""
    parts = attention_parts(case, work, of_pass)
    if parts is None:
        return None
    given = parts.given + _page_table_bytes(case, case["seqlen_k"]) / MIB
    if known(case.get("latent_dim")):  # the record is its own value
        head_dim_v = known(case.get("head_dim_v")) or case["head_dim"]
        smaller = min(case["head_dim"], head_dim_v) * DTYPE_BYTES[str(case["dtype"])]
        given -= case["batch"] * case["num_kv_heads"] * case["seqlen_k"] * smaller / MIB
    return MemoryParts(given, parts.returned, parts.matrices, parts.workspace)


def with_seqlen(seqlen: int) -> dict[str, int]:
    """Return a context of that length."""
    return {"seqlen_k": seqlen}


def words(case: Case) -> str:
    """Return the shape and dtype as far as they are said."""
    grouped = case.num_kv_heads and case.num_kv_heads != case.num_heads
    heads = f"heads {case.num_heads}" + (f" over {case.num_kv_heads}" if grouped else "")
    parts = (
        "decode" if case.subject == "attention" else f"decode {case.subject}" if case.subject else "decode",
        f"batch {case.batch}" if case.batch else None,
        heads if case.num_heads else None,
        f"{case.seqlen_q} query tokens" if case.seqlen_q and case.seqlen_q > 1 else None,
        f"context {case.seqlen_k}" if case.seqlen_k else None,
        f"head_dim {case.head_dim}" if case.head_dim else None,
        f"latent_dim {case.latent_dim}" if case.latent_dim else None,
        f"page_size {case.page_size}" if case.page_size else None,
        case.dtype,
    )
    return ", ".join(part for part in parts if part)


def short(case: Case) -> str:
    """Return shape, dtype and mask as far as they are said: decode B8 H64 KV8 D128 context 8192 page 16 bfloat16."""
    grouped = case.num_kv_heads and case.num_kv_heads != case.num_heads
    narrow = case.head_dim_v and case.head_dim_v != case.head_dim
    parts = (
        "decode" if case.subject == "attention" else f"decode {case.subject}" if case.subject else "decode",
        f"B{case.batch}" if case.batch else None,
        f"H{case.num_heads}" if case.num_heads else None,
        f"KV{case.num_kv_heads}" if grouped else None,
        f"D{case.head_dim}" if case.head_dim else None,
        f"DV{case.head_dim_v}" if narrow else None,
        f"window {case.window_size}" if case.window_size else None,
        f"latent {case.latent_dim}" if case.latent_dim else None,
        f"tokens {case.seqlen_q}" if case.seqlen_q and case.seqlen_q > 1 else None,
        f"context {case.seqlen_k}" if case.seqlen_k else None,
        f"page {case.page_size}" if case.page_size else None,
        case.dtype,
        "full" if case.causal is False else None,
    )
    return " ".join(part for part in parts if part)


def _page_table_bytes(case: Fields, keys: float) -> float:
    page_size = known(case.get("page_size"))
    return float(case["batch"]) * -(-int(keys) // int(page_size)) * _PAGE_ENTRY_BYTES if page_size else 0.0


LEVEL = Level(
    name="decode",
    subjects=("attention", "mla"),
    modes=("decode",),
    columns=Axis("seqlen_k", "seqlen", "context", "Context length"),
    rows=Axis("batch", "batch", "batch", "Batch"),
    with_seqlen=with_seqlen,
    shape_sql=SHAPE_SQL,
    flops=flops,
    flops_source=FLOP_SOURCE,
    bytes_moved=bytes_moved,
    bytes_source=BYTES_SOURCE,
    memory_passes={"decode": "fwd"},
    memory=memory,
    words=words,
    short=short,
)
