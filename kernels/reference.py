"""The oracle: attention and its gradients in float64, written out from the definition.

With `stored_as` it computes what the best fused kernel could: exactly, but with the probabilities and the gradients of
the scores rounded where they become factors of a matrix product, and with rounded results. What such a kernel loses is
the yardstick for real ones.

Works through the queries in chunks, so that memory stays near `CHUNK_BYTES` beyond the tensors themselves, and skips
the keys that no query of a chunk sees. Slow next to a kernel, but batched over heads, so that it serves on a GPU too.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

CHUNK_BYTES = 1 << 30  # size of one float64 score matrix; at most four are alive


@dataclass(frozen=True)
class Reference:
    """What attention should be, in float64."""

    out: torch.Tensor  # (batch, num_heads, seqlen_q, head_dim_v); 0 for a query that sees no key
    lse: torch.Tensor  # (batch, num_heads, seqlen_q), natural logarithm; -inf for a query that sees no key


@dataclass(frozen=True)
class Gradients(Reference):
    """What attention and the gradients of sum(out * dout) should be, in float64."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Reference:
    """Compute output and logsumexp for q: (batch, num_heads, seqlen_q, head_dim); k, v with num_kv_heads and seqlen_k.

    Options are the masks and the scale that `kernels.registry.Attention` defines, and `stored_as`, a dtype to which
    factors and out are rounded.
    """
    with torch.no_grad():
        problem = _Problem(q, k, v, **options)
        for chunk in problem.chunks():
            problem.forward(chunk)
        return Reference(problem.like_q(problem.out), problem.like_q(problem.lse))


def gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, **options: Any) -> Gradients:
    """Compute output, logsumexp and the gradients of q, k and v for the output's gradient `dout`, as `attention`.

    With P = softmax(scale Q K^T): dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = scale dS K,
    dK = scale dS^T Q (FlashAttention, arXiv:2205.14135, appendix B.2). With `stored_as`, P, dS, O and the gradients are
    rounded to that dtype.
    """
    with torch.no_grad():
        problem = _Problem(q, k, v, **options)
        problem.prepare_backward(dout)
        for chunk in problem.chunks():
            problem.backward(chunk, problem.forward(chunk))
        return Gradients(
            problem.like_q(problem.out),
            problem.like_q(problem.lse),
            problem.like_q(problem.stored(problem.dq)),
            problem.stored(problem.dk).view(k.shape),
            problem.stored(problem.dv).view(v.shape),
        )


@dataclass(frozen=True)
class _Chunk:
    """A part of the problem whose score matrix fits in memory."""

    heads: slice  # within batch x num_kv_heads
    rows: slice  # within the queries
    keys: slice  # keys that any of these queries may see


class _Problem:
    """Everything in float64 and grouped by key head: q is (batch x num_kv_heads, group, seqlen_q, head_dim)."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: int = 0,
        softmax_scale: float | None = None,
        stored_as: torch.dtype | None = None,
    ) -> None:
        self.stored_as = stored_as
        batch, self.num_heads, self.seqlen_q, head_dim = q.shape
        num_kv_heads, self.seqlen_k, head_dim_v = k.shape[1], k.shape[2], v.shape[3]
        self.batch, self.total, self.group = batch, batch * num_kv_heads, self.num_heads // num_kv_heads
        self.scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        self.shift = self.seqlen_k - self.seqlen_q  # the last query is at the last key
        self.left = window_size - 1 if window_size else None
        self.right = 0 if causal else self.left
        self.q = q.double().reshape(self.total, self.group, self.seqlen_q, head_dim)
        self.k = k.double().reshape(self.total, self.seqlen_k, head_dim)
        self.v = v.double().reshape(self.total, self.seqlen_k, head_dim_v)
        self.out = self.q.new_zeros(self.total, self.group, self.seqlen_q, head_dim_v)
        self.lse = self.q.new_full((self.total, self.group, self.seqlen_q), float("-inf"))

    def prepare_backward(self, dout: torch.Tensor) -> None:
        """Allocate the gradients."""
        self.dout = dout.double().reshape(self.out.shape)
        self.dq, self.dk, self.dv = torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)

    def chunks(self) -> Iterator[_Chunk]:
        """Yield all queries that see a key, a part of the heads and rows at a time."""
        row_bytes = 8 * self.group * max(1, self.seqlen_k)
        rows = min(self.seqlen_q, max(1, CHUNK_BYTES // row_bytes), 2048)
        heads = max(1, CHUNK_BYTES // (row_bytes * max(1, rows)))
        for head in range(0, self.total, heads):
            for row in range(0, self.seqlen_q, rows):
                end = min(row + rows, self.seqlen_q)
                first = 0 if self.left is None else max(0, row + self.shift - self.left)
                last = self.seqlen_k if self.right is None else min(self.seqlen_k, end + self.shift + self.right)
                if first < last:
                    yield _Chunk(slice(head, head + heads), slice(row, end), slice(first, last))

    def forward(self, chunk: _Chunk) -> torch.Tensor:
        """Store a chunk's output and logsumexp; return its probabilities (heads, group, rows, keys)."""
        q, k, v = self._of(self.q, chunk), self.k[chunk.heads, chunk.keys], self.v[chunk.heads, chunk.keys]
        heads, group, rows, _ = self.q[chunk.heads, :, chunk.rows].shape
        scores = torch.bmm(q, k.mT).mul_(self.scale).view(heads, group, rows, -1)
        self._mask(scores, chunk)
        highest = scores.amax(-1, keepdim=True)
        highest.masked_fill_(highest == float("-inf"), 0.0)
        p = scores.sub_(highest).exp_()
        total = p.sum(-1, keepdim=True)
        self.lse[chunk.heads, :, chunk.rows] = (highest + total.log()).squeeze(-1)
        p = self.stored(p.div_(total.masked_fill(total == 0, 1.0)))
        out = torch.bmm(p.view(heads, group * rows, -1), v).view(heads, group, rows, -1)
        self.out[chunk.heads, :, chunk.rows] = self.stored(out)
        return p

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """Return x as a kernel stores it, in float64."""
        return x if self.stored_as is None else x.to(self.stored_as).double()

    def backward(self, chunk: _Chunk, p: torch.Tensor) -> None:
        """Add what the chunk's queries contribute to the gradients, by their probabilities."""
        q, dout, out = (self._of(x, chunk) for x in (self.q, self.dout, self.out))
        k, v = self.k[chunk.heads, chunk.keys], self.v[chunk.heads, chunk.keys]
        p = p.view(p.shape[0], -1, p.shape[-1])
        self.dv[chunk.heads, chunk.keys] += torch.bmm(p.mT, dout)
        ds = torch.bmm(dout, v.mT).sub_((dout * out).sum(-1, keepdim=True)).mul_(p).mul_(self.scale)
        ds = self.stored(ds)
        shape = self.q[chunk.heads, :, chunk.rows].shape
        self.dq[chunk.heads, :, chunk.rows] = torch.bmm(ds, k).view(shape)
        self.dk[chunk.heads, chunk.keys] += torch.bmm(ds.mT, q)

    def like_q(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape from (batch x num_kv_heads, group, ...) back to (batch, num_heads, ...)."""
        return x.reshape(self.batch, self.num_heads, *x.shape[2:])

    def _of(self, x: torch.Tensor, chunk: _Chunk) -> torch.Tensor:
        """Return the chunk's rows of all query heads of a group as one matrix: (heads, group x rows, head_dim)."""
        part = x[chunk.heads, :, chunk.rows]
        return part.reshape(part.shape[0], -1, part.shape[-1])

    def _mask(self, scores: torch.Tensor, chunk: _Chunk) -> None:
        if self.right is None:
            return
        positions = torch.arange(chunk.rows.start, chunk.rows.stop, device=scores.device)[:, None] + self.shift
        keys = torch.arange(chunk.keys.start, chunk.keys.stop, device=scores.device)[None, :]
        hidden = keys > positions + self.right
        if self.left is not None:
            hidden |= keys < positions - self.left
        scores.masked_fill_(hidden, float("-inf"))


@contextlib.contextmanager
def tf32_products(*, allowed: bool) -> Iterator[None]:
    """Allow PyTorch's float32 products on a GPU to be rounded to TF32 within this block, or do not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
