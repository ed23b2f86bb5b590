"""The nearest measured shape. Standard library only: an exported rule is this file's text with the points before it."""

import math

# What a factor of two counts, a fifth of it beyond 256: as in kernels.problem, so that a program decides the same.
WEIGHTS = {"head_dim": 0.35, "head_dim_v": 0.35, "padded": 0.3, "seqlen_q": 2.0, "keys": 1.0, "causal": 1.0,
           "group": 0.25, "heads": 0.1}  # fmt: skip
FULL, BEYOND = 256, 0.2


def nearest(
    points,
    *,
    dtype,
    seqlen,
    head_dim,
    batch=1,
    num_heads=1,
    num_kv_heads=None,
    causal=True,
    window_size=0,
    mode="fwd",
    count=1,
):
    """Return the measured points nearest to a shape as (distance, point), nearest first; 0 is that very shape.

    dtype, mask and mode have to agree; sizes count by the logarithm of their ratio, and what a source did not state
    counts nothing. causal None is a mask that the source did not say. Raises LookupError where nothing was measured
    with that dtype, mask and mode.
    """
    mask = "not stated" if causal is None else "causal" if causal else "full"
    mask += f" window {window_size}" if window_size else ""
    wanted = {"dtype": dtype, "mask": mask, "mode": mode}
    found = [p for p in points if all(p[name] == value for name, value in wanted.items())]
    if not found:
        there = sorted({", ".join(str(p[name]) for name in wanted) for p in points})
        raise LookupError(f"Nothing was measured with {', '.join(wanted.values())}. Possible: {'; '.join(there)}.")
    shape = sizes_of(batch, num_heads, num_kv_heads or num_heads, seqlen, seqlen, head_dim, window_size=window_size)
    ranked = sorted((distance(shape, _sizes(p, window_size)), at) for at, p in enumerate(found))
    return [(far, found[at]) for far, at in ranked[:count]]


def sizes_of(batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v=None, window_size=0, causal=None):
    """Return the sizes of a shape by the names of WEIGHTS; None is one that is not stated."""
    return {
        "head_dim": head_dim,
        "head_dim_v": head_dim_v or head_dim,
        "padded": head_dim and 1 << (head_dim - 1).bit_length(),
        "seqlen_q": seqlen_q,
        "keys": seqlen_k and min(seqlen_k, window_size or seqlen_k),
        "causal": None if causal is None else 1 + causal,
        "group": num_heads / num_kv_heads if num_heads and num_kv_heads else None,
        "heads": batch * num_heads if batch and num_heads else None,
    }


def distance(shape, sizes):
    """Return how far two shapes are by their sizes; what one of them does not state counts nothing."""
    known = [name for name in WEIGHTS if shape[name] and sizes[name]]
    return sum(WEIGHTS[name] * abs(_doublings(shape[name]) - _doublings(sizes[name])) for name in known)


def _sizes(point, window_size):
    heads = [point[name] for name in ("batch", "num_heads", "num_kv_heads")]
    return sizes_of(*heads, point["seqlen"], point["seqlen"], point["head_dim"], window_size=window_size)


def _doublings(size):
    return math.log2(min(size, FULL)) + BEYOND * math.log2(max(size, FULL) / FULL)
