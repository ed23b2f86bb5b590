"""The operator alone: one attention call, forward or backward."""

from results import features
from results.levels import declared
from results.levels.memory import attention_parts
from results.levels.tensors import DTYPE_BYTES, Fields, known, product_flops, tensor_bytes

_PRODUCTS = {"fwd": (1, 1), "bwd": (3, 2), "fwd_bwd": (4, 3)}  # products over head_dim, over head_dim_v


def flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of one call by `flops_source`; None if a size or the mask is not stated."""
    return product_flops(case, *_PRODUCTS[mode]) if mode in _PRODUCTS else None


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    """Return the bytes of one call by `bytes_source`; None if a size is not stated."""
    sizes = tensor_bytes(case)
    if sizes is None or mode not in _PRODUCTS:
        return None
    learned = "bias_gradient" in features.parsed(known(case.get("features")))
    gradients = sizes.q + sizes.k + sizes.v + (_mask_bytes(case) if learned else 0.0)
    inputs = sizes.q + (sizes.k + sizes.v) * _share_of_keys_seen(case) + _mask_bytes(case)
    forward = inputs + sizes.out + sizes.lse
    backward = (inputs + 2 * sizes.out + sizes.lse) + gradients
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]


def _share_of_keys_seen(case: Fields) -> float:
    """Return the share of the keys that some query sees; all of them if the mask is not stated."""
    seqlen_q, seqlen_k, window = int(case["seqlen_q"]), int(case["seqlen_k"]), known(case.get("window_size")) or 0
    if asked := features.parsed(known(case.get("features"))):  # in other masks some query sees each key
        real = features.lengths_of(case) if asked.get("mask") == "padding" else ()
        return sum(n for (n,) in real) / (len(real) * seqlen_k) if real else 1.0
    offset = seqlen_k - seqlen_q
    first = max(0, offset - int(window) + 1) if window else 0
    after = seqlen_q - 1 + (int(window) - 1 if window else seqlen_k)
    last = min(seqlen_k - 1, offset + (seqlen_q - 1 if known(case.get("causal")) else after))
    return max(0, last - first + 1) / seqlen_k


def _mask_bytes(case: Fields) -> float:
    """Return the bytes of a mask: a byte a key of each row, a bias of each head in the dtype, or 4 a listed block."""
    if listed := features.listed_blocks(case):
        return 4.0 * case["num_heads"] * sum(listed[1])
    kind, keys = features.parsed(known(case.get("features"))).get("mask"), float(case["seqlen_k"])
    if kind == "padding":
        return case["batch"] * keys
    return case["num_heads"] * case["seqlen_q"] * keys * DTYPE_BYTES[str(case["dtype"])] if kind else 0.0


LEVEL = declared(__file__, flops=flops, bytes_moved=bytes_moved, memory=attention_parts)
