"""The nearest measured shape. Standard library only: an exported rule is this file's text with the points before it."""

import math

# What a factor of two counts in each direction: a choice, not a measurement. Kernels change with head_dim first.
WEIGHTS = {"head_dim": 2.0, "seqlen": 1.0, "group": 1.0, "heads": 0.5}


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
    group = num_heads / (num_kv_heads or num_heads)
    shape = {"head_dim": head_dim, "seqlen": seqlen, "group": group, "heads": batch * num_heads}
    ranked = sorted(((_distance(shape, _sizes(p)), at) for at, p in enumerate(found)))
    return [(distance, found[at]) for distance, at in ranked[:count]]


def _sizes(point):
    heads, kv_heads, batch = point["num_heads"], point["num_kv_heads"], point["batch"]
    return {
        "head_dim": point["head_dim"],
        "seqlen": point["seqlen"],
        "group": heads / kv_heads if heads and kv_heads else None,
        "heads": batch * heads if batch and heads else None,
    }


def _distance(shape, sizes):
    known = [name for name in WEIGHTS if sizes[name]]
    return sum(WEIGHTS[name] * abs(math.log2(shape[name] / sizes[name])) for name in known)
