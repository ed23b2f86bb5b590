"""Launches of triton_fa2: a tile that does not fit gives way, and what a kernel is told of its tensors."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources

from kernels.attention.triton_fa2 import launch
from kernels.attention.triton_fa2.tuning import Tile
from kernels.registry import UnsupportedCase


class Kernel:
    """Compiles for any tile; running needs block_m x 1000 bytes of the 20000 that there are."""

    arg_names = ["x_ptr", "n", "BLOCK_M", "BLOCK_N", "HEAD_DIM"]

    def warmup(self, *args, grid, BLOCK_M, BLOCK_N, HEAD_DIM, num_warps, num_stages, enable_fp_fusion, launch_pdl):
        class Compiled(SimpleNamespace):
            @property
            def run(self):
                if self.needs > 20000:
                    raise OutOfResources(self.needs, 20000, "shared memory")
                return "run"

        return Compiled(needs=BLOCK_M * 1000)


def first_that_fits(*sizes):
    tiles = [Tile(size, 64, 4, 2) for size in sizes]
    return launch._first_that_fits(Kernel(), [], {"HEAD_DIM": 64, "GROUPED": False}, tiles)[1]


def test_a_tile_that_does_not_fit_gives_way_to_the_next_smaller_one():
    assert first_that_fits(16).block_m == 16
    assert first_that_fits(128, 64, 32, 16).block_m == 16


def test_when_no_tile_fits_the_error_says_what_was_needed():
    with pytest.raises(UnsupportedCase, match="needs 32000 of a block's resources"):
        first_that_fits(64, 32)


def test_constants_go_in_the_kernels_order_and_only_those_it_has():
    found = launch._constants_of(Kernel(), Tile(16, 32, 4, 2), {"GROUPED": True, "HEAD_DIM": 64})
    assert found == {"BLOCK_M": 16, "BLOCK_N": 32, "HEAD_DIM": 64}


def test_rows_of_head_dim_72_are_declared_so_that_vectors_of_16_bytes_load_them():
    kernel = SimpleNamespace(arg_names=["q_ptr", "q_b", "q_m", "seqlen_q", "BLOCK_M"])
    assert launch._as_declared(kernel, ["q", 72 * 729, 72, 72]) == ["q", 72 * 729 * 2, 144, 72]
    assert launch._as_declared(kernel, ["q", 64 * 729, 64, 72]) == ["q", 64 * 729, 64, 72]
    assert launch._as_declared(kernel, ["q", 20 * 7, 20, 72]) == ["q", 20 * 7, 20, 72]
