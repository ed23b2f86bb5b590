"""The tensors of a case and the calls that are checked and timed: the same inputs for every implementation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.registry import Attention
from results.records import Case

Call = Callable[[], object]

_OUTLIERS, _OUTLIER_SIZE = 3, 30.0  # channels, and how much larger they are
_LARGE = 8.0


@dataclass(frozen=True)
class Inputs:
    """q, k, v and the gradient that arrives at out; never constant, because constant data runs faster than real.

    `normal`: all of them standard normal. `outliers`: as in trained models, a few channels of k, the same for all
    tokens, are 30 times as large as the others (KIVI, arXiv 2402.02750, section 3.2, figure 2). `large`: q, k and v are
    8 times as large, so that every softmax has one winner.
    """

    q: torch.Tensor  # (batch, num_heads, seqlen_q, head_dim)
    k: torch.Tensor  # (batch, num_kv_heads, seqlen_k, head_dim)
    v: torch.Tensor  # (batch, num_kv_heads, seqlen_k, head_dim_v)
    dout: torch.Tensor  # (batch, num_heads, seqlen_q, head_dim_v)

    def bytes_of(self, mode: str) -> int:
        """What the call of a mode is given."""
        given = (self.q, self.k, self.v) if mode == "fwd" else (self.q, self.k, self.v, self.dout)
        return sum(tensor.numel() * tensor.element_size() for tensor in given)


def make_inputs(case: Case, device: str, seed: int) -> Inputs:
    """The tensors of a case, filled from the seed."""
    inputs = empty_inputs(case, device)
    fill(inputs, case, seed)
    return inputs


def empty_inputs(case: Case, device: str) -> Inputs:
    """The tensors of a case, with whatever their memory held."""
    dtype = getattr(torch, case.dtype)
    queries, keys = (case.batch, case.num_heads, case.seqlen_q), (case.batch, case.num_kv_heads, case.seqlen_k)
    width = case.head_dim_v or case.head_dim
    shapes = ((*queries, case.head_dim), (*keys, case.head_dim), (*keys, width), (*queries, width))
    q, k, v, dout = (torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    return Inputs(*(tensor.requires_grad_() for tensor in (q, k, v)), dout)


def fill(inputs: Inputs, case: Case, seed: int) -> None:
    """Write the data of a seed into the same tensors; on one kind of device the same seed gives the same data."""
    digest = hashlib.sha256(f"{seed}/{case}".encode()).digest()
    generator = torch.Generator(device=inputs.q.device).manual_seed(int.from_bytes(digest[:6], "big"))
    with torch.no_grad():
        for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout):
            tensor.normal_(generator=generator)
        if case.inputs == "outliers":
            inputs.k[..., :: max(1, case.head_dim // _OUTLIERS)] *= _OUTLIER_SIZE
        elif case.inputs == "large":
            for tensor in (inputs.q, inputs.k, inputs.v):
                tensor *= _LARGE


class Subject:
    """One implementation at work on the inputs of a case."""

    def __init__(self, attention: Attention, inputs: Inputs, case: Case) -> None:
        self._attention, self._inputs, self._case = attention, inputs, case

    def forward(self) -> torch.Tensor:
        """out, with whatever autograd keeps if gradients are on."""
        q, k, v = self._inputs.q, self._inputs.k, self._inputs.v
        return self._attention(q, k, v, causal=bool(self._case.causal), window_size=self._case.window_size or 0)

    def backward(self, out: torch.Tensor, *, keep: bool = False) -> tuple[torch.Tensor, ...]:
        """dq, dk and dv of an out; with `keep` the graph stays for another time."""
        q, k, v = self._inputs.q, self._inputs.k, self._inputs.v
        return torch.autograd.grad(out, (q, k, v), self._inputs.dout, retain_graph=keep)

    def call(self, mode: str) -> Call:
        """What is timed: fwd without gradients, bwd on one kept graph, or both as in training."""
        if mode == "fwd":
            return self._inference
        if mode == "bwd":
            out = self.forward()
            return lambda: self.backward(out, keep=True)
        return lambda: self.backward(self.forward())

    def _inference(self) -> torch.Tensor:
        with torch.no_grad():
            return self.forward()
