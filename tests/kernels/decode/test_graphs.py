"""CUDA graphs of decoding, replayed with other lengths, tables and caches than they were captured with."""

import pytest
import torch

from kernels.decode.triton_decode import decode
from kernels.decode.triton_decode.tuning import DecodeTile
from kernels.decode.triton_mla import mla_decode
from tests.kernels.decode.conftest import Problem, paged

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tickets", [True, False])
@pytest.mark.parametrize("page", [0, 16])
def test_a_replay_reads_the_lengths_and_tables_of_now(tickets, page):
    problem = Problem((8, 2), [700, 0, 513, 64], 1024, 64, seqlen_q=2, device="cuda", dtype=torch.bfloat16)
    for x in (problem.k, problem.v):
        x.nan_to_num_(nan=0.5)
    tile = DecodeTile(32, 4, 3, 2, 64, tickets=tickets)
    lengths = problem.cache_seqlens
    k, v, table = problem.k, problem.v, None
    if page:
        k, v, table = paged(Problem(**_full(problem)), page, "NHD")
        k.nan_to_num_(nan=0.5)
        v.nan_to_num_(nan=0.5)

    def call():
        return decode(problem.q, k, v, cache_seqlens=lengths, page_table=table, return_lse=True, tile=tile)

    _replays(call, problem.q, lengths, table)


@pytest.mark.parametrize("heads", [16, 64])
@pytest.mark.parametrize("page", [0, 16, 64])
def test_a_replay_of_latent_attention_reads_the_lengths_and_tables_of_now(heads, page):
    q = torch.randn(4, heads, 1, 576, device="cuda", dtype=torch.bfloat16)
    kv = torch.randn(*((4 * 1024 // page, page) if page else (4, 1024)), 576, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(len(kv), device="cuda").int().view(4, -1) if page else None
    lengths = torch.tensor([700, 0, 513, 64], dtype=torch.int32, device="cuda")
    options = {"softmax_scale": 0.1, "cache_seqlens": lengths, "page_table": table, "return_lse": True}
    _replays(lambda: mla_decode(q, kv, **options), q, lengths, table)


def _replays(call, q, lengths, table):
    """Capture a call over caches of 4 x 1024 tokens; assert that replays with other inputs give what a call gives."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = call()
    for new in ([1, 1024, 77, 0], [1024, 1024, 1024, 1024], [5, 6, 7, 8]):
        lengths.copy_(torch.tensor(new, dtype=torch.int32))
        if table is not None:
            table.copy_(table.flip(0))
        q.normal_()
        out.fill_(float("nan"))
        for _ in range(2):
            graph.replay()
        expected = call()
        assert torch.equal(out, expected[0])
        assert torch.equal(lse, expected[1])


def _full(problem):
    return dict(heads=(8, 2), lengths=[1024] * 4, capacity=1024, head_dim=64, device="cuda", dtype=problem.dtype)
