"""Decoding and serving batches: query tokens of each sequence against its KV cache.

`seqlen_q` counts the query tokens, `seqlen_k` the tokens in the cache (the context), and the causal mask is aligned
bottom-right, so that the last query token sees the whole context. `page_size` 0 is a contiguous cache. With
`latent_dim` the cache holds one record of width head_dim per token; the whole record is the key and its first
head_dim_v numbers are the value (multi-head latent attention, absorbed). A cache whose dtype differs from q's has a
float32 scale for each head of keys and of values. `lengths_of` draws ragged lengths, whose mean is the context. If a
source states neither dtype nor lengths of a cache, the formulas assume q's dtype and sequences of equal length. Lengths
that are a spec of `results.batches` state the query tokens and keys of every sequence of a serving engine's batch.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from results import batches
from results.levels import declared
from results.levels.memory import MemoryParts, WorkspaceLaw, attention_parts
from results.levels.tensors import DTYPE_BYTES, MIB, Fields, known, numbers_of, unmasked_pairs
from results.records import MAX_RAGGED, Case

_PAGE_ENTRY_BYTES = 4  # int32
_SCALE_BYTES = 4  # float32
_RAGGED_DEVIATION = 0.5  # standard deviation over the mean


def lengths_of(case: Fields) -> tuple[int, ...] | None:
    """Return the number of keys of each sequence; None if batch, context or query tokens are not stated.

    This list is as long as the batch, so it is for batches that are measured; the formulas below use `_counts_of`.
    Ragged lengths are normal with half the mean as standard deviation, drawn from a seed made of batch and context, and
    at least as long as the query tokens. They are scaled to sum up to batch x context, as in the uniform case.
    """
    found = numbers_of(case, "batch", "seqlen_k", "seqlen_q")
    if found is None:
        return None
    batch, context, tokens = map(int, found)
    if batches.is_spec(case.get("lengths")):
        return tuple(keys for (_, keys), count in batches.parse(case["lengths"]).items() for _ in range(count))
    return _ragged(batch, context, tokens) if case.get("lengths") == "ragged" else (context,) * batch


def query_lengths_of(case: Fields) -> tuple[int, ...] | None:
    """Return the number of query tokens of each sequence; None if all have `seqlen_q`."""
    if not batches.is_spec(case.get("lengths")):
        return None
    return tuple(tokens for (tokens, _), count in batches.parse(case["lengths"]).items() for _ in range(count))


def _counts_of(case: Fields) -> Mapping[tuple[int, int], int] | None:
    """Return the number of sequences by query tokens and keys; None if it is not known.

    Lengths of more than MAX_RAGGED sequences are not drawn: the formulas cost the same for every uniform batch.
    """
    found = numbers_of(case, "batch", "seqlen_k", "seqlen_q")
    if found is None:
        return None
    batch, context, tokens = map(int, found)
    if batches.is_spec(case.get("lengths")):
        return batches.parse(case["lengths"])
    if case.get("lengths") != "ragged":
        return {(tokens, context): batch}
    return Counter((tokens, keys) for keys in _ragged(batch, context, tokens)) if batch <= MAX_RAGGED else None


@lru_cache(maxsize=256)
def _ragged(batch: int, context: int, least: int) -> tuple[int, ...]:
    source, normal = random.Random(f"{batch}/{context}"), NormalDist(context, _RAGGED_DEVIATION * context)
    drawn = [max(float(least), normal.inv_cdf(source.random())) for _ in range(batch)]
    scale = batch * context / sum(drawn)
    found = [max(least, int(length * scale)) for length in drawn]
    found[found.index(max(found))] += batch * context - sum(found)
    return tuple(found)


def forms(case: Fields) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each departure from plain decoding, in words, with the fields that undo it.

    The departures are a paged cache, ragged lengths, a quantized cache, and several query tokens.
    """
    if case["page_size"]:
        yield f"page {int(case['page_size'])}", {"page_size": 0}
    if case["lengths"] == "ragged":
        yield "ragged", {"lengths": "uniform"}
    if case["cache_dtype"] not in (None, case["dtype"]):
        yield f"{case['cache_dtype']} cache", {"cache_dtype": case["dtype"]}
    if (case["seqlen_q"] or 1) > 1 and not batches.is_spec(case["lengths"]):
        yield f"{int(case['seqlen_q'])} query tokens", {"seqlen_q": 1}


def flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of one call by `flops_source`; None if a size or the mask is not stated."""
    found = numbers_of(case, "num_heads", "head_dim", "causal", "window_size")
    lengths = _counts_of(case)
    if mode != "decode" or found is None or lengths is None:
        return None
    heads, head_dim, causal, window = found
    mask: dict[str, Any] = {"causal": bool(causal), "window_size": int(window)}
    pairs = sum(count * unmasked_pairs(*sizes, **mask) for sizes, count in lengths.items())
    return 2.0 * heads * pairs * (head_dim + (known(case.get("head_dim_v")) or head_dim))


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    """Return the bytes of one call by `bytes_source`; None if a size is not stated."""
    window = known(case.get("window_size"))
    queries = _query_bytes(case)
    lengths = _counts_of(case)
    if mode != "decode" or None in (window, queries, lengths, known(case.get("num_kv_heads"))):
        return None
    keys: Counter[int] = Counter()
    for (tokens, length), count in lengths.items():
        keys[min(length, int(window + tokens - 1)) if window else length] += count
    return queries + _cache_bytes(case, keys)


def memory(case: Fields, work: WorkspaceLaw, of_pass: str) -> MemoryParts | None:
    """Return the parts of the peak of one call; inputs include the whole cache and its page table.

    None for batches of different numbers of query tokens, whose workspace is not known.
    """
    counts = None if batches.is_spec(case.get("lengths")) else _counts_of(case)
    lengths = None if counts is None else {keys: count for (_, keys), count in counts.items()}
    parts = attention_parts({**case, "seqlen_k": max(lengths)} if lengths else case, work, of_pass)
    if parts is None or lengths is None:
        return None
    head_dim_v = known(case.get("head_dim_v")) or case["head_dim"]
    q = _query_bytes(case) * case["head_dim"] / (case["head_dim"] + head_dim_v)
    given = (q + _cache_bytes(case, lengths)) / MIB
    return MemoryParts(given, parts.returned, parts.matrices, parts.workspace)


def _said(case: Case) -> dict[str, object]:
    """Return words of a case beyond its fields."""
    return {
        "kind": case.subject if case.subject != "attention" else None,
        "spec": case.lengths if batches.is_spec(case.lengths) else None,
        "tokens": case.seqlen_q if case.seqlen_q and case.seqlen_q > 1 else None,
        "ragged": case.lengths == "ragged",
        "full": case.causal is False,
    }


def _query_bytes(case: Fields) -> float | None:
    """Return the bytes of q and out; None if a size is not stated."""
    found = numbers_of(case, "batch", "num_heads", "seqlen_q", "head_dim")
    size = DTYPE_BYTES.get(str(case.get("dtype")))
    if found is None or size is None:
        return None
    batch, heads, tokens, head_dim = found
    rows = sum(query_lengths_of(case) or (float(batch) * tokens,))
    return rows * heads * (head_dim + (known(case.get("head_dim_v")) or head_dim)) * size


def _cache_bytes(case: Fields, keys: Mapping[int, int]) -> float:
    """Return the bytes of keys and values, with the page table and scales, of so many sequences of each length."""
    head_dim = case["head_dim"]
    head_dim_v = known(case.get("head_dim_v")) or head_dim
    width = max(head_dim, head_dim_v) if known(case.get("latent_dim")) else head_dim + head_dim_v
    stored = known(case.get("cache_dtype")) or case["dtype"]
    scales = 0 if stored == case["dtype"] else 2 * case["num_kv_heads"] * _SCALE_BYTES
    page_size = int(known(case.get("page_size")) or 0)
    pages = sum(count * -(-length // page_size) for length, count in keys.items()) if page_size else 0
    tokens = float(sum(length * count for length, count in keys.items()))
    records = tokens * case["num_kv_heads"] * width * DTYPE_BYTES[str(stored)]
    return records + scales + pages * _PAGE_ENTRY_BYTES


LEVEL = declared(__file__, _said, flops=flops, bytes_moved=bytes_moved, memory=memory)
