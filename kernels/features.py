"""What attention may be asked for beyond masks by distance, and the plain PyTorch that says what each means.

`attention` is the definition: differentiable, in any floating dtype, with the whole score matrix in memory. In float64
it is the oracle of the kernels that compute features, and it serves where no kernel of ours does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.registry import UnsupportedCase

WORDS: Mapping[str, str] = {  # every feature that an implementation can declare, as a reason against it says it
    "head_dim_v": "values of another head_dim than keys",
    "softcap": "a softcap",
    "alibi_slopes": "ALiBi slopes",
    "sinks": "attention sinks",
    "mask": "a mask given as tensor",
    "prefix_lengths": "prefix masks",
    "document_ids": "document masks",
    "dropout": "dropout",
    "varlen": "packed sequences of different lengths",
}
TENSORS = ("sinks", "alibi_slopes", "mask", "prefix_lengths", "document_ids")
_PHILOX = ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))  # multipliers, steps of the key
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Features:
    """What one call asks for; see `kernels.dispatch.attention` for the shapes."""

    softcap: float = 0.0  # 0: none
    dropout_p: float = 0.0
    dropout_seed: int = 0
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    prefix_lengths: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of `WORDS` that are asked for."""
        tensors = [name for name in TENSORS if getattr(self, name) is not None]
        return (*(["softcap"] if self.softcap else []), *tensors, *(["dropout"] if self.dropout_p else []))


def check(features: Features, q: torch.Tensor, k: torch.Tensor, *, causal: bool, window_size: int) -> None:
    """Raise UnsupportedCase if features have a shape, dtype or value that does not go with q and k, (batch, heads, …).

    Of packed sequences, q and k may be (total, heads, head_dim) with a batch dimension of 1.
    """
    batch, num_heads, seqlen_q, seqlen_k = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    slopes, mask, ids = features.alibi_slopes, features.mask, features.document_ids
    whole = (batch, num_heads, seqlen_q, seqlen_k)
    problems = (
        (features.softcap < 0, f"softcap must not be negative, not {features.softcap}"),
        (not 0 <= features.dropout_p < 1, f"dropout_p must be at least 0 and below 1, not {features.dropout_p}"),
        (_is_not(features.sinks, (num_heads,)), f"sinks must be ({num_heads},)"),
        (_is_not(slopes, (num_heads,), (batch, num_heads)), f"alibi_slopes must be ({num_heads},) or (batch, heads)"),
        (mask is not None and not _broadcasts(mask, whole), f"mask must broadcast to {whole}"),
        (mask is not None and mask.requires_grad, "mask has no gradient here, so it must not require one"),
        (_is_not(features.prefix_lengths, (batch,)), f"prefix_lengths must be ({batch},)"),
        (
            features.prefix_lengths is not None and bool(not causal or window_size),
            "prefix_lengths need causal=True and no window",
        ),
        (_is_not(ids, (batch, seqlen_k)), f"document_ids must be ({batch}, {seqlen_k}), an id a key"),
        (ids is not None and seqlen_q > seqlen_k, "document_ids need no more queries than keys"),
        (
            any(x is not None and x.device != q.device for x in (getattr(features, name) for name in TENSORS)),
            f"all tensors must be on {q.device}",
        ),
    )
    problem = next((text for failed, text in problems if failed), None)
    if problem:
        raise UnsupportedCase(f"attention: {problem}.")


def _is_not(x: torch.Tensor | None, *shapes: tuple[int, ...]) -> bool:
    return x is not None and tuple(x.shape) not in shapes


def _broadcasts(mask: torch.Tensor, whole: tuple[int, ...]) -> bool:
    sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    return mask.dim() <= 4 and all(size in (1, full) for size, full in zip(sizes, whole, strict=True))


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: Features,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute attention with features from its definition, in the dtype of q: (batch, num_heads, seqlen_q, head_dim).

    scores = softcap x tanh(scale q k^T / softcap) - slope x |position - key| + mask, hidden keys -inf; a sink is a
    score of its own without a value; dropout follows the softmax. A query that sees no key gets 0.
    """
    from kernels.attention.torch_naive import hidden_keys

    group, head_dim = q.shape[1] // k.shape[1], q.shape[3]
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    scores = q @ k.mT * (head_dim**-0.5 if softmax_scale is None else softmax_scale)
    if features.softcap:
        scores = features.softcap * torch.tanh(scores / features.softcap)
    hidden = torch.zeros(scores.shape[2:], dtype=torch.bool, device=q.device)
    if causal or window_size:
        hidden = hidden_keys(scores.shape[2], scores.shape[3], causal, window_size, q.device)
    scores, hidden = _masked(scores, hidden, features)
    scores = scores.masked_fill(hidden, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    if features.sinks is not None:
        sinks = features.sinks.to(scores.dtype)[None, :, None, None]
        top = torch.maximum(top, sinks)
    top = top.detach().masked_fill(top == float("-inf"), 0.0)
    p = (scores - top).exp()
    total = p.sum(-1, keepdim=True)
    if features.sinks is not None:
        total = total + (sinks - top).exp()
    p = p / total.masked_fill(total == 0, 1.0)
    if features.dropout_p:
        kept = dropout_mask(features.dropout_seed, tuple(scores.shape), features.dropout_p, q.device)
        p = p * kept / (1 - features.dropout_p)
    return p @ v


def _masked(scores: torch.Tensor, hidden: torch.Tensor, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores with slopes and an additive mask, and which keys are hidden, (seqlen_q, seqlen_k) or wider."""
    seqlen_q, seqlen_k = scores.shape[2:]
    keys = torch.arange(seqlen_k, device=scores.device)
    positions = torch.arange(seqlen_k - seqlen_q, seqlen_k, device=scores.device)[:, None]
    if features.alibi_slopes is not None:
        slopes = features.alibi_slopes.to(scores.dtype).reshape(-1, scores.shape[1], 1, 1)
        scores = scores - slopes * (positions - keys).abs()
    if features.prefix_lengths is not None:
        hidden = hidden & (keys >= features.prefix_lengths[:, None, None, None])
    if features.document_ids is not None:
        ids = features.document_ids
        hidden = hidden | (ids[:, None, seqlen_k - seqlen_q :, None] != ids[:, None, None, :])
    if features.mask is not None and features.mask.dtype == torch.bool:
        hidden = hidden | ~features.mask
    elif features.mask is not None:
        scores = scores + features.mask
    return scores, hidden


def dropout_mask(seed: int, shape: tuple[int, ...], dropout_p: float, device: Any) -> torch.Tensor:
    """Return which probabilities of a shape (batch, num_heads, seqlen_q, seqlen_k) dropout keeps.

    That of place i, counted in this order, is kept if the first word of Philox-4x32-10 (Salmon et al. 2011,
    doi:10.1145/2063384.2063405) of the counter i and the key `seed`, 64 bits each, is at least dropout_p x 2^32.
    """
    places = torch.arange(torch.Size(shape).numel(), device=device)
    words = [places & _LOW, places >> 32, torch.zeros_like(places), torch.zeros_like(places)]
    key = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(10):
        (high_0, low_0), (high_1, low_1) = (_product(x, by) for x, by in zip(words[::2], _PHILOX[0], strict=True))
        words = [high_1 ^ words[1] ^ key[0], low_1, high_0 ^ words[3] ^ key[1], low_0]
        key = [(word + step) & _LOW for word, step in zip(key, _PHILOX[1], strict=True)]
    return (words[0] >= threshold(dropout_p)).view(shape)


def threshold(dropout_p: float) -> int:
    """Return the first of the 32-bit numbers that keep a probability."""
    return min(_LOW, round(dropout_p * 2**32))


def _product(x: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and the low 32 bits of products of 32-bit numbers, which an int64 holds by halves."""
    low, high = x * (by & 0xFFFF), x * (by >> 16)
    middle = (low >> 16) + (high & 0xFFFF)
    return (high >> 16) + (middle >> 16), (middle & 0xFFFF) << 16 | low & 0xFFFF
