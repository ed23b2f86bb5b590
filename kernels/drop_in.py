"""Replace torch.nn.functional.scaled_dot_product_attention with our attention, for the calls that it supports.

The function is replaced for the whole process while a context is open, so that the threads of a backward, which
recompute a checkpointed forward, use the same attention. Contexts may be nested and opened in several threads; the
first one replaces the function and the last one restores it. A function that was imported by name before
(`from torch.nn.functional import scaled_dot_product_attention`) is not replaced.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from . import choice, dispatch, feature_calls, registry, routes
from .attention import torch_sdpa  # noqa: F401  imported now: within a context it would import the replacement
from .features import Features
from .registry import Attention, UnsupportedCase

_ORIGINAL = functional.scaled_dot_product_attention
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass
class SdpaCalls:
    """Count the calls that were made while a context was open."""

    served: int = 0  # computed by our attention
    passed_on: Counter[str] = field(default_factory=Counter)  # left to PyTorch, by reason


@dataclass(frozen=True, eq=False)
class _Replacement:
    """An open context: its implementation and its counts."""

    implementation: str | None  # None: kernels.attention
    calls: SdpaCalls


_OPEN: list[_Replacement] = []  # the last one is in effect
_LOCK = threading.Lock()
_OBSERVED: Callable[..., Any] | None = None  # the replacement, with an observer of its calls


@contextmanager
def sdpa_replacement(implementation: str | None = None) -> Iterator[SdpaCalls]:
    """Compute calls of scaled_dot_product_attention with `kernels.attention`, or with the implementation of that name.

    Yields the counts of the calls that were computed here and of those left to PyTorch, each with its reason: masks
    that require a gradient, tensors that are not (batch, heads, tokens, width) on a GPU, masks and dropout that the
    implementation does not support, transforms of torch.func, forward-mode differentiation, torch.jit.trace. Within
    torch.compile, `kernels.attention` is used and nothing is counted; a named implementation leaves such calls to
    PyTorch. There are no second derivatives: they raise a RuntimeError. Raises KeyError for an unknown implementation.
    """
    if implementation is not None:
        registry.get(implementation)
    opened = _Replacement(implementation, SdpaCalls())
    with _LOCK:
        _OPEN.append(opened)
        _install(len(_OPEN) == 1)
    try:
        yield opened.calls
    finally:
        with _LOCK:
            _OPEN.remove(opened)
            _install(False)


def observe(around: Callable[[Callable[..., Any]], Callable[..., Any]] | None) -> None:
    """Call PyTorch's function, replaced or not, through what `around` returns for it; None ends that."""
    global _OBSERVED
    with _LOCK:
        _OBSERVED = around and around(_replaced)
        _install(around is not None)


def _install(opening: bool) -> None:
    """Put in place what the open contexts need; later, leave what another package has put there alone."""
    found = functional.scaled_dot_product_attention
    if opening or found is _replaced or hasattr(found, "__wrapped__") and found.__wrapped__ is _replaced:
        functional.scaled_dot_product_attention = _OBSERVED or (_replaced if _OPEN else _ORIGINAL)


def _replaced(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute the result of PyTorch's function, which aligns a causal mask with the first key."""
    opened = _OPEN[-1:]
    options: dict[str, Any] = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    options["enable_gqa"] = enable_gqa
    compiling = torch.compiler.is_compiling()
    if not opened or (compiling and opened[0].implementation):
        return _ORIGINAL(query, key, value, **options)
    q, k, v = query, key, value
    reason = None if compiling else _reason_against_mode()
    reason = reason or _reason_against_mask(q, attn_mask, is_causal) or _reason_against_shapes(q, k, v)
    if reason is None and is_causal and q.shape[2] != k.shape[2]:
        reason = "a causal mask over more queries than keys" if q.shape[2] > k.shape[2] else None
        k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]  # later keys are not seen
    if reason is None and k.shape[1] != q.shape[1] and not enable_gqa:
        reason = "heads that are broadcast"
    if reason is None:
        q, k, v = dispatch.autocasted(q, k, v)
        features: dict[str, Any] = {} if attn_mask is None else {"mask": attn_mask}
        if dropout_p:
            features["dropout_p"] = dropout_p
        reason, out = _computed(opened[0].implementation, q, k, v, is_causal, scale, features)
    if not compiling:
        _count(reason)
    return out if reason is None else _ORIGINAL(query, key, value, **options)


def _reason_against_mode() -> str | None:
    """Return the mode of PyTorch in which nothing is computed here; None if there is none."""
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return "torch.jit.trace" if torch.jit.is_tracing() else None


def _reason_against_mask(q: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> str | None:
    """Return why no implementation takes a mask; None if there is no reason."""
    if mask is None:
        return None
    if mask.requires_grad:
        return "a mask that wants a gradient"
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        return "a mask of another dtype"
    if mask.dim() < 2:
        return "a mask without a dimension for queries"
    return "a mask together with a causal one" if causal else None


def _reason_against_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Return why no implementation takes the tensors; None if there is no reason."""
    if not (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN):
        return "tensors of another class"
    if q.is_nested or k.is_nested or v.is_nested:
        return "nested tensors"
    if not q.dim() == k.dim() == v.dim() == 4:
        return "tensors that are not (batch, heads, tokens, width)"
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        return "batches or heads that are broadcast"
    return None if q.numel() and k.numel() else "no elements"


def _computed(
    implementation: str | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float | None,
    features: dict[str, Any],
) -> tuple[str | None, torch.Tensor | None]:
    """Return None and out, or the reason why it is not computed here."""
    asked = Features(**features).asked
    if implementation is None:
        attention: Attention = dispatch.attention
        served = feature_calls.takes(q, k, v, asked) if asked else _dispatched(q, k, v, causal, scale)
        reason = None if served else "a device, dtype or width that no kernel of ours takes"
    else:
        attention = registry.get(implementation).attention
        reason = registry.get(implementation).reason_against_features(asked)
        reason = reason or registry.reason_against_tensors(implementation, q, k, v, causal=causal, window_size=0)
        if asked and not reason:  # only now, so that PyTorch's call finds the generator unchanged
            features = {"features": feature_calls.features_of(features, q.device)}
    if reason:
        return reason, None
    try:
        return None, attention(q, k, v, causal=causal, softmax_scale=scale, **features)
    except UnsupportedCase as refused:  # such as strides that a kernel cannot address
        return str(refused), None


def _dispatched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> bool:
    """Return whether the dispatcher has more than PyTorch's function: a kernel of ours, or a rule."""
    if routes.takes(q, k, v) or torch.compiler.is_compiling():
        return routes.takes(q, k, v)
    return choice.anything_named(q.device) and routes.route_of(q, k, v, causal, 0, scale) is not None


def _count(reason: str | None) -> None:
    """Count a call in every open context."""
    with _LOCK:
        for replacement in _OPEN:
            if reason is None:
                replacement.calls.served += 1
            else:
                replacement.calls.passed_on[reason] += 1
