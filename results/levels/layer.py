"""A layer: projections around an attention, on x: (batch, seqlen, hidden) with hidden = num_heads x head_dim.

All layers have in common: no rotary embedding, no dropout, no normalization, and gradients of x and of every weight.
Only subjects that end in `_bias` have a bias (the layers of report flashtile_a100). The mask is a field of the case.
"""

from dataclasses import dataclass

from results.levels import declared
from results.levels.memory import MemoryParts, WorkspaceLaw, attention_parts
from results.levels.tensors import DTYPE_BYTES, MIB, Fields, known, numbers_of, product_flops, tensor_bytes

_FLOPS = {"fwd": (1, 1, 1), "bwd": (2, 3, 2), "fwd_bwd": (3, 4, 3)}  # projections, products over head_dim, head_dim_v


@dataclass(frozen=True)
class LayerSizes:
    """Element counts of the tensors of one layer."""

    tokens: float
    hidden: float  # per token in x and y, and also in q and in the attention's result
    keys: float  # per token in k and v together
    latent: float  # per token; 0 without a latent
    weights: float  # all projections, without biases
    out_weights: float  # the last projection alone

    @property
    def projected(self) -> float:
        """Count q, k and v."""
        return self.tokens * (self.hidden + self.keys)


def sizes(case: Fields) -> LayerSizes | None:
    """Return the sizes of a case; None if one is not stated."""
    found = numbers_of(case, "batch", "num_heads", "seqlen_q", "head_dim")
    if found is None or case.get("subject") not in LEVEL.subjects:
        return None
    batch, heads, seqlen, head_dim = found
    latent = known(case.get("latent_dim")) if case["subject"] == "mla" else 0
    kv_heads = heads if case["subject"] == "mla" else known(case.get("num_kv_heads"))
    if latent is None or kv_heads is None or (case["subject"] == "mla" and not latent):
        return None
    hidden, keys = float(heads * head_dim), 2.0 * kv_heads * head_dim
    to_keys = hidden * latent + latent * keys if latent else hidden * keys
    weights = 2 * hidden * hidden + to_keys
    return LayerSizes(float(batch * seqlen), hidden, keys, float(latent), weights, hidden * hidden)


def flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of one call by `flops_source`; None if a size or the mask is not stated."""
    found = sizes(case)
    if mode not in _FLOPS or found is None:
        return None
    projections, *products = _FLOPS[mode]
    attention = product_flops(case, *products)
    return None if attention is None else attention + projections * 2.0 * found.tokens * found.weights


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    """Return the bytes of one call by `bytes_source`; None if a size is not stated."""
    found, size = sizes(case), DTYPE_BYTES.get(str(case.get("dtype")))
    if found is None or size is None or mode not in _FLOPS:
        return None
    between = found.projected + found.tokens * (found.hidden + found.latent)  # written once, read once
    ends = 2 * found.tokens * found.hidden  # x and y
    forward = ends + found.weights + 2 * between
    # Reads dout, the weights, x and the tensors kept by the forward; writes the gradients of all of them.
    backward = ends + found.weights + between + 2 * between + found.tokens * found.hidden + found.weights
    return size * {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]


def memory(case: Fields, work: WorkspaceLaw, of_pass: str) -> MemoryParts | None:
    """Return the parts of the peak of a pass, with `work` as the workspace of the attention inside.

    Inputs are x, the weights and, with a backward, dout; results are y and, with a backward, the gradients. The peak of
    a forward is in the attention (q, k, v and its out exist) or in the last projection. The peak of a backward is in
    the attention (q, k, v, out, their gradients, y and the gradient of the last weight exist) or in the first
    projections (y and the gradients of q, k, v, x and every weight exist).
    """
    found, tensors, inner = sizes(case), tensor_bytes(_whole(case)), attention_parts(_whole(case), work, of_pass)
    if found is None or tensors is None or inner is None:
        return None
    size = DTYPE_BYTES[str(case["dtype"])]
    x, weights, projected = (
        count * size / MIB for count in (found.tokens * found.hidden, found.weights, found.projected)
    )
    extra = inner.workspace + inner.matrices
    if of_pass == "fwd":
        return MemoryParts(x + weights, x, inner.matrices, max(projected + inner.workspace, x - inner.matrices))
    given, returned = 2 * x + weights, 2 * x + weights
    last_weight, lse = found.out_weights * size / MIB, tensors.lse / MIB
    in_attention = x + projected + x + lse + last_weight + x + projected + extra  # y, qkv, out, lse, dW, its dout
    in_projections = x + projected + weights + x
    peak = given + max(in_attention, in_projections)
    return MemoryParts(given, returned, inner.matrices, max(0.0, peak - given - returned - inner.matrices))


def _whole(case: Fields) -> Fields:
    """Return the case of the attention inside; a latent is expanded to one key head for each query head."""
    return {**case, "num_kv_heads": case.get("num_heads")} if case.get("subject") == "mla" else case


LEVEL = declared(__file__, flops=flops, bytes_moved=bytes_moved, memory=memory)
