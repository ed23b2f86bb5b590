"""Our kernels as PyTorch operators, which torch.compile keeps whole, with their fake results and gradients.

`attnbench::attention` returns out and the base-2 logsumexp, `attnbench::attention_backward` dq, dk and dv;
`attnbench::differentiable_attention` calls both.
"""

from operator import index
from typing import Any

import torch

from . import choice, invariant, plans, routes
from .attention.torch_sdpa import scaled_dot_product_attention
from .operators import ask_first, differentiable, operator
from .plans import Options
from .problem import FEW_QUERIES, FORWARD, TRAINING

for _answer in (choice.anything_named, routes.named_in_program, routes.most_operations, routes.most_in_program):
    torch.compiler.assume_constant_result(_answer)  # not where they are defined: it loads torch._dynamo


_SEEN = plans.SeenCalls()
_OPTIONS = "bool causal, SymInt window_size, float? softmax_scale"
_CALL = f"Tensor q, Tensor k, Tensor v, {_OPTIONS}"


def _expected(options: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Return the call that followed the last one before, if this is the same and records no gradient; else None."""
    seen: Any = _SEEN.last.then
    plain = seen.options == options and type(q) is type(k) is type(v) is torch.Tensor and plans.is_aligned(q, k, v)
    if not plain or plans.wants_gradients(q, k, v) or not seen.holds(q, k, v):
        return None
    _SEEN.last = seen
    return seen


def _expected_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> Any:
    seen = _expected((FORWARD, *options), q, k, v)
    return None if seen is None else seen.attend(q, k, v)


def _expected_backward(saved: list[torch.Tensor], *options: *Options) -> Any:
    seen = _expected((TRAINING, *options), *saved[:3])
    return None if seen is None else seen.attend(*saved)


def _known_or_first(
    options: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Compute a call that is not the one expected, and note what computes it if its results are as the fake promised.

    others: out, lse and dout of a backward.
    """
    key = options, q.shape, k.shape
    if seen := _SEEN.find(key, q, k, v):
        return seen.attend(q, k, v, *others)
    way, *masks = options
    # On the CPU, kernels run in Triton's interpreter.
    ruled = routes.captured_plan(way, q, k, v, *masks)
    found = ruled or routes.plan_of(q, k, v, *masks) or routes.route(q, k, v, *masks)
    compute, like = (found.backward, (q, k, v)) if others else (found.forward, (q,))
    ready = map(found.prepare, (q, k, v)) if found.prepare else (q, k, v)
    results = compute(*ready, *others)
    promised = tuple(map(_as_empty_like, like, results))
    if found.prepare is None and all(a is b for a, b in zip(promised, results, strict=False)):
        _SEEN.note(key, options, (q, k, v), compute)
    return (*promised, *results[len(like) :])


def _fake_results(q: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), _empty_logsumexp(q)


def _fake_gradients(saved: list[torch.Tensor], *rest: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(saved[0]), torch.empty_like(saved[1]), torch.empty_like(saved[2])


@operator(f"attention({_CALL}) -> (Tensor, Tensor)", _fake_results)
def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out, with the strides of an empty_like(q), and lse (batch, num_heads, seqlen_q)."""
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q), _empty_logsumexp(q).fill_(float("inf"))
    out, lse = _known_or_first((FORWARD, causal, window_size, softmax_scale), q, k, v)
    return out, lse


@operator(f"attention_backward(Tensor[] saved, {_OPTIONS}) -> (Tensor, Tensor, Tensor)", _fake_gradients)
def backward(
    saved: list[torch.Tensor], causal: bool, window_size: int, softmax_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk and dv, with the strides of an empty_like of q, k and v; saved: q, k, v, out, lse and dout."""
    q, k, v, *_ = saved
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dq, dk, dv = _known_or_first((TRAINING, causal, window_size, softmax_scale), *saved)
    return dq, dk, dv


ask_first(forward, _expected_forward)
ask_first(backward, _expected_backward)
trained = differentiable(f"differentiable_attention({_CALL}) -> (Tensor, Tensor)", forward, backward)


def in_program(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *options: *Options,
    grouped: bool = True,
) -> torch.Tensor | None:
    """Return out of a call of a compiled program, as `kernels.dispatch` decides it; None where that has more to ask.

    A compiled program checks each global that was read to trace it at every step. Most calls are decided by few here.
    """
    if not type(q) is type(k) is type(v) is torch.Tensor or not q.dim() == k.dim() == v.dim() == 4:
        return None
    causal, window_size, scale = options
    batch, heads, queries, width = q.shape
    _, kv_heads, keys, _ = k.shape
    fits = batch == k.shape[0] == v.shape[0] and width == k.shape[3] == v.shape[3] and keys == v.shape[2]
    fits = fits and kv_heads == v.shape[1] and (queries == keys or not causal)
    fits = fits and (heads == kv_heads or (grouped and kv_heads > 0 and heads % kv_heads == 0))
    if not fits or not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device or not q.numel() * keys:
        return None
    positive = scale is None or scale > 0
    if torch.is_autocast_enabled(q.device.type) or invariant.wanted() or not positive or window_size < 0:
        return None
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    most = routes.most_in_program("training" if mask is None else "mask", q.dtype, q.device, index(width))
    if most is None:
        return None
    short = not window_size and (2 if causal else 4) * q.numel() * keys <= most
    if mask is not None:
        usual = mask.dim() == 4 and not mask.requires_grad and (mask.dtype == torch.bool or mask.dtype == q.dtype)
        left = short and usual and not causal and queries > 1 and heads == kv_heads
        return scaled_dot_product_attention(q, k, v, mask, scale=scale) if left else None
    if training and short:
        # Otherwise left out: the comparison of sizes is a symbol in a program with dynamic sizes.
        shared: dict[str, Any] = {"enable_gqa": True} if heads != kv_heads else {}
        return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, **shared)
    if training:
        return trained(q, k, v, *options)[0]
    return None if queries <= FEW_QUERIES else forward(q, k, v, *options)[0]


def _empty_logsumexp(q: torch.Tensor) -> torch.Tensor:
    """Allocate a logsumexp; float64 for float32 (kernels/attention/triton_fa2/tile_ops.py)."""
    return q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float32 else torch.float32)


def _as_empty_like(like: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return x with the strides that the fake promised."""
    strides = torch.empty_like(like, device="meta").stride()
    return x if x.stride() == strides else torch.empty_like(like).copy_(x)
