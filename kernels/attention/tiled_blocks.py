"""What tiled_v1 and tiled_v2 share: attention block by block in plain PyTorch, and the backward that recomputes it.

To be read beside FlashAttention (arXiv 2205.14135): nothing is fused, every line is one line of its algorithms 1 and 4.
Beyond its tensors, a call keeps a float32 out and two float32 numbers a query; no score matrix but one block.
Query heads that share a key head are rows of one matrix, so that keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

BLOCK = 64  # rows and keys of a block, as FlashTile's default
_NONE = float("-inf")
Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # out, sum and maximum of some rows


class TiledProblem:
    """q, k and v cut into blocks. Shapes: q (batch, key heads, group, seqlen_q, head_dim), rows are of one group."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window_size: int,
        softmax_scale: float | None,
    ) -> None:
        self.q, self.k, self.v = q.unflatten(1, (k.shape[1], -1)), k, v
        self.shape, self.seqlen_q, self.seqlen_k = q.shape, q.shape[2], k.shape[2]
        self.scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        self.dtype = torch.promote_types(q.dtype, torch.float32)  # of sums
        self.right = 0 if causal else window_size - 1 if window_size else None  # how far ahead a query sees
        self.left = window_size - 1 if window_size else None

    def row_blocks(self) -> list[slice]:
        """Return the blocks of queries."""
        return _blocks(self.seqlen_q)

    def key_blocks(self) -> list[slice]:
        """Return the blocks of keys."""
        return _blocks(self.seqlen_k)

    def nothing_yet(self, rows: slice) -> Statistics:
        """Return out, sums and maxima of rows that have seen no key."""
        shape = (*self.q.shape[:3], rows.stop - rows.start)
        like = {"dtype": self.dtype, "device": self.q.device}
        out = torch.zeros((*shape, self.v.shape[-1]), **like)
        return out, torch.zeros((*shape, 1), **like), torch.full((*shape, 1), _NONE, **like)

    def sees(self, rows: slice, keys: slice) -> bool:
        """Return whether some query of a block sees some key of another."""
        shift = self.seqlen_k - self.seqlen_q  # the last query stands at the last key
        ahead = self.right is not None and keys.start > rows.stop - 1 + shift + self.right
        behind = self.left is not None and keys.stop - 1 < rows.start + shift - self.left
        return not (ahead or behind)

    def sees_all(self, rows: slice, keys: slice) -> bool:
        """Return whether every query of a block sees every key of another, which then needs no mask."""
        shift = self.seqlen_k - self.seqlen_q
        ahead = self.right is not None and keys.stop - 1 > rows.start + shift + self.right
        behind = self.left is not None and keys.start < rows.stop - 1 + shift - self.left
        return not (ahead or behind)

    def absorb(self, rows: slice, keys: slice, before: Statistics) -> Statistics:
        """Return out, sums and maxima of rows that have seen one block of keys more; out is divided every time."""
        out, total, highest = before
        scores = self.scores(rows, keys)
        new_highest = torch.maximum(highest, scores.amax(-1, keepdim=True))
        shown = new_highest
        if not self.sees_all(rows, keys):  # some rows may still see no key
            shown = new_highest.masked_fill(new_highest == _NONE, 0.0)
        p = (scores - shown).exp()
        rescaled = total * (highest - shown).exp()
        new_total = rescaled + p.sum(-1, keepdim=True)
        values = self._times(p, self.v[:, :, keys])
        out = (rescaled * out + values) / new_total.clamp_min(1.0)  # 0 of no key, else at least the largest's 1
        return out, new_total, new_highest

    def scores(self, rows: slice, keys: slice) -> torch.Tensor:
        """Return scaled scores of a block: (batch, key heads, group, rows, keys), -inf where a query must not look."""
        scores = self._times(self.q[:, :, :, rows].to(self.dtype), self.k[:, :, keys].mT).mul_(self.scale)
        if self.sees_all(rows, keys):
            return scores
        positions = torch.arange(rows.start, rows.stop, device=scores.device)[:, None] + self.seqlen_k - self.seqlen_q
        columns = torch.arange(keys.start, keys.stop, device=scores.device)
        hidden = columns > positions + self.right
        if self.left is not None:
            hidden |= columns < positions - self.left
        return scores.masked_fill_(hidden, _NONE)

    def gradients(self, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, *, skip: bool) -> tuple:
        """Return dq, dk and dv, by blocks of keys and within them of queries; `skip` blocks that the mask hides.

        Probabilities are recomputed from lse: (batch, key heads, group, seqlen_q, 1), the logarithm of the sums.
        """
        out, dout = (tensor.unflatten(1, self.q.shape[1:3]) for tensor in (out, dout))
        dq, dk, dv = (
            torch.zeros(tensor.shape, dtype=self.dtype, device=out.device) for tensor in (self.q, self.k, self.v)
        )
        for keys in self.key_blocks():
            k, v = self.k[:, :, keys], self.v[:, :, keys]
            for rows in self.row_blocks():
                if skip and not self.sees(rows, keys):
                    continue
                q, do = (tensor[:, :, :, rows].to(self.dtype) for tensor in (self.q, dout))
                p = (self.scores(rows, keys) - lse[:, :, :, rows]).exp()
                delta = (do * out[:, :, :, rows]).sum(-1, keepdim=True)
                ds = p * (self._times(do, v.mT) - delta) * self.scale
                dq[:, :, :, rows] += self._times(ds, k)
                dk[:, :, keys] += ds.flatten(2, 3).mT @ q.flatten(2, 3)
                dv[:, :, keys] += p.flatten(2, 3).mT @ do.flatten(2, 3)
        return dq.flatten(1, 2), dk, dv

    def _times(self, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Multiply (batch, key heads, group, rows, n) by (batch, key heads, n, m), all of a group at once."""
        return (rows.flatten(2, 3) @ keys.to(self.dtype)).unflatten(2, rows.shape[2:4])


Forward = Callable[[TiledProblem], Statistics]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward: Forward, skip: bool, *mask: Any) -> torch.Tensor:
    """Compute attention by a loop over blocks; `mask` is causal, window_size and softmax_scale."""
    return _TiledAttention.apply(q, k, v, forward, skip, mask)


class _TiledAttention(torch.autograd.Function):
    """Saves q, k, v, out and lse."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward: Forward, skip: bool, mask: tuple
    ) -> torch.Tensor:
        problem = TiledProblem(q, k, v, *mask)
        out, total, highest = forward(problem)
        blind = total == 0  # rows that see no key
        lse = torch.where(blind, torch.inf, highest + total.log())
        out = out.flatten(1, 2).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.skip, ctx.mask = skip, mask
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        q, k, v, out, lse = ctx.saved_tensors
        found = TiledProblem(q, k, v, *ctx.mask).gradients(out, lse, dout, skip=ctx.skip)
        like = zip(found, (q, k, v), strict=True)
        return *(gradient.to(tensor.dtype) for gradient, tensor in like), None, None, None


def _blocks(seqlen: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, seqlen)) for start in range(0, seqlen, BLOCK)]


def visible(problem: TiledProblem, rows: slice) -> Iterator[slice]:
    """Yield the blocks of keys that a block of queries sees."""
    return (keys for keys in problem.key_blocks() if problem.sees(rows, keys))
