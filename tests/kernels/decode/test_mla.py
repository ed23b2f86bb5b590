"""Latent attention against float64: the values are the first dimensions of the keys."""

import pytest
import torch

from kernels.decode.gluon_mla import plan as hopper_plan
from kernels.decode.triton_decode import tuning
from kernels.decode.triton_decode.calls import plan_of
from kernels.decode.triton_decode.request import Caches, Options, request_of
from kernels.decode.triton_decode.tuning import DecodeTile
from kernels.decode.triton_mla import mla_decode
from kernels.registry import UnsupportedCase
from tests.kernels.decode.conftest import SMALL, Problem, paged

LATENT, ROPE = 32, 16


def latent(make, heads, lengths, capacity, seqlen_q=1, dtype=torch.float16, latent_dim=LATENT):
    problem = make(
        (heads, 1), lengths, capacity, latent_dim + ROPE, seqlen_q=seqlen_q, dtype=dtype, head_dim_v=latent_dim,
        options={"softmax_scale": 0.2},
    )  # fmt: skip
    problem.v = problem.k[..., :latent_dim]
    return problem


def run(problem, cache, latent_dim=LATENT, tile=SMALL, **more):
    return mla_decode(
        problem.q, cache, softmax_scale=0.2, latent_dim=latent_dim, cache_seqlens=problem.cache_seqlens,
        return_lse=True, tile=tile, **more,
    )  # fmt: skip


@pytest.mark.parametrize("heads", [3, 16, 80])
@pytest.mark.parametrize("seqlen_q", [1, 2])
def test_heads_and_tokens(make, heads, seqlen_q):
    problem = latent(make, heads, [70, 0, 33], 70, seqlen_q)
    problem.check(run(problem, problem.k[:, 0]))


@pytest.mark.parametrize("latent_dim", [48, 64])
def test_latent_dims_and_float32(make, latent_dim):
    problem = latent(make, 4, [70, 9], 70, dtype=torch.float32, latent_dim=latent_dim)
    problem.check(run(problem, problem.k[:, 0], latent_dim), slack=4.0)


def test_the_full_size_by_the_table_of_tiles(make):
    problem = latent(make, 16, [40, 70], 70, 2, latent_dim=512)
    problem.check(run(problem, problem.k[:, 0], 512, tile=None))


@pytest.mark.parametrize("page", [1, 16])
def test_pages(make, page):
    problem = latent(make, 4, [70, 0, 33], 70)
    pages, _, table = paged(problem, page, "NHD")
    problem.check(run(problem, pages[:, :, 0], page_table=table))


def test_what_is_not_possible_is_said(make):
    problem = latent(make, 4, [70], 70)
    with pytest.raises(UnsupportedCase, match="47 latent and 1 rotary"):
        run(problem, problem.k[:, 0], 47)
    with pytest.raises(UnsupportedCase, match="takes 3"):
        run(problem, problem.k)


@pytest.mark.parametrize(
    ("heads", "batch", "lengths", "hopper"),
    [(16, 16, True, True), (16, 8, True, False), (16, 64, False, False), (32, 1, False, True), (32, 1025, True, False)],
)
def test_few_heads_go_to_the_hopper_kernel_over_many_sequences_of_given_lengths(
    heads, batch, lengths, hopper, monkeypatch
):
    monkeypatch.setattr(hopper_plan, "INTERPRETED", False)
    q, kv = (torch.empty(batch, n, 576, dtype=torch.bfloat16, device="meta") for n in (heads, 4096))
    caches = Caches(kv, kv, torch.empty(batch, dtype=torch.int32, device="meta") if lengths else None)
    request = request_of(q[:, :, None], caches, Options(softmax_scale=0.1, latent_dim=512), check_device=False)
    assert hopper_plan.suits(request, ("sm_90", 132, 90)) == hopper
    assert not hopper_plan.suits(request, ("sm_80", 108, 80))


@pytest.mark.parametrize("aligned", [True, False])
def test_an_address_that_is_not_aligned_goes_to_the_portable_kernel(aligned, monkeypatch):
    monkeypatch.setattr(hopper_plan, "suits", lambda request: True)
    q, kv = torch.empty(2, 32, 1, 576, dtype=torch.float16), torch.empty(2, 128, 576, dtype=torch.float16)
    request = request_of(q, Caches(kv, kv), Options(softmax_scale=0.1, latent_dim=512), check_device=False)
    assert isinstance(plan_of(request, None, aligned=aligned), hopper_plan.HopperPlan) == aligned


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["gluon", "triton"])
@pytest.mark.parametrize("page", [0, 1, 64])
@pytest.mark.parametrize(("heads", "seqlen_q"), [(20, 1), (64, 2), (128, 1)])
def test_the_full_size_on_a_gpu(heads, seqlen_q, page, form):
    problem = Problem(
        (heads, 1), [700, 0, 1, 64, 4096, 2049], 4096, 576, seqlen_q=seqlen_q, head_dim_v=512, device="cuda",
        dtype=torch.bfloat16, options={"softmax_scale": 192**-0.5},
    )  # fmt: skip
    problem.v = problem.k[..., :512]
    cache, more = problem.k[:, 0], {}
    if page:
        pages, _, table = paged(problem, page, "NHD")
        cache, more = pages[:, :, 0], {"page_table": table}
    tile = None if form == "triton" else DecodeTile(64, 4, 1, 1, form=form)
    if form == "triton":
        tile = tuning.tile("sm_90", "half", min(128, heads * seqlen_q), 512, latent=True)
    options = {"softmax_scale": 192**-0.5, "cache_seqlens": problem.cache_seqlens, "return_lse": True, "tile": tile}
    expected = problem.expected()
    for _ in range(3):
        problem.check(mla_decode(problem.q, cache, **options, **more), expected)
    odd = cache.new_empty(cache.numel() + 1)[1:].view(cache.shape).copy_(cache)
    problem.check(mla_decode(problem.q, odd, **options | {"tile": None}, **more), expected)
    if not page:
        full = cache[4:5].expand(6, -1, -1)
        lengths = torch.full_like(problem.cache_seqlens, 4096)
        without, given = (mla_decode(problem.q, full, **options | {"cache_seqlens": x}) for x in (None, lengths))
        assert torch.equal(without[0], given[0])
        assert without[0].isfinite().all()
