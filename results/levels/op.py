"""The operator alone: one attention call, forward or backward."""

from __future__ import annotations

from results import features
from results.levels import ATTENTION_MODES, Axis, Level, spelled
from results.levels.memory import attention_parts
from results.levels.tensors import DTYPE_BYTES, Fields, known, product_flops, tensor_bytes
from results.records import Case

FLOP_SOURCE = (
    "Floating-point operations (a multiply-add is two) of the two (forward) or five (backward) matrix products over "
    "the unmasked query-key pairs: "
    "forward 4 x batch x heads x pairs x head_dim, backward 2.5 times, both 3.5 times "
    "(FlashAttention-2, arXiv 2307.08691, section 4.1, with the exact number of pairs in place of half of them)."
)
BYTES_SOURCE = (
    "Each input read once and each output written once, logsumexp in float32: forward q, k, v, out, lse; "
    "backward reads q, k, v, out, dout, lse and writes dq, dk, dv. Keys that no query sees are not read. "
    "A mask or bias that is a tensor is read once."
)
_PRODUCTS = {"fwd": (1, 1), "bwd": (3, 2), "fwd_bwd": (4, 3)}  # products over head_dim, over head_dim_v

# A sweep that derives batch and heads from a budget counts as one shape, named after its rule.
SHAPE_SQL = (
    "CASE WHEN sweep ->> 'tokens' IS NOT NULL AND sweep ->> 'hidden' IS NOT NULL "
    "THEN (sweep ->> 'tokens') || ' tokens, hidden ' || (sweep ->> 'hidden') "
    "ELSE 'B' || coalesce(batch::VARCHAR, '?') || ' H' || coalesce(num_heads::VARCHAR, '?') "
    "|| CASE WHEN num_kv_heads <> num_heads THEN ' KV' || num_kv_heads ELSE '' END "
    "|| CASE WHEN head_dim_v <> head_dim THEN ' DV' || head_dim_v ELSE '' END "
    "|| CASE WHEN seqlen_k <> seqlen_q THEN ' on ' || seqlen_k || ' keys' ELSE '' END END"
)
_SHORT = {"num_heads": "H", "num_kv_heads": "KV", "head_dim": "D", "head_dim_v": "DV", "window_size": "window "}


def flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of one call by FLOP_SOURCE; None if a size or the mask is not stated."""
    return product_flops(case, *_PRODUCTS[mode]) if mode in _PRODUCTS else None


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    """Return the bytes of one call by BYTES_SOURCE; None if a size is not stated."""
    sizes = tensor_bytes(case)
    if sizes is None or mode not in _PRODUCTS:
        return None
    gradients = sizes.q + sizes.k + sizes.v
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
    """Return the bytes of a mask given as a tensor: a byte a key of each row, or a bias of each head in the dtype."""
    kind, keys = features.parsed(known(case.get("features"))).get("mask"), float(case["seqlen_k"])
    if kind == "padding":
        return case["batch"] * keys
    return case["num_heads"] * case["seqlen_q"] * keys * DTYPE_BYTES[str(case["dtype"])] if kind else 0.0


def with_seqlen(seqlen: int) -> dict[str, int]:
    """Return queries and keys of that length."""
    return {"seqlen_q": seqlen, "seqlen_k": seqlen}


def words(case: Case) -> str:
    """Return the stated shape and dtype; sizes of keys and values follow a slash if they differ."""
    parts = (
        *spelled(case, batch="batch"),
        f"heads {case.num_heads}{_if_other(case.num_kv_heads, case.num_heads)}" if case.num_heads else None,
        f"seqlen {case.seqlen_q}{_if_other(case.seqlen_k, case.seqlen_q)}" if case.seqlen_q else None,
        f"head_dim {case.head_dim}{_if_other(case.head_dim_v, case.head_dim)}" if case.head_dim else None,
        case.dtype,
    )
    return ", ".join(part for part in parts if part)


def _if_other(size: int | None, usual: int | None) -> str:
    """Return a slash and the size of keys or values if it differs from the size of the queries."""
    return f"/{size}" if size and size != usual else ""


def short(case: Case) -> str:
    """Return the stated shape, dtype and mask: B1 H8 D64 S1024 float16 causal."""
    parts = [f"B{case.batch}"] if case.batch else []
    for name, letter in _SHORT.items():
        value = getattr(case, name)
        twin = {"num_kv_heads": case.num_heads, "head_dim_v": case.head_dim}.get(name)
        parts += [f"{letter}{value}"] if value and value != twin else []
    if case.seqlen_q:
        keys = f"/{case.seqlen_k}" if case.seqlen_k and case.seqlen_k != case.seqlen_q else ""
        parts.append(f"S{case.seqlen_q}{keys}")
    parts += [case.dtype] if case.dtype else []
    parts += [] if case.causal is None else ["causal" if case.causal else "full"]
    parts += [case.features] if case.features else []
    return " ".join(parts)


LEVEL = Level(
    name="op",
    subjects=("attention",),
    modes=ATTENTION_MODES,
    columns=Axis("seqlen_q", "seqlen", "seqlen", "Sequence length"),
    rows=Axis("head_dim", "head_dim", "head_dim", "Head dimension"),
    with_seqlen=with_seqlen,
    shape_sql=SHAPE_SQL,
    flops=flops,
    flops_source=FLOP_SOURCE,
    bytes_moved=bytes_moved,
    bytes_source=BYTES_SOURCE,
    memory=attention_parts,
    words=words,
    short=short,
    one_attention=True,
)
