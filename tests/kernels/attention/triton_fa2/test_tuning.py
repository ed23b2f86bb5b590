"""Tables of tiles: each problem finds one that its kernels can take."""

import math

import pytest

from kernels.attention.triton_fa2 import tuning
from kernels.attention.triton_fa2.tuning import SHARED_MEMORY, Tile

ROWS = [
    (chip, kernel, precision, block_d)
    for chip in tuning.TABLES
    for kernel in tuning.TABLES[chip]
    for precision in tuning.PRECISIONS
    for block_d in tuning.BLOCK_DIMS
]
HAVE_ANOTHER_WAY = ("few_keys", "window", "panels", "one_pass", "dq_dkdv", "few_queries")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_every_row_starts_at_nothing_and_climbs_in_powers_of_two(row):
    chip, kernel, precision, block_d = row
    rungs = tuning.ladder(kernel, chip, precision, block_d)
    rows = [rung[0] for rung in rungs]
    assert rows[0] == 0
    assert rows == sorted(set(rows))
    for _, tile in rungs:
        assert tile is not None or kernel in HAVE_ANOTHER_WAY or precision == "bf16x6"
        for size in (tile or ())[:4]:
            assert size == 3 or size & (size - 1) == 0


def test_the_tile_depends_on_how_many_rows_there_are_to_share_out():
    few = tuning.tiles("forward", "sm_86", "half", 64, 4)[0]
    many = tuning.tiles("forward", "sm_86", "half", 64, 4000)[0]
    assert few.block_m < many.block_m
    assert tuning.tiles("panels", "sm_90", "half", 64, 4)
    assert tuning.tiles("panels", "sm_90", "half", 64, 4000) == []
    assert tuning.tiles("dq_dkdv", "sm_90", "half", 64, math.inf) == []
    assert tuning.tiles("dq_dkdv", "sm_90", "bf16x6", 128, 8192 / 132), (
        "128 tiles of 64 rows: one for each multiprocessor"
    )
    assert tuning.tiles("dq_dkdv", "sm_90", "bf16x6", 128, 16384 / 132) == []


@pytest.mark.parametrize("first", sorted({v[3] for chip in tuning.TABLES for v in tuning.every_tile(chip)}))
def test_the_way_down_gets_smaller_and_ends(first):
    way, tile = [first], first
    while (tile := tuning.smaller(tile)) is not None:
        way.append(tile)
    sizes = [tile.block_m * tile.block_n * tile.num_stages for tile in way]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert way[-1].block_m <= 16
    assert way[-1].block_n <= 16


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(80, "sm_80"), (86, "sm_86"), (89, "sm_86"), (90, "sm_90"), (100, "sm_100"), (120, "sm_86")],
)
def test_a_chip_is_classed_by_what_a_block_can_hold(capability, expected):
    assert tuning.chip_class(capability, SHARED_MEMORY[capability]) == expected


def test_tiles_are_compared_by_value():
    assert Tile(16, 64, 4, 2) == (16, 64, 4, 2, 0)
