"""The tiles and inputs that the timing of the decoding kernels uses, without a GPU."""

import pytest

pytest.importorskip("triton")

from kernels.tools import time_decode
from kernels.tools.time_decode import GRIDS, Inputs, Shape


def test_a_ladder_names_each_tile_by_all_that_distinguishes_it():
    for shape in (Shape(64, 8, 128, 1, 2048), Shape(64, 8, 128, 1, 2048, seqlen_q=16), GRIDS["latent"][0]):
        tiles = time_decode.ladder(shape)
        assert len(tiles) == len(set(tiles)) == len({time_decode.tile_name(tile) for tile in tiles})


def test_both_ways_to_combine_parts_are_tried_where_tiles_are_few():
    assert {tile.tickets for tile in time_decode.ladder(Shape(64, 8, 128, 1, 2048))} == {True, False}
    assert {tile.tickets for tile in time_decode.ladder(Shape(64, 8, 128, 128, 2048))} == {True}


@pytest.mark.parametrize("name", GRIDS)
def test_inputs_have_the_bytes_of_every_key_and_value(name):
    for shape in GRIDS[name]:
        width = 576 if shape.latent else 2 * shape.head_dim
        size = 1 if shape.cache == "float8_e4m3fn" else 2
        assert Inputs(shape, "meta").bytes == shape.batch * shape.context * shape.num_kv_heads * width * size


def test_the_fastest_tile_gives_the_bandwidth_and_one_that_fails_is_left_out(monkeypatch, capsys):
    shape, tiles = Shape(64, 8, 128, 1, 2048), time_decode.ladder(Shape(64, 8, 128, 1, 2048))[:3]
    meta = Inputs(shape, "meta")
    monkeypatch.setattr(time_decode, "Inputs", lambda shape: meta)
    milliseconds = iter((0.02, 0.01))

    def bench(call):
        found = next(milliseconds, None)
        if found is None:
            raise RuntimeError("out of registers")
        return found

    names = [time_decode.tile_name(tile) for tile in tiles]
    assert time_decode.time_shape(shape, tiles, bench) == {names[1]: 10.0, names[0]: 20.0}
    failed, printed = capsys.readouterr().out.splitlines()
    assert failed == f"{names[2]}: RuntimeError out of registers"
    assert "0.84 TB/s" in printed and printed.index(names[1]) < printed.index(names[0])
