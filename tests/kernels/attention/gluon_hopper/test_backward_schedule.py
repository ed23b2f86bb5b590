"""The tiles of keys of the Hopper backward: their order, and how the last of them are split."""

import heapq
import math

import pytest
import torch

from tests.cases import cases

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import backward_common, backward_launch, backward_schedule, tuning
from tests.kernels.attention.gluon_hopper.interleavings.program import Program, hardware_of
from tests.kernels.attention.gluon_hopper.interleavings.registers import Number
from tests.kernels.attention.gluon_hopper.interleavings.translation import as_python

PROGRAMS = 132


def order(tiles: int, heads: int, heads_in_order: int, heads_per_group: int) -> list[tuple[int, int]]:
    """(tile, key head) of each program, by the kernel's own code."""
    by_length = as_python(backward_schedule.tile_by_length, hardware_of(Program(0, 1, 0)))
    sizes = tuple(map(Number, (tiles, heads, heads_in_order, heads_per_group)))
    plain = [(Number(tile), Number(head)) for head in range(heads) for tile in range(tiles)]
    return [by_length(tile, head, *sizes) if head >= heads_in_order else (tile, head) for tile, head in plain]


def time_of(tiles: list[float]) -> float:
    """When the last program ends, if each tile goes to the first that is free."""
    free = [0.0] * PROGRAMS
    for tile in tiles:
        heapq.heapreplace(free, free[0] + tile)
    return max(free)


@pytest.mark.parametrize("heads_in_order", [0, 7, 12])
@pytest.mark.parametrize("heads_per_group", [1, 2, 5, 16])
def test_every_tile_of_keys_has_one_program_and_a_group_takes_them_by_length(heads_per_group, heads_in_order) -> None:
    tiles, heads = 5, 12
    found = order(tiles, heads, heads_in_order, heads_per_group)
    group = [
        head if head < heads_in_order else heads_in_order + (head - heads_in_order) // heads_per_group
        for _, head in found
    ]
    assert sorted(found) == [(tile, head) for tile in range(tiles) for head in range(heads)]
    assert group == sorted(group)
    for at, (first, second) in enumerate(zip(found, found[1:], strict=False)):
        assert first[0] <= second[0] or group[at] < group[at + 1]


@pytest.mark.parametrize("seqlen", [512, 1024, 2048, 4096, 8192, 16384])
def test_causal_tiles_by_length_leave_programs_idle_for_at_most_a_fiftieth_of_the_time(seqlen: int) -> None:
    tiles, heads = seqlen // 128, 16 * 16384 // seqlen
    by_length = tuning.heads_by_length(heads, tiles, PROGRAMS, True, False)
    blocks = [2 * (tiles - tile) + 2.0 for tile, _ in order(tiles, heads, *by_length)]
    assert time_of(blocks) <= 1.021 * sum(blocks) / PROGRAMS


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 30, 512])
@pytest.mark.parametrize("tiles", [1, 4, 5, 31, 32, 100, 128, 500])
def test_programs_wait_for_heads_of_earlier_groups_only(tiles: int, heads: int, causal: bool, window: bool) -> None:
    heads_in_order, heads_per_group = tuning.heads_by_length(heads, tiles, PROGRAMS, causal, window)
    delay = tuning.dq_delay(heads, tiles, PROGRAMS, causal, window)
    group = [
        head if head < heads_in_order else heads_in_order + (head - heads_in_order) // heads_per_group
        for head in range(heads)
    ]
    assert all(group[head - delay] < group[head] for head in range(delay, heads))


@pytest.mark.parametrize(("tiles", "blocks"), [(68, 256), (68, 128), (68, 16), (4, 32), (1, 1000), (131, 64)])
def test_splits_are_their_tiles_and_give_all_programs_about_the_same(tiles: int, blocks: int) -> None:
    found = backward_launch.splits_of(range(1980, 1980 + tiles), blocks, PROGRAMS)
    at = [(tile, block) for tile, low, high in found for block in range(low, high)]
    assert at == [(tile, block) for tile in range(1980, 1980 + tiles) for block in range(blocks)]
    assert all(low < high for _, low, high in found)
    lengths = sorted((high - low for _, low, high in found), reverse=True)
    assert time_of(lengths) <= 1.1 * tiles * blocks / PROGRAMS + 2


@pytest.mark.parametrize(
    ("n_tiles", "seqlen", "split"), cases(__file__, "test_tiles_are_split_where_the_last_of_several_rounds_would_idle")
)
def test_tiles_are_split_where_the_last_of_several_rounds_would_idle(n_tiles: int, seqlen: int, split: int) -> None:
    assert tuning.tiles_to_split(n_tiles, seqlen, PROGRAMS) == split


def test_partial_gradients_of_splits_are_added_up_to_dk_and_dv(device: str) -> None:
    heads, seqlen, head_dim, scale = 3, 300, 100, 0.5
    tiles, first = 3, 4  # of a head; tiles 4 to 8 are split
    counts = [1, 3, 2, 1, 4]
    partial_dkv = torch.randn(sum(counts), 2, 128, 128, device=device)
    firsts = torch.tensor([sum(counts[:i]) for i in range(len(counts) + 1)], dtype=torch.int32, device=device)
    dk, dv = torch.full((2, 1, heads, seqlen, head_dim), math.nan, device=device)
    sizes = ((dk.stride()[:3], dv.stride()[:3]), first, tiles, heads, seqlen, scale, 16, 128, head_dim, 128)
    backward_common.merge_kernel[(len(counts), 8)](partial_dkv, firsts, dk, dv, *sizes)
    for number, count in enumerate(counts):
        head, tile = divmod(first + number, tiles)
        wanted = partial_dkv[firsts[number] : firsts[number] + count].sum(0)[
            :, : min(128, seqlen - tile * 128), :head_dim
        ]
        rows = slice(tile * 128, tile * 128 + wanted.shape[1])
        torch.testing.assert_close(dk[0, head, rows], wanted[0] * scale)
        torch.testing.assert_close(dv[0, head, rows], wanted[1])
    assert torch.all(dk[0, 0].isnan())
    assert torch.all(dk[0, 1, :128].isnan())
