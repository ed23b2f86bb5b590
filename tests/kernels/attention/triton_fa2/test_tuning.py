"""Tables of tiles: each problem finds one that its kernels can take."""

import math
from itertools import product

import pytest

from kernels import tables
from kernels.attention.triton_fa2 import tuning
from kernels.attention.triton_fa2.tuning import Tile

TABLES = [(each.name, precision) for each in tables.families() for precision in tuning.PRECISIONS]
GROUPS = [tables.family(chip)[f"triton_fa2 {precision}"].groups for chip, precision in TABLES]
TILES = {Tile(*row) for groups in GROUPS for rows in groups.values() for _, row in rows if row}


@pytest.mark.parametrize("chip, precision", TABLES)
def test_every_kernel_without_another_way_has_a_tile_for_any_number_of_rows(chip: str, precision: str) -> None:
    kernels = ("forward", "dq", "dkdv") if precision != "bf16x6" else ()
    for kernel, block_d, rows in product(kernels, tuning.BLOCK_DIMS, (0, 0.5, 7, 1e9)):
        assert tuning.tiles(kernel, chip, precision, block_d, rows)


@pytest.mark.parametrize("tile", sorted(TILES))
def test_sizes_are_powers_of_two_or_three(tile: Tile) -> None:
    assert all(size == 3 or size & (size - 1) == 0 for size in tile[:4])


def test_the_tile_depends_on_how_many_rows_there_are_and_is_compared_by_value():
    few = tuning.tiles("forward", "sm_86", "half", 64, 4)[0]
    many = tuning.tiles("forward", "sm_86", "half", 64, 4000)[0]
    assert few.block_m < many.block_m
    assert tuning.tiles("dq_dkdv", "sm_90", "half", 64, math.inf) == []
    assert tuning.tiles("dq_dkdv", "sm_90", "bf16x6", 128, 8192 / 132), (
        "128 tiles of 64 rows: one for each multiprocessor"
    )
    assert tuning.tiles("dq_dkdv", "sm_90", "bf16x6", 128, 16384 / 132) == []
    assert Tile(16, 64, 4, 2) == (16, 64, 4, 2, 0, 0, 1)


@pytest.mark.parametrize("first", sorted(TILES))
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
    [(80, "sm_80"), (86, "sm_86"), (89, "sm_86"), (90, "sm_90"), (100, "sm_100"), (120, "sm_86"), (87, "sm_80")],
)
def test_a_chip_is_classed_by_what_a_block_can_hold(capability, expected):
    assert tables.family_of(capability, tables.shared_memory()[capability]) == expected


def test_chips_without_a_file_take_the_nearest_one_that_they_hold() -> None:
    assert [tables.family_of(*chip) for chip in ((103, 232448), (121, 101376), (110, 232448), (75, 65536))] == [
        "sm_100", "sm_86", "sm_100", "sm_86",
    ]  # fmt: skip
    assert "the nearest chip with a file to compute capability 12.1" in tables.Machine("sm_86", 48, 121, 0).words
    assert tables.Machine("sm_86", 170, 120, 0).words == "forms of sm_86"


def test_a_row_decides_if_its_values_and_ranges_hold() -> None:
    rows = [["a", "..4", None], ["a", "2..4", 1, 10], ["a", "5..", None, 20], ["b", None, None, 30]]
    table = tables.Table.of("t", {"when": ["kind", "size", "page"], "then": ["tile"], "source": "", "rows": rows})
    assert [table.first(kind="a", size=size, page=0) for size in (4, 4.5, 5, 6)] == [(), (), (20,), (20,)]
    assert list(table.every(kind="a", size=3, page=1)) == [(), (10,)]
    assert table.first(kind="b", size=1, page=7) == (30,)
    assert table.first(kind="c", size=1, page=7) == ()
