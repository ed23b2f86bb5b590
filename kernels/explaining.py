"""What `kernels.attention` would run for some tensors, in one line."""

from __future__ import annotations

from typing import Any

import torch

from . import choice, feature_calls, routes, tables
from .dispatch import autocasted
from .features import Features
from .plans import wants_gradients
from .problem import FORWARD, TRAINING


def explain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
    **asked: Any,
) -> str:
    """Return what would run and why: the rule file and its measured problem, or the built-in table.

    On a GPU also which chip's tiles the kernels take. The arguments are those of `kernels.attention`. Nothing is
    computed or compiled.
    """
    said = _explained(q, k, v, causal, window_size, softmax_scale, asked)
    return f"{said}; {tables.machine_of(q.device).words}" if q.device.type == "cuda" else said


def _explained(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    window_size: int,
    softmax_scale: float | None,
    asked: dict[str, Any],
) -> str:
    q, k, v = autocasted(q, k, v)
    if asked:
        names = Features(**asked).asked
        how = "triton_fa2" if feature_calls.takes(q, k, v, names) else "the definition in PyTorch"
        return f"{how}: rules do not decide calls with features ({', '.join(names) or 'none in effect'})"
    direction = TRAINING if wants_gradients(q, k, v) else FORWARD
    options = (causal, window_size, softmax_scale)
    today = routes.built_in(q, k, v, *options)[direction]
    names = " and ".join(today) if len(today) == 1 else f"{today[0]} forward and {today[1]} backward"
    if choice.overridden():
        return (
            f"{names} for {direction}: the program sets SDPA's backends or deterministic algorithms, so no rule applies"
        )
    decided = routes.decisions(q, k, v, *options).get(direction)
    if decided is None:
        return f"{names} for {direction}: built-in table, as there is no rule for such tensors"
    return f"{decided.implementation or names} for {direction}: {decided.why}"
