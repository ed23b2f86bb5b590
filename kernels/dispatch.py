"""The front door: attention by the best of our kernels for the shape and the device, PyTorch's where there is none.

A call that was seen before runs what its first call was bound to. A new one looks up the route of its tensors. Under
torch.compile, and for tensors that are not plain ones, it goes through the operators of `kernels.torch_ops` instead.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from . import invariant, plans, routes
from .features import one_window
from .plans import NO_KEY, Options

DTYPES = (*routes.DTYPES, torch.float64)
PLAIN = (torch.Tensor, torch.nn.Parameter)
_SEEN = plans.SeenCalls()
_records, _address = torch.is_grad_enabled, torch.Tensor.data_ptr
_tracing = torch.compiler.is_dynamo_compiling


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int | tuple[int, int] = 0,
    softmax_scale: float | None = None,
    **features: Any,
) -> Any:
    """Compute attention as `kernels.registry.Attention` defines it, differentiable once, on any device.

    In the dtype of autocast where that is on, as PyTorch's scaled_dot_product_attention. The first call of a shape
    compiles; capture CUDA graphs after one. `features` are the fields of `kernels.features.Features` and of
    `kernels.feature_calls.Wanted`, by name. With return_lse=True the result is out and the natural logsumexp, float32
    (batch, num_heads, seqlen_q), with a gradient. Raises UnsupportedCase for tensors that do not belong together.
    """
    key: Any = None
    if _tracing():
        from . import torch_ops

        if not features and type(window_size) is int:
            out = torch_ops.in_program(q, k, v, None, bool(causal), window_size, softmax_scale)
            if out is not None:
                return out
    elif not features:
        options = causal, window_size, softmax_scale, _records()
        try:
            seen: Any = _SEEN.last.then  # asked first, and without a call of `plans.is_aligned`
            plain = seen.options == options and not (q.is_nested or k.is_nested or v.is_nested)
            if plain and not (_address(q) | _address(k) | _address(v)) & 15 and seen.holds(q, k, v):
                _SEEN.last = seen
            else:
                key = (q.shape, k.shape, options)
                seen = _SEEN.find(key, q, k, v)
        except NO_KEY:
            key = seen = None
        if seen:
            return seen.attend(q, k, v)
    return _first(key, q, k, v, (causal, window_size, softmax_scale), features)


def _first(key: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Any, features: dict[str, Any]) -> Any:
    """Compute a call that was not seen before, and note what it was bound to."""
    cast = autocasted(q, k, v)
    plans.check_inputs("kernels.attention", *cast, DTYPES, math.inf, any_width=True)
    if options[2] is not None:
        if isinstance(options[2], torch.Tensor):
            key = None  # the next call may find another number in it
        options = *options[:2], plans.given_scale(options[2], q.shape[3])
    if features or type(options[1]) in (tuple, list):
        from .feature_calls import attention_with

        return attention_with(*cast, features, options)
    options = *one_window(*options[:2]), options[2]
    plain = type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or not plain:
        return traced(*cast, *options)
    attend, tensors = bound(q, k, v, *options)
    out = attend(*tensors)
    if key and same(tensors, (q, k, v)):
        _SEEN.note(key, key[-1], tensors, attend)
    return out


def bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options
) -> tuple[Callable[..., torch.Tensor], plans.Tensors]:
    """Return what computes plain tensors in eager mode, and the tensors in the dtype of autocast.

    It computes all tensors for which a guard of `plans.SeenCalls` holds and whose addresses are multiples of 16 bytes.
    """
    tensors = autocasted(q, k, v)
    found = routes.bound(*tensors, *options)
    device_type = q.device.type
    if device_type == "meta" or not (torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device_type)):
        return found, tensors
    dtype = torch.get_autocast_dtype(device_type)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if torch.get_autocast_dtype(device_type) == dtype:
            return found(q, k, v)
        again, cast = bound(q, k, v, *options)
        return again(*cast)

    return attend, tensors


def same(tensors: plans.Tensors, others: plans.Tensors) -> bool:
    """Return whether the tensors are these objects."""
    return all(a is b for a, b in zip(tensors, others, strict=True))


def autocasted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> plans.Tensors:
    """Return the tensors in the dtype of autocast where that is on for their device; float64 stays."""
    device_type = q.device.type
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):  # which raises for meta tensors
        return q, k, v
    dtype = torch.get_autocast_dtype(device_type)
    q, k, v = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v)]
    return q, k, v


def traced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> torch.Tensor:
    """Compute attention as a compiled program does: by an operator of ours, or PyTorch's function."""
    if invariant.wanted():
        return invariant.bound(q, k, v, *options)(q, k, v)
    if not routes.takes(q, k, v):
        return routes.without_ours(q, k, v, *options)(q, k, v)
    from . import torch_ops

    if by_pytorch := routes.pytorch_in_program(q, k, v, *options):
        return by_pytorch(q, k, v)
    if plans.wants_gradients(q, k, v):
        return torch_ops.trained(q, k, v, *options)[0]
    if routes.decodes(q, k, v):
        from .decode.triton_decode.calls import decode_op

        causal, window_size, scale = options
        return decode_op(q, k, v, None, None, "NHD", scale, causal, window_size, None, None)[0]
    return torch_ops.forward(q, k, v, *options)[0]
