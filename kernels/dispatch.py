"""The front door: attention by the best of our kernels for the shape and the device, PyTorch's where there is none.

A call looks its tensors up in a table of routes and launches. Under torch.compile, and for tensors that are not plain
ones, it goes through the operators of `kernels.torch_ops` instead.
"""

from __future__ import annotations

from typing import Any

import torch

from . import plans, routes

_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
    if features or type(window_size) in (tuple, list):
        from .feature_calls import attention_with

        q, k, v = autocasted(q, k, v)
        return attention_with(q, k, v, features, causal, window_size, softmax_scale)
    if torch.compiler.is_compiling() or not (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN):
        q, k, v = autocasted(q, k, v)
        return _traced(q, k, v, causal, window_size, softmax_scale)
    if torch._C._is_any_autocast_enabled():
        q, k, v = autocasted(q, k, v)
    found = routes.route_of(q, k, v, causal, window_size, softmax_scale)
    if found is None:
        return routes.without_ours(q, k, v, causal, window_size, softmax_scale)
    return found.attend(q, k, v)


def autocasted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> plans.Tensors:
    """Return the tensors in the dtype of autocast where that is on for their device; float64 stays."""
    device_type = q.device.type
    if not torch.is_autocast_enabled(device_type):
        return q, k, v
    dtype = torch.get_autocast_dtype(device_type)
    q, k, v = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v)]
    return q, k, v


def _traced(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float | None
) -> torch.Tensor:
    if not routes.takes(q, k, v):
        return routes.without_ours(q, k, v, causal, window_size, softmax_scale)
    if routes.decodes(q, k, v) and not plans.wants_gradients(q, k, v):
        from .decode.triton_decode.operators import decode_op

        return decode_op(q, k, v, None, None, "NHD", softmax_scale, causal, window_size, None, None)[0]
    from .torch_ops import forward

    return forward(q, k, v, causal, window_size, softmax_scale)[0]
