"""Attention with features and of packed sequences: which calls our kernels take, plain PyTorch's part, the operators.

`attnbench::attention_with_features` and its backward are what torch.compile keeps whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernels import features, routes
from kernels.features import Features, dropout_mask
from kernels.registry import UnsupportedCase

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def attention_with(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    asked: dict[str, Any],
    causal: bool,
    window_size: int,
    softmax_scale: float | None,
) -> torch.Tensor:
    """Compute attention with the fields of Features that `asked` names: by triton_fa2, or from the definition.

    Raises UnsupportedCase for features that do not go with the tensors.
    """
    found = _features_of(asked)
    shape = (*q.shape[:3], k.shape[2])
    features.check(found, shape, q.device, causal=causal, window_size=window_size)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else float(softmax_scale)
    if not _takes(q, k, v, found.asked):
        return features.attention(q, k, v, found, causal=causal, window_size=window_size, softmax_scale=scale)
    return _by_kernels(q, k, v, found, (bool(causal), window_size, scale), None)


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
    **asked: Any,
) -> torch.Tensor:
    """Compute attention of sequences that lie one after the other: q (total_q, num_heads, head_dim) gives out like q.

    k, v: (total_k, num_kv_heads, head_dim or head_dim_v). Sequence i has the queries from cu_seqlens_q[i] to
    cu_seqlens_q[i + 1], int32, and keys alike; either may be none. Masks and features are each sequence's; of those,
    masks given as tensors and document ids need a batch. On a GPU nothing is read back from it.

    Raises UnsupportedCase for tensors or features that do not belong together.
    """
    found = _features_of(asked)
    batch = cu_seqlens_q.shape[0] - 1
    if q.dim() != 3 or k.dim() != 3 or cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise UnsupportedCase(
            "attention_varlen needs (total, heads, head_dim) tensors and as many starts of q as of k."
        )
    if found.mask is not None or found.document_ids is not None:
        raise UnsupportedCase("attention_varlen does not support mask or document_ids; each sequence is a document.")
    shape = (batch, q.shape[1], max_seqlen_q, max_seqlen_k)
    features.check(found, shape, q.device, causal=causal, window_size=window_size)
    packed = [x.transpose(0, 1)[None] for x in (q, k, v)]
    scale = q.shape[2] ** -0.5 if softmax_scale is None else float(softmax_scale)
    options = (bool(causal), window_size, scale)
    if _takes(*packed, ("varlen", *found.asked)):
        starts = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out = _by_kernels(*packed, found, options, starts)
    else:
        out = _sequence_by_sequence(packed, found, options, shape, cu_seqlens_q.tolist(), cu_seqlens_k.tolist())
    return out[0].transpose(0, 1)


def _features_of(asked: dict[str, Any]) -> Features:
    """Return the features; a seed that is not given is drawn from PyTorch's generator of the CPU."""
    found = Features(**asked)
    if found.dropout_p and "dropout_seed" not in asked:
        found = replace(found, dropout_seed=int(torch.randint(1 << 62, ())))
    return found


def _takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, names: tuple[str, ...]) -> bool:
    from kernels.attention.triton_fa2 import IMPLEMENTATIONS

    declared = IMPLEMENTATIONS[0].reason_against_features(names) is None
    return declared and v.shape[3] <= routes.MAX_HEAD_DIM and v.dtype == q.dtype and routes.takes(q, k, k)


def _by_kernels(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, found: Features, options: tuple[Any, ...], starts: Any
) -> torch.Tensor:
    from kernels.attention.triton_fa2.features.call import FeatureCall, attend, check_shapes

    check_shapes(q, k, v)
    if torch.compiler.is_compiling() or not all(type(x) in _PLAIN for x in (q, k, v)):
        return forward_op(q, k, v, *_flat(found, starts), *options)[0]
    return attend(FeatureCall(found, *options, "ieee", *(starts or ())), q, k, v)


def _sequence_by_sequence(
    packed: list[torch.Tensor],
    found: Features,
    options: tuple[Any, ...],
    shape: tuple[int, int, int, int],
    starts_q: list[int],
    starts_k: list[int],
) -> torch.Tensor:
    """Compute packed sequences from the definition, one after the other."""
    q, k, v = packed
    kept = dropout_mask(found.dropout_seed, shape, found.dropout_p, q.device) if found.dropout_p else None
    names = dict(zip(("causal", "window_size", "softmax_scale"), options, strict=True))
    outs = []
    for i in range(shape[0]):
        rows, keys = slice(*starts_q[i : i + 2]), slice(*starts_k[i : i + 2])
        own = replace(found, prefix_lengths=_row(found.prefix_lengths, i))
        if found.alibi_slopes is not None and found.alibi_slopes.dim() == 2:
            own = replace(own, alibi_slopes=found.alibi_slopes[i])
        own_kept = None if kept is None else kept[i : i + 1, :, : rows.stop - rows.start, : keys.stop - keys.start]
        outs.append(features.attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], own, **names, kept=own_kept))
    rest = q.new_zeros(1, q.shape[1], q.shape[2] - starts_q[-1], v.shape[3])
    return torch.cat([*outs, rest], 2)


def _row(x: torch.Tensor | None, i: int) -> torch.Tensor | None:
    return None if x is None else x[i : i + 1]


def _flat(found: Features, starts: Any) -> tuple[Any, ...]:
    """Return the arguments of the operators between v and the options."""
    tensors = (getattr(found, name) for name in features.TENSORS)
    return *tensors, *(starts or (None, None, 0, 0)), found.softcap, found.dropout_p, found.dropout_seed


def _call_of(flat: tuple[Any, ...]) -> Any:
    """Return the FeatureCall of an operator's arguments after v."""
    from kernels.attention.triton_fa2.features.call import FeatureCall

    tensors, starts, (softcap, dropout_p, seed), options = flat[:5], flat[5:9], flat[9:12], flat[12:]
    found = Features(softcap, dropout_p, seed, **dict(zip(features.TENSORS, tensors, strict=True)))
    return FeatureCall(found, *options, "ieee", *starts)


@torch.library.custom_op("attnbench::attention_with_features", mutates_args=())
def forward_op(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None,
    mask: torch.Tensor | None, prefix_lengths: torch.Tensor | None, document_ids: torch.Tensor | None,
    starts_q: torch.Tensor | None, starts_k: torch.Tensor | None, longest_q: int, longest_k: int, softcap: float,
    dropout_p: float, dropout_seed: int, causal: bool, window_size: int, softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return out, contiguous, and lse (batch, num_heads, seqlen_q)."""
    rest = (sinks, alibi_slopes, mask, prefix_lengths, document_ids, starts_q, starts_k, longest_q, longest_k)
    call = _call_of((*rest, softcap, dropout_p, dropout_seed, causal, window_size, softmax_scale))
    out, lse = call.forward(q, k, v)
    return out.contiguous(), lse


@torch.library.custom_op("attnbench::attention_with_features_backward", mutates_args=())
def backward_op(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None, mask: torch.Tensor | None,
    prefix_lengths: torch.Tensor | None, document_ids: torch.Tensor | None, starts_q: torch.Tensor | None,
    starts_k: torch.Tensor | None, longest_q: int, longest_k: int, softcap: float, dropout_p: float,
    dropout_seed: int, causal: bool, window_size: int, softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return dq, dk and dv, contiguous, and the gradient of the sinks, empty if there are none."""
    rest = (sinks, alibi_slopes, mask, prefix_lengths, document_ids, starts_q, starts_k, longest_q, longest_k)
    call = _call_of((*rest, softcap, dropout_p, dropout_seed, causal, window_size, softmax_scale))
    *gradients, of_sinks = call.backward(dout, q, k, v, out, lse)
    return *(x.contiguous() for x in gradients), q.new_empty(0) if of_sinks is None else of_sinks


@forward_op.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float32 else torch.float32
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=lse_dtype)


@backward_op.register_fake
def _(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    sinks: torch.Tensor | None, *rest: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    of_sinks = q.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return *(x.new_empty(x.shape) for x in (q, k, v)), of_sinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    tensors, ctx.numbers = (*inputs[:3], *output, *inputs[3:10]), inputs[10:]
    ctx.present = [x is not None for x in tensors]
    ctx.save_for_backward(*(x for x in tensors if x is not None))
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, dout: torch.Tensor, dlse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    saved = iter(ctx.saved_tensors)
    tensors = [next(saved) if there else None for there in ctx.present]
    dq, dk, dv, of_sinks = backward_op(dout, *tensors, *ctx.numbers)
    return dq, dk, dv, of_sinks if ctx.present[5] else None, *(None,) * 14


forward_op.register_autograd(_gradients, setup_context=_save)
