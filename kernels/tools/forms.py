"""The forms that decide a call on a chip, rows of the tables in `kernels/tuned`, and what could take their place."""

from collections.abc import Callable
from typing import Any

import torch

from .. import attention, decode, plans, routes, tables
from ..problem import FORWARD, Problem
from ..tables import Form
from .capture import launches_on


def call_of(problem: Problem, device: str, attend: Callable[..., Any] = attention) -> Callable[[], object]:
    """Return a call of a problem, of `attend` or `kernels.decode`, on random tensors."""
    heads, rows = (problem.num_heads, problem.num_kv_heads), (problem.seqlen_q, problem.seqlen_k)
    dtype = getattr(torch, problem.dtype)
    sizes = ((heads[0], rows[0]), (heads[1], rows[1]), (heads[1], rows[1]))
    q, k, v = (torch.randn(problem.batch, *size, problem.head_dim, device=device).to(dtype) for size in sizes)
    if problem.operator == "decode":
        return lambda: decode(q, k, v)
    masks: dict[str, Any] = {"causal": "causal" in problem.mask, "window_size": problem.window_size}
    if problem.direction == FORWARD:
        return lambda: attend(q, k, v, **masks)
    inputs, dout = [x.requires_grad_() for x in (q, k, v)], torch.ones_like(q)
    return lambda: torch.autograd.grad(attend(*inputs, **masks), inputs, dout)


def forms(problem: Problem, chip: int, attend: Callable[..., Any] = attention) -> dict[Form, list[Form]]:
    """Return the forms that decide a problem on a chip (90 for 9.0), each with what could take its place."""
    plans.forget()
    routes.forget()
    with launches_on(chip), tables.asked() as found:
        call_of(problem, "cuda", attend)()
    plans.forget()
    tiles = (form for form in found if "block_n" in form.names)
    return {form: form.others(tables.shared_memory()[chip]) for form in tiles}
