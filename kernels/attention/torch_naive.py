"""The baseline: attention as a textbook writes it in eager PyTorch, with the whole score matrix in memory.

Written as well as eager PyTorch allows, so that beating it means something: the scale goes to q rather than to the
scores, masking is in place, and shared key heads are not repeated. The mask is built in every call, as the function
keeps no state; its bytes are part of what it needs.
"""

import torch

from ..features import Features, SequenceBounds, Window
from ..features import attention as define
from ..registry import FEATURES, declare


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: Window = 0,
    softmax_scale: float | None = None,
    features: Features | None = None,
    bounds: SequenceBounds | None = None,
) -> torch.Tensor:
    """Return softmax(scale q k^T) v in the dtype of q; see `kernels.registry.Attention`.

    With features it is the definition in `kernels.features`, packed sequences one after the other.
    """
    if features is not None or bounds is not None or isinstance(window_size, tuple):
        masks = {"causal": causal, "window_size": window_size, "softmax_scale": softmax_scale}
        return define(q, k, v, features, bounds, **masks)
    batch, num_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1], k.shape[2]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    grouped = (q * scale).reshape(batch, num_kv_heads, -1, head_dim)  # group x seqlen_q rows a key head
    scores = (grouped @ k.mT).view(batch, num_heads, seqlen_q, seqlen_k)
    if causal or window_size:
        scores.masked_fill_(hidden_keys(seqlen_q, seqlen_k, causal, window_size, q.device), float("-inf"))
    p = scores.softmax(-1)
    blind = seqlen_q - seqlen_k - (0 if causal else window_size - 1)  # the first queries, which see no key
    if (causal or window_size) and blind > 0:
        p = p.masked_fill((torch.arange(seqlen_q, device=q.device) < blind)[:, None], 0.0)
    return (p.view(batch, num_kv_heads, -1, seqlen_k) @ v).view(batch, num_heads, seqlen_q, v.shape[-1])


def hidden_keys(seqlen_q: int, seqlen_k: int, causal: bool, window_size: int, device: torch.device) -> torch.Tensor:
    """Return True where a query must not look: (seqlen_q, seqlen_k), the last query aligned with the last key."""
    positions = torch.arange(seqlen_k - seqlen_q, seqlen_k, device=device)[:, None]
    keys = torch.arange(seqlen_k, device=device)
    if not window_size:
        return keys > positions
    ahead = keys > positions if causal else keys >= positions + window_size
    return ahead | (keys <= positions - window_size)


IMPLEMENTATIONS = (declare("torch_naive", attention, features=tuple(FEATURES)),)
