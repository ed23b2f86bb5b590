"""The division of work, and the scratch memory of launches."""

from itertools import product

import pytest
import torch

from kernels.decode.triton_decode import tuning
from kernels.decode.triton_decode.launch import workspace
from kernels.decode.triton_decode.plan import Plan
from kernels.decode.triton_decode.request import Request
from kernels.decode.triton_decode.tuning import DecodeTile, aligned_share, divide, tile


@pytest.mark.parametrize("tiles", [1, 8, 64, 200, 256, 1024])
@pytest.mark.parametrize("blocks", [1, 3, 32, 2048])
def test_shares_cover_all_blocks_with_the_programs_that_there_are(tiles, blocks):
    share = aligned_share(tiles, blocks, 264, 2)
    assert share * 264 >= tiles * blocks
    assert share >= 2


def test_shares_end_with_tiles_where_few_programs_are_left_without_work():
    assert aligned_share(1024, 32, 264, 2) == 4 * 32
    assert aligned_share(64, 128, 264, 2) == 128 // 4
    assert [aligned_share(96, n, 132, 1, near=4) for n in (8, 16, 32)] == [8, 16, 24]
    assert aligned_share(200, 4, 132, 1, near=4) == 7, "two whole tiles are not a tile"


def shares_of(rows, tiles, most_keys, head_dim_v):
    sizes = {"rows": rows, "tiles": tiles, "most_keys": most_keys, "head_dim_v": head_dim_v}
    return divide(DecodeTile(64, 4, 3), ragged=False, multiprocessors=132, **sizes)


def test_rows_beyond_a_tile_are_more_tiles_of_fewer_shares_and_small_parts_have_tickets():
    one, two = (shares_of(rows, 4, 8192, 128) for rows in (64, 65))
    assert (one.row_tiles, two.row_tiles) == (1, 2)
    assert one.slots == 2 * two.slots
    few, many = (shares_of(rows, 1, 1 << 17, 256) for rows in (1, 64))
    assert few.tickets
    assert not many.tickets


def plan_of(heads, batch, capacity, head_dim=128, seqlen_q=1, page=0, **more):
    """The plan of a bfloat16 request on a Hopper GPU of 132 multiprocessors."""
    num_heads, num_kv_heads = heads
    strides = (num_kv_heads * capacity * head_dim, capacity * head_dim, head_dim, 1)
    request = Request(
        dtype=torch.bfloat16, cache_dtype=torch.bfloat16, batch=batch, num_heads=num_heads, num_kv_heads=num_kv_heads,
        seqlen_q=seqlen_q, capacity=capacity, page=page, head_dim=head_dim, head_dim_v=head_dim, ragged=False,
        causal=True, window_size=0, softmax_scale=0.1, scaled=(False, False), rope_dim=0, pairs=False,
        strides=(num_heads * seqlen_q * head_dim, seqlen_q * head_dim, head_dim, *strides, *strides, 0, 0, 0, 0, 0),
        device=torch.device("cpu"),
    )  # fmt: skip
    return Plan(request, machine=("sm_90", 132, 90), **more)


def test_one_query_token_at_batch_one_uses_most_multiprocessors():
    cases = (64, 8, 2048, 128), (128, 1, 2048, 128), (128, 1, 32768, 128), (8, 1, 8192, 256)
    for *heads, capacity, head_dim in cases:
        shares = plan_of(heads, 1, capacity, head_dim).shares
        assert 64 <= shares.slots * shares.row_tiles <= 264, (heads, capacity)


def test_as_many_tiles_as_multiprocessors_are_each_a_programs_own_and_one_launch_is_given():
    for batch, capacity in ((16, 1024), (9, 2048), (14, 8192), (20, 1024), (24, 4096), (64, 2048)):
        assert plan_of((32, 8), batch, capacity).shares.slots == 8 * batch
    assert plan_of((32, 8), 12, 8192).shares.slots == 262
    assert [len(plan_of((heads, 8), 1, 2048).kernels(False)) for heads in (32, 64)] == [1, 2]
    assert len(plan_of((64, 8), 1, 2048, one_launch=True).kernels(False)) == 1
    assert len(plan_of((64, 8), 1, 2048, seqlen_q=8, one_launch=True).kernels(False)) == 2  # 64 rows: tickets cost more


def test_a_block_lies_in_one_page_of_64_and_pages_are_looked_up_far_ahead_where_tiles_are_few():
    for batch in (1, 32):
        assert 64 % plan_of((64, 8), batch, 8192, page=64).tile.block_n == 0
    tiles = {plan_of((64, 8), 1, 8192, page=page).tile for page in (1, 16, 64, 256)}
    assert len(tiles) == 1
    assert tiles != {plan_of((64, 8), 1, 8192).tile}


@pytest.mark.parametrize("chip", ["sm_80", "sm_86", "sm_90"])
def test_the_tables_have_a_tile_for_everything(chip):
    sizes = (16, 32, 64, 128), (16, 32, 64, 128, 256, 512)  # rows of a tile, and padded head_dims
    everything = ("half", "e4m3", "float32"), *sizes, tuning.SPREADS, (0, 1, 64, 256)
    for cache, rows, block_d, spread, page in product(*everything):
        for latent in (False, cache != "e4m3"):
            assert tile(chip, cache, rows, block_d, spread=spread, page=page, latent=latent).block_n >= 16


def test_launches_on_a_stream_share_scratch_that_grows():
    cpu = torch.device("cpu")
    small = workspace(8, 100, cpu, 77)
    assert workspace(4, 50, cpu, 77) is small
    large = workspace(1 << 13, 1 << 10, cpu, 77)
    assert large.tickets.numel() >= 1 << 13
    assert large.parts.numel() >= 1 << 10
    assert workspace(8, 100, cpu, 78) is not large
    assert not large.tickets.any()
