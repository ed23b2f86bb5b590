"""Our kernels as PyTorch operators, which torch.compile keeps whole, with their fake results and gradients.

`attnbench::attention` returns out and the base-2 logsumexp, `attnbench::attention_backward` dq, dk and dv;
`attnbench::differentiable_attention` calls both.
"""

from typing import Any

import torch

from . import choice, plans, routes
from .operators import differentiable, operator
from .problem import FORWARD, TRAINING

for _answer in (choice.anything_named, routes.named_in_program, routes.most_operations):
    torch.compiler.assume_constant_result(_answer)  # not where they are defined: it loads torch._dynamo


_SEEN = plans.SeenCalls()
_OPTIONS = "bool causal, SymInt window_size, float? softmax_scale"
_CALL = f"Tensor q, Tensor k, Tensor v, {_OPTIONS}"


def _first(
    key: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Compute a call that was not seen before, and note what computes it if its results are as the fake promised.

    others: out, lse and dout of a backward.
    """
    way, _, _, options = key
    # On the CPU, kernels run in Triton's interpreter.
    ruled = routes.captured_plan(way, q, k, v, *options)
    found = ruled or routes.plan_of(q, k, v, *options) or routes.route(q, k, v, *options)
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
    key = FORWARD, q.shape, k.shape, (causal, window_size, softmax_scale)
    seen = _SEEN.find(key, q, k, v)
    out, lse = seen.attend(q, k, v) if seen else _first(key, q, k, v)
    return out, lse


@operator(f"attention_backward(Tensor[] saved, {_OPTIONS}) -> (Tensor, Tensor, Tensor)", _fake_gradients)
def backward(
    saved: list[torch.Tensor], causal: bool, window_size: int, softmax_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk and dv, with the strides of an empty_like of q, k and v; saved: q, k, v, out, lse and dout."""
    q, k, v = saved[:3]
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    key = TRAINING, q.shape, k.shape, (causal, window_size, softmax_scale)
    seen = _SEEN.find(key, q, k, v)
    dq, dk, dv = seen.attend(*saved) if seen else _first(key, *saved)
    return dq, dk, dv


trained = differentiable(f"differentiable_attention({_CALL}) -> (Tensor, Tensor)", forward, backward)


def _empty_logsumexp(q: torch.Tensor) -> torch.Tensor:
    """Allocate a logsumexp; float64 for float32 (kernels/attention/triton_fa2/tile_ops.py)."""
    return q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float32 else torch.float32)


def _as_empty_like(like: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return x with the strides that the fake promised."""
    strides = torch.empty_like(like, device="meta").stride()
    return x if x.stride() == strides else torch.empty_like(like).copy_(x)
