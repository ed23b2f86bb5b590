"""What the timing of the decoding kernels would time, without a GPU."""

import pytest

pytest.importorskip("triton")

from kernels.tools import time_decode
from kernels.tools.time_decode import GRIDS, Inputs, Shape


def test_a_ladder_names_each_tile_by_all_that_tells_it_apart():
    for shape in (Shape(64, 8, 128, 1, 2048), Shape(64, 8, 128, 1, 2048, seqlen_q=16), GRIDS["mla"][0]):
        tiles = time_decode.ladder(shape)
        assert len(tiles) == len(set(tiles)) == len({time_decode._tile_name(tile) for tile in tiles})


def test_both_ways_to_combine_parts_are_tried_where_tiles_are_few():
    assert {tile.tickets for tile in time_decode.ladder(Shape(64, 8, 128, 1, 2048))} == {True, False}
    assert {tile.tickets for tile in time_decode.ladder(Shape(64, 8, 128, 128, 2048))} == {True}


@pytest.mark.parametrize("name", ["paged", "e4m3", "mla", "mla_paged", "tokens"])
def test_inputs_have_the_bytes_of_every_key_and_value(name):
    for shape in GRIDS[name]:
        inputs = Inputs(shape, "meta")
        used = inputs.k.numel() * inputs.k.element_size() * (1 if shape.latent else 2)
        assert inputs.bytes == used
        assert inputs.q.shape[2] == shape.seqlen_q


def test_a_line_compares_the_best_of_both_sides():
    rows = [("ours", 20.0), ("faster", 10.0), ("cudnn", 30.0), ("flash", 12.0)]
    line = time_decode._line(Shape(64, 8, 128, 1, 2048), rows, 8_000_000)
    assert "0.80 TB/s" in line
    assert "x 1.20" in line
    assert line.index("faster 10.0") < line.index("ours 20.0") < line.index("cudnn 30.0")
    assert "none of ours" in time_decode._line(Shape(64, 8, 128, 1, 2048), rows[2:], 8_000_000)
