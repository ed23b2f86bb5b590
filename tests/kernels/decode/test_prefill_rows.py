"""Heads of one key head as rows of the prefill kernel: which calls go there, and their answers on Hopper."""

import pytest
import torch

from kernels.decode.triton_decode import decode, prefill_rows
from kernels.decode.triton_decode.request import Caches, Options, request_of
from tests.cases import cases
from tests.kernels.decode.conftest import Problem

H200 = ("sm_90", 132, 90)


@pytest.mark.parametrize(
    ("heads", "batch", "keys", "tokens", "served"),
    cases(__file__, "test_many_heads_of_as_many_key_heads_as_multiprocessors_go_to_the_prefill_kernel"),
)
def test_many_heads_of_as_many_key_heads_as_multiprocessors_go_to_the_prefill_kernel(
    heads, batch, keys, tokens, served, monkeypatch
):
    monkeypatch.setattr(prefill_rows, "INTERPRETED", False)
    q = torch.empty(batch, heads[0], tokens, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, heads[1], keys, 128, dtype=torch.bfloat16, device="meta")
    request = request_of(q, Caches(k, k), Options("NHD"), check_device=False)
    assert prefill_rows.suits(request, H200) == served
    assert not prefill_rows.suits(request, ("sm_80", 132, 80))


@pytest.mark.gpu
def test_out_and_logsumexp_of_heads_as_rows():
    device = torch.cuda.get_device_properties(0)
    if (device.major, device.minor) != (9, 0):
        pytest.skip("needs compute capability 9.0")
    batch = device.multi_processor_count
    problem = Problem((71, 1), [2048] * batch, 2048, 128, dtype=torch.bfloat16, device="cuda")
    problem.check(decode(problem.q, problem.k, problem.v, return_lse=True))
    out = decode(problem.q, problem.k, problem.v)
    apart = torch.cat([problem.k, problem.k[:, :, :1]], 2)[:, :, 1:].transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.allclose(out, decode(problem.q, apart.roll(1, 2), problem.v), atol=1e-2), "TMA cannot address it"
