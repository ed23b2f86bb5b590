"""The order in which programs of the causal backward in two kernels take their tiles."""

import itertools

import pytest

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import backward_two_kernels, tuning
from tests.kernels.attention.gluon_hopper.interleavings.program import Program, hardware_of
from tests.kernels.attention.gluon_hopper.interleavings.registers import Number
from tests.kernels.attention.gluon_hopper.interleavings.translation import as_python


@pytest.mark.parametrize(("tiles", "heads", "batch"), [(8, 8, 32), (11, 3, 2), (64, 8, 4), (300, 2, 1)])
def test_every_tile_of_every_head_is_taken_once_and_long_ones_of_a_group_first(tiles, heads, batch) -> None:
    group_heads = tuning.heads_taking_turns(tiles, heads * batch)
    assert 1 <= group_heads <= max(1, 256 // tiles)
    grid = (group_heads, tiles, heads * batch // group_heads)
    program = Program(0, 1, 0)
    tile_of = as_python(backward_two_kernels.program_tile_of_grid, hardware_of(program))
    program.grid = grid
    taken = []
    for group, down, across in itertools.product(*map(range, reversed(grid))):  # as programs start
        program.place = (Number(across), Number(down), Number(group))
        taken.append(tuple(map(int, tile_of(Number(heads), True))))
    assert sorted(taken) == sorted(itertools.product(range(tiles), range(heads), range(batch)))
    size = tiles * group_heads
    for first in range(0, len(taken), size):
        order = [tile for tile, _, _ in taken[first : first + size]]
        assert order == sorted(order)


def test_one_program_starts_last() -> None:
    program = Program(0, 1, 0)
    is_last = as_python(backward_two_kernels.is_last, hardware_of(program))
    program.grid = (3, 4, 2)
    found = []
    for place in itertools.product(range(3), range(4), range(2)):
        program.place = place
        if is_last():
            found.append(place)
    assert found == [(2, 3, 1)]
