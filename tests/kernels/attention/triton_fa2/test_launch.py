"""Launches of triton_fa2: a tile that does not fit is replaced, and strides as a kernel is compiled for them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources

from kernels.attention.triton_fa2 import launch
from kernels.attention.triton_fa2.arguments import Config, PanelTensors
from kernels.attention.triton_fa2.tuning import Tile
from kernels.registry import UnsupportedCase


class Kernel:
    """Compiles for any tile; running needs block_m x 1000 bytes of the 20000 that there are."""

    arg_names = ("tensors", "strides", "seqlen_q", "heads")

    def __init__(self):
        self.strides = []
        free = {"do_not_specialize_on_alignment": False}
        self.params = [SimpleNamespace(name=name, do_not_specialize=name == "heads", **free) for name in self.arg_names]

    def warmup(self, tensors, strides, *scalars, CONFIG, **options):
        class Compiled(SimpleNamespace):
            @property
            def run(self):
                if self.needs > 20000:
                    raise OutOfResources(self.needs, 20000, "shared memory")
                return "run"

        self.strides.append(strides)
        return Compiled(needs=CONFIG.config.block_m * 1000)


def call_of(kernel, sizes, strides=(64, 64, 64), scalars=(64, 8)):
    x = torch.empty(0).as_strided((1, 1, 0, 0), (*strides, 1))
    tensors = PanelTensors(x, x, x, x, torch.empty(0))
    tiles = [Tile(size, 64, 4, 2) for size in sizes]
    return launch.KernelCall(kernel, tensors, scalars, Config(head_dim=64, block_d=64), tiles, lambda tile: 1)


def first_that_fits(*sizes):
    return launch._first_that_fits(call_of(Kernel(), sizes))[1]


def test_a_tile_that_does_not_fit_gives_way_to_the_next_smaller_one_or_says_what_was_needed():
    assert first_that_fits(16).block_m == 16
    assert first_that_fits(128, 64, 32, 16).block_m == 16
    with pytest.raises(UnsupportedCase, match="needs 32000 of a block's resources"):
        first_that_fits(64, 32)


@pytest.mark.parametrize(
    ("strides", "scalars", "known"),
    [
        ((64, 64, 64), (64, 8), True),
        ((64, 64, 128), (1024, 9), True),
        ((64, 64, 64), (1000, 8), False),  # 16 does not divide the length
        ((64, 64, 64), (1, 8), False),
        ((64, 64, 65), (64, 8), False),  # nor the stride
        ((64, 64, 1), (64, 8), False),
        ((64, 64, 2**36), (64, 8), False),  # which takes 64 bits
    ],
)
def test_a_kernel_is_warmed_up_again_only_for_what_triton_compiles_other_code_for(monkeypatch, strides, scalars, known):
    monkeypatch.setattr(launch, "_ODD_LENGTHS", set())  # else each kernel is compiled for both kinds of lengths
    kernel = Kernel()
    first = call_of(kernel, [128, 16])
    assert len(launch.warm_ups([first])) == 1
    launch._first_that_fits(first)
    again = call_of(kernel, [128, 16], strides, scalars)
    assert len(launch.warm_ups([again])) == (not known)
    before = len(kernel.strides)
    assert launch._first_that_fits(again)[1].block_m == 16
    assert len(kernel.strides) == before + (0 if known else 2)
    other_tiles, other_config = (
        replace(first, tiles=first.tiles[1:]),
        replace(first, config=Config(head_dim=32, block_d=32)),
    )
    assert all(len(launch.warm_ups([call])) == 1 for call in (other_tiles, other_config))


def test_a_kernel_with_blocks_of_its_own_keeps_them():
    call = call_of(None, [16])
    assert call.constants(Tile(16, 32, 4, 2)).config.block_n == 32
    own = replace(call, config=replace(call.config, block_n=128)).constants(Tile(16, 32, 4, 2)).config
    assert (own.block_m, own.block_n) == (16, 128)


@pytest.mark.parametrize(
    ("strides", "declared"),
    [((72 * 729, 729, 72), (72 * 729 * 2, 729, 144)), ((64, 64, 64), (64, 64, 64)), ((140, 20, 20), (140, 20, 20))],
)
def test_rows_of_head_dim_72_are_declared_so_that_vectors_of_16_bytes_load_them(strides, declared):
    call = call_of(Kernel(), [16], strides)
    call.warm_up(call.tiles[0])
    (found,) = call.kernel.strides
    assert found == PanelTensors(*[declared] * 4)
    assert launch.strides_of(call.tensors).k == strides
