"""Paged and 8-bit caches: the same answers as the contiguous cache that they stand for."""

import pytest
import torch

from kernels.decode.triton_decode import decode
from tests.kernels.decode.conftest import NOWHERE, SMALL, paged


def run(problem, k, v, table, **more):
    asked = {"cache_seqlens": problem.cache_seqlens, "return_lse": True, "tile": SMALL, **more}
    return decode(problem.q, k, v, page_table=table, **asked)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [1, 3, 16, 64])
def test_shuffled_pages(make, page, layout):
    problem = make((4, 2), [75, 0, 130, 16], 130, 32, seqlen_q=2)
    k, v, table = paged(problem, page, layout)
    problem.check(run(problem, k, v, table, kv_layout=layout))


def test_pages_before_every_window_may_be_gone(make):
    problem = make((4, 2), [75, 130], 130, 32, options={"window_size": 20})
    k, v, table = paged(problem, 16, "NHD")
    table[0, : (75 - 20) // 16] = -1
    table[1, : (130 - 20) // 16] = -1
    problem.check(run(problem, k, v, table, window_size=20))


def test_lengths_beyond_the_table_count_as_all_of_it(make):
    problem = make((4, 2), [32, 32], 32, 32)
    k, v, table = paged(problem, 16, "NHD")
    room = torch.full((2, 5), NOWHERE, dtype=torch.int32, device=table.device)
    room[:, :2] = table
    problem.check(run(problem, k, v, room[:, :2], cache_seqlens=problem.cache_seqlens + 1000))


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("scales", [None, (), (2,), (3, 2)])
def test_e4m3_caches(make, page, scales):
    problem = make((6, 2), [75, 20, 130], 130, 64, seqlen_q=2)
    one = torch.ones(3, 2, device=problem.device)
    draw = torch.Generator().manual_seed(1)
    k_scale, v_scale = (
        (None, None) if scales is None else tuple(torch.rand(scales, generator=draw).to(one) + 0.5 for _ in range(2))
    )
    stored = [x.to(torch.float8_e4m3fn) for x in (problem.k, problem.v)]
    factors = [one if scale is None else scale.expand(3, 2) for scale in (k_scale, v_scale)]
    k, v = (x.double() * factor.double()[:, :, None, None] for x, factor in zip(stored, factors, strict=True))
    expected = problem.expected(k, v)
    problem.k, problem.v = stored
    more = {"k_scale": k_scale, "v_scale": v_scale, "cache_seqlens": problem.cache_seqlens}
    if page:
        problem.k, problem.v = (x.float() for x in stored)
        *stored, more["page_table"] = paged(problem, page, "HND")
        stored = [x.to(torch.float8_e4m3fn) for x in stored]
        more["kv_layout"] = "HND"
    answer = decode(problem.q, *stored, return_lse=True, tile=SMALL, **more)
    problem.check(answer, expected, slack=2.0)


def test_every_e4m3_value_is_exact(make):
    every = torch.arange(256, dtype=torch.uint8)
    every = every[(every & 0x7F) != 0x7F]
    values = every.view(torch.float8_e4m3fn).repeat(1, 1, 16, 1)[..., :128].contiguous()
    problem = make((1, 1), [16], 16, 128)
    q = torch.zeros_like(problem.q)
    out = decode(q, values.to(q.device), values.to(q.device), tile=SMALL)
    assert torch.equal(out[0, 0, 0].float(), values[0, 0, 0].float().to(q.device))


def test_queries_beyond_float16_meet_an_e4m3_cache(device):
    if device == "cpu":
        pytest.skip("Triton's interpreter multiplies bfloat16 wrongly (triton issue 11584)")
    q = torch.full((1, 1, 1, 64), 1e38, device=device, dtype=torch.bfloat16)
    k = torch.zeros(1, 1, 32, 64, device=device, dtype=torch.float8_e4m3fn)
    out = decode(q, k, k)
    assert not out.any()
