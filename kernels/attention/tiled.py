"""FlashAttention block by block in plain PyTorch, for reading and for its memory curve: two orders of the loops.

tiled_v1 is algorithm 1 of FlashAttention (arXiv 2205.14135): the outer loop is over blocks of keys, and out, sum and
maximum of every block of queries are read and written again for each of them. It skips no hidden block. tiled_v2 has
FlashAttention-2's order: the outer loop is over queries, a block of out stays in place, and hidden blocks are skipped.
Report flashtile_a100 calls them Flash V1 and Flash V2. As in the report's code, tiled_v2 divides by the sum in every
step, which FlashAttention-2 (arXiv 2307.08691, section 3.1) does once, at the end.

Nothing is fused: every line is one line of algorithms 1 and 4. Besides its tensors, a call keeps a float32 out and two
float32 numbers for each query, and one block of scores. Operands of inner loops are prepared outside them, as the
algorithms load them into shared memory.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..features import reach
from ..plans import Options
from ..registry import declare

BLOCK = 64  # rows and keys of a block, the default of FlashTile
_NONE = float("-inf")
Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # out, sums and maxima of some rows


def blocks(seqlen: int) -> list[slice]:
    """Return the blocks of a sequence."""
    return [slice(start, min(start + BLOCK, seqlen)) for start in range(0, seqlen, BLOCK)]


class TiledProblem:
    """q, k and v in blocks; each block is a stack of matrices (batch x num_kv_heads, rows, n).

    Query heads that share a key head are rows of one matrix, so keys and values are never repeated.
    """

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> None:
        causal, self.window_size, softmax_scale = options
        self.k, self.v, self.q = k, v, q.unflatten(1, (k.shape[1], -1))
        self.seqlen_q, self.seqlen_k = q.shape[2], k.shape[2]
        self.scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        self.dtype = torch.promote_types(q.dtype, torch.float32)  # sums have at least float32
        self.left, self.right = reach(causal, self.window_size, self.seqlen_q + self.seqlen_k)
        self.columns = torch.arange(self.seqlen_k, device=q.device)
        # the last query is aligned with the last key
        self.positions = torch.arange(self.seqlen_k - self.seqlen_q, self.seqlen_k, device=q.device)[:, None]

    def block(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return rows of (batch, num_kv_heads, group, seqlen_q, n), or of (batch, num_kv_heads, seqlen_k, n)."""
        return x[..., rows, :].flatten(2, -2).flatten(0, 1).to(self.dtype)

    def rows_of_block(self, block: torch.Tensor) -> torch.Tensor:
        """Return a block of queries' rows as (batch, num_kv_heads, group, rows, n)."""
        return block.view(*self.q.shape[:3], -1, block.shape[2])

    def queries(self, rows: slice) -> torch.Tensor:
        """Return a block of queries times the scale."""
        return self.block(self.q, rows) * self.scale

    def keys_and_values(self, keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a block of keys and its values."""
        return self.block(self.k, keys), self.block(self.v, keys)

    def nothing_yet(self, rows: slice) -> Statistics:
        """Return out, sums and maxima of a block of rows before the first key."""
        batch, num_kv_heads, group = self.q.shape[:3]
        shape = (batch * num_kv_heads, group * (rows.stop - rows.start))
        like: dict[str, Any] = {"dtype": self.dtype, "device": self.q.device}
        out = torch.zeros((*shape, self.v.shape[-1]), **like)
        return out, torch.zeros((*shape, 1), **like), torch.full((*shape, 1), _NONE, **like)

    def whole(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return blocks of rows, in their order, as (batch, num_kv_heads, group, seqlen_q, n)."""
        return torch.cat([self.rows_of_block(block) for block in parts], dim=3)

    def _distances(self, rows: slice, keys: slice) -> tuple[int, int]:
        """Return how far the first and the last key of a block are ahead, from the last and the first row."""
        shift = self.seqlen_k - self.seqlen_q
        return keys.start - (rows.stop - 1 + shift), keys.stop - 1 - (rows.start + shift)

    def sees(self, rows: slice, keys: slice) -> bool:
        """Return whether some query of a block sees some key of another."""
        least, most = self._distances(rows, keys)
        return least <= self.right and most >= -self.left

    def hidden(self, rows: slice, keys: slice) -> torch.Tensor | None:
        """Return a mask of the hidden scores of a block: (group x rows, keys); None if no score is hidden."""
        least, most = self._distances(rows, keys)
        if most <= self.right and least >= -self.left:
            return None
        distance = self.columns[keys] - self.positions[rows]
        found = distance > self.right
        if self.window_size:
            found |= distance < -self.left
        return found.repeat(self.q.shape[2], 1)

    def absorb(
        self, before: Statistics, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None
    ) -> Statistics:
        """Return out, sums and maxima of rows after one more block of keys; out is divided by the sum every time.

        Algorithm 1, lines 9 to 13: q is scaled, and hidden scores are -inf.
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
        # The sum is 0 for a row without a visible key, else at least the 1 of its largest score.
        divisor = new_total if hidden is None else new_total.clamp_min(1.0)
        return torch.addcmul(torch.bmm(p, v), rescaled, out).div_(divisor), new_total, new_highest

    def gradients(self, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, *, skip: bool) -> tuple:
        """Return dq, dk and dv by a loop over keys and an inner loop over queries; `skip`: leave out hidden blocks.

        Probabilities are recomputed from lse: (batch, num_kv_heads, group, seqlen_q, 1), the logarithm of the sums.
        """
        out, dout = (tensor.unflatten(1, (self.k.shape[1], -1)) for tensor in (out, dout))
        dq, dk, dv = (
            torch.zeros(tensor.shape, dtype=self.dtype, device=out.device) for tensor in (self.q, self.k, self.v)
        )
        for keys in blocks(self.seqlen_k):
            k, v = self.keys_and_values(keys)
            for rows in blocks(self.seqlen_q):
                if skip and not self.sees(rows, keys):
                    continue
                q, hidden = self.queries(rows), self.hidden(rows, keys)
                rows_lse, do, o = (self.block(x, rows) for x in (lse, dout, out))
                scores = torch.bmm(q, k.mT)
                if hidden is not None:
                    scores.masked_fill_(hidden, _NONE)
                p = scores.sub_(rows_lse).exp_()
                ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
                dq[:, :, :, rows] += self.rows_of_block(ds @ k * self.scale)
                dk[:, :, keys] += (ds.mT @ q).unflatten(0, self.k.shape[:2])
                dv[:, :, keys] += (p.mT @ do).unflatten(0, self.k.shape[:2])
        return dq.flatten(1, 2), dk, dv


Loop = Callable[[TiledProblem], list[Statistics]]  # returns the statistics of each block of queries


def keys_outside(problem: TiledProblem) -> list[Statistics]:
    """Visit every block of queries for each block of keys."""
    rows_of = blocks(problem.seqlen_q)
    found = [problem.nothing_yet(rows) for rows in rows_of]
    for keys in blocks(problem.seqlen_k):
        k, v = problem.keys_and_values(keys)
        for i, rows in enumerate(rows_of):
            found[i] = problem.absorb(found[i], problem.queries(rows), k, v, problem.hidden(rows, keys))
    return found


def queries_outside(problem: TiledProblem) -> list[Statistics]:
    """Visit the visible blocks of keys for each block of queries."""
    found = []
    for rows in blocks(problem.seqlen_q):
        q, seen = problem.queries(rows), problem.nothing_yet(rows)
        for keys in blocks(problem.seqlen_k):
            if problem.sees(rows, keys):
                seen = problem.absorb(seen, q, *problem.keys_and_values(keys), problem.hidden(rows, keys))
        found.append(seen)
    return found


def attention(
    loop: Loop,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute attention by a loop over blocks; see `kernels.registry.Attention`."""
    return _TiledAttention.apply(q, k, v, loop, (causal, window_size, softmax_scale))


class _TiledAttention(torch.autograd.Function):
    """Saves q, k, v, out and lse."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, loop: Loop, mask: tuple) -> torch.Tensor:
        problem = TiledProblem(q, k, v, *mask)
        out, total, highest = (problem.whole(parts) for parts in zip(*loop(problem), strict=True))
        lse = torch.where(total == 0, torch.inf, highest + total.log())  # inf for rows without a visible key
        out = out.flatten(1, 2).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.loop, ctx.mask = loop, mask
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        q, k, v, out, lse = ctx.saved_tensors
        found = TiledProblem(q, k, v, *ctx.mask).gradients(out, lse, dout, skip=ctx.loop is queries_outside)
        like = zip(found, (q, k, v), strict=True)
        return *(gradient.to(tensor.dtype) for gradient, tensor in like), None, None


IMPLEMENTATIONS = (
    declare("tiled_v1", partial(attention, keys_outside)),
    declare("tiled_v2", partial(attention, queries_outside)),
)
