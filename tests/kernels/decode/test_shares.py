"""The division of work, and the scratch memory of launches."""

import pytest
import torch

from kernels.decode.triton_decode.shares import aligned_share, divide
from kernels.decode.triton_decode.tuning import BLOCK_DIMS, CACHES, CHIPS, ROWS, DecodeTile, every_tile
from kernels.decode.triton_decode.workspace import workspace


@pytest.mark.parametrize("tiles", [1, 8, 64, 200, 256, 1024])
@pytest.mark.parametrize("blocks", [1, 3, 32, 2048])
def test_shares_cover_all_blocks_with_the_programs_that_there_are(tiles, blocks):
    share = aligned_share(tiles, blocks, 264, 2)
    assert share * 264 >= tiles * blocks
    assert share >= 2


def test_shares_end_with_tiles_where_few_programs_are_left_without_work():
    assert aligned_share(1024, 32, 264, 2) == 4 * 32
    assert aligned_share(64, 128, 264, 2) == 128 // 4


def test_rows_beyond_a_tile_are_more_tiles_of_fewer_shares():
    one, two = (
        divide(
            DecodeTile(64, 4, 3), rows=rows, tiles=4, most_keys=8192, head_dim_v=128, ragged=False, multiprocessors=132
        )
        for rows in (64, 65)
    )  # fmt: skip
    assert (one.row_tiles, two.row_tiles) == (1, 2)
    assert one.slots == 2 * two.slots


def test_parts_are_combined_by_programs_where_they_are_small():
    few, many = (
        divide(
            DecodeTile(64, 4, 3),
            rows=rows,
            tiles=1,
            most_keys=1 << 17,
            head_dim_v=256,
            ragged=False,
            multiprocessors=132,
        )
        for rows in (1, 64)
    )  # fmt: skip
    assert few.tickets
    assert not many.tickets


@pytest.mark.parametrize("chip", CHIPS)
def test_the_tables_have_a_tile_for_everything(chip):
    found = {(cache, rows, dim) for cache, rows, dim, _, tile in every_tile(chip) if tile is not None}
    assert found == {(c, r, d) for c in CACHES for r in ROWS for d in BLOCK_DIMS if (c, d) != ("e4m3", 512)}


def test_launches_on_a_stream_share_scratch_that_grows():
    cpu = torch.device("cpu")
    small = workspace(8, 100, cpu, 77)
    assert workspace(4, 50, cpu, 77) is small
    large = workspace(1 << 13, 1 << 10, cpu, 77)
    assert large.tickets.numel() >= 1 << 13
    assert large.parts.numel() >= 1 << 10
    assert workspace(8, 100, cpu, 78) is not large
    assert not large.tickets.any()
