"""Causal ring attention of a sequence that ranks share: `python -m kernels.examples.ring_attention [RANKS]`.

Two processes exchange keys and values over gloo; with RANKS, so many ranks are computed in turn on one device.
"""

import sys
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist

import kernels  # installed with pip, the name is attnbench


class Exchange(torch.autograd.Function):
    """Send a tensor to the next rank and receive the previous one's; the gradient goes the other way."""

    @staticmethod
    def forward(ctx, x, step=1):
        ctx.step, received, ranks = step, torch.empty_like(x), dist.get_world_size()
        sending = dist.isend(x.contiguous(), (dist.get_rank() + step) % ranks)
        dist.recv(received, (dist.get_rank() - step) % ranks)
        sending.wait()
        return received

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient.contiguous(), -ctx.step), None


def zigzag(x, rank, ranks):
    """Return the rows of a rank: of 2N chunks of rows, rank r holds chunks r and 2N - 1 - r."""
    return torch.cat([x.chunk(2 * ranks, 2)[i] for i in (rank, 2 * ranks - 1 - rank)], 2)


def ring_attention(q, k, v):
    """Compute causal attention of the rows of `zigzag` that this process holds."""

    def received(kv):
        for _ in range(1, dist.get_world_size()):
            kv = Exchange.apply(kv)
            yield kv

    return over_parts(q, k, v, received(torch.stack([k, v])), dist.get_rank())


def over_parts(q, k, v, received, rank):
    """Merge causal attention to the rank's own keys with that to each part received, from the rank before it on."""
    half = q.shape[2] // 2
    out, lse = kernels.attention(q, k, v, causal=True, return_lse=True)
    for step, kv in enumerate(received, 1):
        if step <= rank:  # from a rank before: all queries see its first chunk, and none its second
            part = kernels.attention(q, *kv[..., :half, :], return_lse=True)
        else:  # from a rank behind: the second chunk of queries sees both of its chunks
            seen, unseen = kernels.attention(q[:, :, half:], *kv, return_lse=True), lse[:, :, :half] - torch.inf
            part = torch.cat([torch.zeros_like(seen[0]), seen[0]], 2), torch.cat([unseen, seen[1]], 2)
        out, lse = kernels.merge(out.float(), lse, *part)
    return out.to(q.dtype)


def _work(rank, ranks, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    whole = [torch.randn(1, 4, 64 * ranks, 32).requires_grad_() for _ in range(3)]
    expected = kernels.attention(*whole, causal=True)
    mine = [zigzag(x, rank, ranks) for x in (*whole, expected)]
    out = ring_attention(*mine[:3])
    found, wanted = (torch.autograd.grad(x.square().sum(), whole, retain_graph=True) for x in (out, expected))
    for x in found:  # those of a rank are zero in other ranks' rows
        dist.all_reduce(x)
    errors = [(a - b).abs().max().item() for a, b in zip((out, *found), (mine[3], *wanted), strict=True)]
    print(f"rank {rank}: largest errors of out, dq, dk, dv {errors}", flush=True)
    dist.destroy_process_group()
    assert max(errors) < 1e-4


def simulate(q, k, v, ranks):
    """Compute the ranks in turn on one device; return out of all rows, each rank's seconds, and those of one call."""
    mine = [[zigzag(x, rank, ranks) for x in (q, k, v)] for rank in range(ranks)]
    calls = [partial(kernels.attention, q, k, v, causal=True)]
    for rank in range(ranks):
        received = [torch.stack(mine[rank - step][1:]) for step in range(1, ranks)]
        calls.append(partial(over_parts, *mine[rank], received, rank))
    (_, whole), *found = [_timed(call) for call in calls]
    halves = [out.chunk(2, 2) for out, _ in found]
    rows = [first for first, _ in halves] + [second for _, second in reversed(halves)]
    return torch.cat(rows, 2), [seconds for _, seconds in found], whole


def _timed(call):
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    call()  # compiles
    wait()
    start, out = time.perf_counter(), call()
    wait()
    return out, time.perf_counter() - start


def _compare(ranks):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = torch.randn(3, 1, 8, 512 * ranks, 64, device=device)
    out, seconds, whole = simulate(q, k, v, ranks)
    exact = kernels.attention(q.double(), k.double(), v.double(), causal=True)
    errors = [(x - exact).abs().max().item() for x in (out, kernels.attention(q, k, v, causal=True))]
    print(f"{ranks} ranks: largest error {errors[0]:.1e}, of one call {errors[1]:.1e}")
    if device == "cuda":
        print(f"the slowest rank takes {max(seconds) * ranks / whole:.2f} times its share of one call")
    assert errors[0] <= 2 * errors[1] + 1e-6


if __name__ == "__main__" and len(sys.argv) > 1:
    _compare(int(sys.argv[1]))
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_work, (2, f"{folder}/store"), 2)
