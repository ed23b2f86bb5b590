"""Causal ring attention of a sequence that two ranks share: `python -m kernels.examples.ring_attention`."""

import tempfile

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


def ring_attention(q, k, v):
    """Compute causal attention where, of 2N chunks of rows, rank r holds chunks r and 2N - 1 - r: a zigzag."""
    half, kv = q.shape[2] // 2, torch.stack([k, v])
    out, lse = kernels.attention(q, k, v, causal=True, return_lse=True)
    for step in range(1, dist.get_world_size()):
        kv = Exchange.apply(kv)
        if step <= dist.get_rank():  # from a rank before: all queries see its first chunk, and none its second
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
    mine = [torch.cat([x.chunk(2 * ranks, 2)[i] for i in (rank, 2 * ranks - 1 - rank)], 2) for x in (*whole, expected)]
    out = ring_attention(*mine[:3])
    found, wanted = (torch.autograd.grad(x.square().sum(), whole, retain_graph=True) for x in (out, expected))
    for x in found:  # those of a rank are zero in other ranks' rows
        dist.all_reduce(x)
    errors = [(a - b).abs().max().item() for a, b in zip((out, *found), (mine[3], *wanted), strict=True)]
    print(f"rank {rank}: largest errors of out, dq, dk, dv {errors}", flush=True)
    dist.destroy_process_group()
    assert max(errors) < 1e-4


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_work, (2, f"{folder}/store"), 2)
