"""What tiled_v1 and tiled_v2 share: attention block by block in plain PyTorch, and the backward that recomputes it.

To be read beside FlashAttention (arXiv 2205.14135): nothing is fused, every line is one line of its algorithms 1 and 4.
Beyond its tensors, a call keeps a float32 out and two float32 numbers a query; no score matrix but one block. What a
loop works with again and again is taken once, outside it, as the algorithms load it into shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

BLOCK = 64  # rows and keys of a block, as FlashTile's default
_NONE = float("-inf")
Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # out, sum and maximum of some rows


class TiledProblem:
    """q, k and v cut into blocks, each a stack of matrices: (batch x num_kv_heads, rows, n).

    Query heads that share a key head are rows of one matrix, so that keys and values are never repeated.
    """

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window_size: int,
        softmax_scale: float | None,
    ) -> None:
        self.q, self.k, self.v = self.grouped(q, k.shape[1]), k, v
        self.seqlen_q, self.seqlen_k = q.shape[2], k.shape[2]
        self.scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        self.dtype = torch.promote_types(q.dtype, torch.float32)  # of sums
        self.right = 0 if causal else window_size - 1 if window_size else None  # how far ahead a query sees
        self.left = window_size - 1 if window_size else None
        self.columns = torch.arange(self.seqlen_k, device=q.device)
        # the last query stands at the last key
        self.positions = torch.arange(self.seqlen_k - self.seqlen_q, self.seqlen_k, device=q.device)[:, None]

    @staticmethod
    def grouped(x: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
        """Return (batch, num_heads, seqlen, n) as (batch, num_kv_heads, group, seqlen, n)."""
        return x.unflatten(1, (num_kv_heads, -1))

    def row_blocks(self) -> list[slice]:
        """Return the blocks of queries."""
        return _blocks(self.seqlen_q)

    def key_blocks(self) -> list[slice]:
        """Return the blocks of keys."""
        return _blocks(self.seqlen_k)

    def block_of_rows(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return rows of (batch, num_kv_heads, group, seqlen_q, n) as a block."""
        return x[:, :, :, rows].flatten(2, 3).flatten(0, 1).to(self.dtype)

    def rows_of_block(self, block: torch.Tensor) -> torch.Tensor:
        """Return a block as rows of (batch, num_kv_heads, group, seqlen_q, n)."""
        batch, num_kv_heads, group = self.q.shape[:3]
        return block.view(batch, num_kv_heads, group, -1, block.shape[2])

    def queries(self, rows: slice) -> torch.Tensor:
        """Return a block of queries times the scale."""
        return self.block_of_rows(self.q, rows) * self.scale

    def keys_and_values(self, keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a block of keys and its values."""
        k, v = (x[:, :, keys].flatten(0, 1).to(self.dtype) for x in (self.k, self.v))
        return k, v

    def nothing_yet(self, rows: slice) -> Statistics:
        """Return out, sums and maxima of a block of rows that has seen no key."""
        batch, num_kv_heads, group = self.q.shape[:3]
        shape = (batch * num_kv_heads, group * (rows.stop - rows.start))
        like = {"dtype": self.dtype, "device": self.q.device}
        out = torch.zeros((*shape, self.v.shape[-1]), **like)
        return out, torch.zeros((*shape, 1), **like), torch.full((*shape, 1), _NONE, **like)

    def whole(self, blocks: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return blocks of rows, in their order, as (batch, num_kv_heads, group, seqlen_q, n)."""
        return torch.cat([self.rows_of_block(block) for block in blocks], dim=3)

    def sees(self, rows: slice, keys: slice) -> bool:
        """Return whether some query of a block sees some key of another."""
        shift = self.seqlen_k - self.seqlen_q  # the last query stands at the last key
        ahead = self.right is not None and keys.start > rows.stop - 1 + shift + self.right
        behind = self.left is not None and keys.stop - 1 < rows.start + shift - self.left
        return not (ahead or behind)

    def hidden(self, rows: slice, keys: slice) -> torch.Tensor | None:
        """Return which scores of a block the mask hides: (group x rows, keys); None if it hides none."""
        shift = self.seqlen_k - self.seqlen_q
        ahead = self.right is not None and keys.stop - 1 > rows.start + shift + self.right
        behind = self.left is not None and keys.start < rows.stop - 1 + shift - self.left
        if not (ahead or behind):
            return None
        distance = self.columns[keys] - self.positions[rows]
        found = distance > self.right
        if self.left is not None:
            found |= distance < -self.left
        return found.repeat(self.q.shape[2], 1)

    def absorb(
        self, before: Statistics, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None
    ) -> Statistics:
        """Return out, sums and maxima of rows that have seen one block of keys more; out is divided every time.

        Algorithm 1, lines 9 to 13: q is scaled, and scores are -inf where a query must not look.
        """
        out, total, highest = before
        scores = torch.bmm(q, k.mT)
        if hidden is not None:
            scores.masked_fill_(hidden, _NONE)
        new_highest = torch.maximum(highest, scores.amax(-1, keepdim=True))
        # some rows may still see no key
        shown = new_highest if hidden is None else new_highest.clamp_min(torch.finfo(self.dtype).min)
        p = scores.sub_(shown).exp_()
        rescaled = (highest - shown).exp_() * total
        new_total = rescaled + p.sum(-1, keepdim=True)
        divisor = (
            new_total if hidden is None else new_total.clamp_min(1.0)
        )  # 0 of no key, else at least its largest's 1
        return torch.addcmul(torch.bmm(p, v), rescaled, out).div_(divisor), new_total, new_highest

    def gradients(self, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, *, skip: bool) -> tuple:
        """Return dq, dk and dv, by blocks of keys and within them of queries; `skip` blocks that the mask hides.

        Probabilities are recomputed from lse: (batch, num_kv_heads, group, seqlen_q, 1), the logarithm of the sums.
        """
        out, dout = (self.grouped(tensor, self.k.shape[1]) for tensor in (out, dout))
        dq, dk, dv = (
            torch.zeros(tensor.shape, dtype=self.dtype, device=out.device) for tensor in (self.q, self.k, self.v)
        )
        for keys in self.key_blocks():
            k, v = self.keys_and_values(keys)
            for rows in self.row_blocks():
                if skip and not self.sees(rows, keys):
                    continue
                q, hidden = self.queries(rows), self.hidden(rows, keys)
                rows_lse, do, o = (self.block_of_rows(x, rows) for x in (lse, dout, out))
                scores = torch.bmm(q, k.mT)
                if hidden is not None:
                    scores.masked_fill_(hidden, _NONE)
                p = scores.sub_(rows_lse).exp_()
                ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
                dq[:, :, :, rows] += self.rows_of_block(ds @ k * self.scale)
                dk[:, :, keys] += (ds.mT @ q).unflatten(0, self.k.shape[:2])
                dv[:, :, keys] += (p.mT @ do).unflatten(0, self.k.shape[:2])
        return dq.flatten(1, 2), dk, dv


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
