"""The kernels of one forward and of one backward, launched in their order; `launches` says of what shape."""

from __future__ import annotations

from typing import Any

import torch

from kernels.attention.triton_fa2.backward import both_kernel
from kernels.attention.triton_fa2.combine import combine_gradients, combine_outputs
from kernels.attention.triton_fa2.dkdv import dkdv_kernel
from kernels.attention.triton_fa2.dq import dq_kernel
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.launches import Launches, gradient_slots
from kernels.attention.triton_fa2.narrow import narrow_kernel
from kernels.attention.triton_fa2.split import Cut, slots_of

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def forward(
    launches: Launches,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Write out and, if it is given, the logsumexp."""
    shape, kernel, copies = launches.shape, narrow_kernel, ()
    cut = shape.forward_cut
    if shape.forward == "forward":
        kernel = forward_kernel
        q, k, v, *copies = _laid_out(launches, q, k, v)
    if cut is None:
        name = shape.forward if lse is None else f"{shape.forward} with lse"
        launches.attend((name, None), kernel, None, (q, k, v, out), (out if lse is None else lse, *copies))
        return
    parts = slots_of(out, cut.pieces)
    lses = torch.empty(parts.shape[:3], dtype=shape.lse_dtype, device=shape.device)
    launches.attend((f"{shape.forward} with lse", None), kernel, cut, (q, k, v, parts), (lses, *copies))
    both_lse = (lses, out if lse is None else lse)
    launches.combine(("outputs", lse is not None), combine_outputs, (parts,), (out,), cut, lse=both_lse)


def _laid_out(launches: Launches, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k and v, or their pieces, and what forward_kernel calls kt: a transposed copy of k if it works on one."""
    kt = k
    if launches.shape.precision == "ieee":
        (kt,) = launches.copies_of(k)
        launches.prepare("k", "k", (q, q, q, k, v), (q, q, kt, v, q), delta=False)
    elif launches.shape.precision == "pieces":
        copies = launches.copies_of(q, k, v)
        launches.prepare("q, k, v", "qkv", (q, q, q, k, v), (copies[0], q, *copies[1:], q), delta=False)
        q, k, v = copies
    return q, k, v, kt


def backward(
    launches: Launches,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    gradients: Tensors,
) -> None:
    """Write the gradients, and delta; of douts whose strides and alignment are those of the first one."""
    shape = launches.shape
    qt, dot, kt, vt = launches.copies_of(q, q, k, v) if shape.copied else (q, dout, k, v)
    if shape.copied or shape.both or shape.fused:
        letters = "qdkv" if shape.copied else ""
        launches.prepare("q, dout, k, v", letters, (q, dout, out, k, v), (qt, dot, kt, vt, delta), delta=True)
    factors = (qt, kt, vt, dot) if shape.precision == "pieces" else (q, k, v, dout)
    copies = (lse, delta, qt, kt, vt, dot)
    if not (shape.fused and _fused(launches, factors, copies, gradients)):
        if shape.both:
            _both(launches, factors, copies, gradients)
        else:
            _apart(launches, factors, out, copies, gradients)


def _fused(launches: Launches, factors: Any, copies: Any, gradients: Tensors) -> bool:
    """In one walk; False if its tile does not fit this device."""
    shape = launches.shape
    walk = shape.fused_cut or Cut(1, max(1, shape.seqlen_q))
    tile = shape.tiles("fused")[0]
    keys = min(shape.seqlen_k, shape.window(16) + tile.block_n)
    cuts = (walk, Cut(-(-keys // tile.block_n) + (keys < shape.seqlen_k), tile.block_n))
    parts = gradient_slots(gradients, cuts)
    lse, delta, qt, _, _, dot = copies
    shape.fused = launches.fused(factors, (lse, delta, qt, dot), parts, cuts)
    if shape.fused:
        launches.combine(("gradients", None), combine_gradients, parts, gradients, *cuts)
    return shape.fused


def _both(launches: Launches, factors: Any, copies: Any, gradients: Tensors) -> None:
    """dq, dk and dv in one launch, of pieces of the walks if they are cut."""
    cut = launches.shape.both_cut
    parts = gradients if cut is None else gradient_slots(gradients, (cut, cut))
    launches.attend(("both", None), both_kernel, cut, (*factors, *parts), copies)
    if cut:
        launches.combine(("gradients", None), combine_gradients, parts, gradients, cut, cut)


def _apart(launches: Launches, factors: Any, out: torch.Tensor, copies: Any, gradients: Tensors) -> None:
    """dq, then dk and dv."""
    (q, k, v, dout), (dq, dk, dv), (lse, delta, qt, kt, vt, dot) = factors, gradients, copies
    launches.attend(("dq", None), dq_kernel, None, (q, k, v, out, dout, dq), (lse, delta, kt, vt))
    launches.attend(("dkdv", None), dkdv_kernel, None, (q, k, v, dout, dk, dv), (lse, delta, qt, dot))
