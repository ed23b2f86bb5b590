"""The split-KV kernel on contiguous caches against float64."""

import pytest
import torch

from kernels.decode.triton_decode import decode
from kernels.decode.triton_decode.tuning import DecodeTile
from tests.kernels.decode.conftest import SMALL


def run(problem, **more):
    return decode(
        problem.q, problem.k, problem.v, cache_seqlens=problem.cache_seqlens, return_lse=True,
        **{"tile": SMALL, **problem.options, **more},
    )  # fmt: skip


@pytest.mark.parametrize("head_dim", [16, 40, 64, 96, 128, 256, 320, 512])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (3, 1)])
def test_head_dims_and_groups(make, heads, head_dim):
    problem = make(heads, [37, 64], 64, head_dim)
    problem.check(run(problem))


@pytest.mark.parametrize("lengths", [[1], [0, 0], [0, 5, 200, 63, 128], [200, 1, 1, 1, 1, 1, 1], [129] * 3])
@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_ragged_lengths(make, lengths, seqlen_q):
    problem = make((4, 2), lengths, 200, 32, seqlen_q=seqlen_q)
    problem.check(run(problem))


@pytest.mark.parametrize("seqlen_q", [2, 5, 16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window_size", [0, 1, 20])
def test_query_tokens_and_windows(make, seqlen_q, causal, window_size):
    problem = make(
        (6, 2), [100, 7, 33], 100, 32, seqlen_q=seqlen_q, options={"causal": causal, "window_size": window_size}
    )
    problem.check(run(problem))


def test_keys_before_every_window_are_not_read(make):
    problem = make((2, 1), [100, 150], 150, 32, seqlen_q=3, options={"window_size": 10})
    expected = problem.expected()
    for x in (problem.k, problem.v):
        x[0, :, : 100 - 3 - 9] = float("nan")
        x[1, :, : 150 - 3 - 9] = float("nan")
    problem.check(run(problem), expected)


@pytest.mark.parametrize("heads", [(24, 1), (40, 1), (130, 1), (64, 2)])
@pytest.mark.parametrize("seqlen_q", [1, 9])
def test_more_rows_than_one_tile(make, heads, seqlen_q):
    problem = make(heads, [70, 33], 70, 16, seqlen_q=seqlen_q)
    problem.check(run(problem, tile=DecodeTile(32, 4, 2, 2, 32)))


def test_parts_that_a_second_kernel_combines(make, monkeypatch):
    from kernels.decode.triton_decode import tuning
    from kernels.decode.triton_decode.calls import PLANS

    monkeypatch.setattr(tuning, "_TICKETS_BYTES", 0)
    PLANS.clear()
    for lengths, heads in (([90, 0, 31], (6, 2)), ([200], (40, 1))):
        problem = make(heads, lengths, 200, 40, seqlen_q=2)
        problem.check(run(problem))
    PLANS.clear()


def test_without_lengths_all_of_the_cache_is_used(make):
    problem = make((4, 2), [77, 77], 77, 64)
    problem.check(decode(problem.q, problem.k, problem.v, return_lse=True, tile=SMALL))
    assert torch.equal(decode(problem.q, problem.k, problem.v, tile=SMALL), run(problem)[0])


def test_strided_caches_and_addresses_and_strides_that_are_not_aligned(make):
    problem = make((4, 2), [50, 21], 60, 32, seqlen_q=2)
    expected = problem.expected()
    problem.q = problem.q.transpose(1, 2).contiguous().transpose(1, 2)
    problem.k = problem.k.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    problem.v = problem.v.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    problem.check(run(problem), expected)

    def moved(x):
        wide = x.new_full((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 3), float("nan"))
        wide[:, :, 1:, 1:-2] = x
        return wide[:, :, 1:, 1:-2]

    problem.q, problem.k, problem.v = map(moved, (problem.q, problem.k, problem.v))
    assert all(x.data_ptr() % 16 and x.stride(2) % 2 for x in (problem.q, problem.k, problem.v))
    problem.check(run(problem), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("magnitude", [1e-3, 30.0])
def test_magnitudes_and_heavy_tails(make, dtype, magnitude):
    problem = make((4, 2), [90, 40], 90, 32, dtype=dtype, magnitude=magnitude, heavy=True)
    problem.q /= magnitude
    problem.check(run(problem), slack=2.0)


def test_value_dim_may_differ_and_lengths_beyond_the_cache_count_as_all_of_it(make):
    problem = make((4, 2), [90, 40], 90, 48, head_dim_v=80)
    problem.check(run(problem))
    problem = make((2, 1), [40, 40], 40, 32)
    problem.cache_seqlens += 1000
    problem.check(run(problem))
    problem.cache_seqlens.fill_(-3)
    assert not run(problem)[0].any()


def test_the_same_bits_on_every_run_and_tickets_are_returned(make):
    problem = make((4, 2), [199, 3, 80], 200, 32)
    first = run(problem)
    for _ in range(2):
        assert all(map(torch.equal, run(problem), first))
