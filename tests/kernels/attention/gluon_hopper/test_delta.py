"""delta in the registers of the kernel for dQ, and the counters by which it tells the kernel behind it."""

import math

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention import gluon_hopper
from kernels.attention.gluon_hopper import backward_common, barriers
from tests.kernels.conftest import on_hopper


def place_of(bases: list[list[int]], number: int) -> tuple[int, int]:
    """Row and column of an element, by the bits of its number."""
    row = column = 0
    for bit, (down, across) in enumerate(bases):
        if number >> bit & 1:
            row, column = row ^ down, column ^ across
    return row, column


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_every_number_of_out_belongs_to_one_thread(head_dim: int) -> None:
    layout = backward_common._whole_sectors.fn(64, head_dim)
    bases = [*layout.reg_bases, *layout.lane_bases, *layout.warp_bases]
    assert 2 ** len(bases) == 64 * head_dim
    assert len({place_of(bases, number) for number in range(64 * head_dim)}) == 64 * head_dim


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_eight_lanes_read_dout_from_all_banks(head_dim: int) -> None:
    layout = backward_common._whole_sectors.fn(64, head_dim)
    for first in range(0, 32, 8):
        places = [place_of(layout.lane_bases, lane) for lane in range(first, first + 8)]
        banks = {column // 8 % 8 ^ row % 8 for row, column in places}  # rows of 128 bytes, swizzled by 16 bytes
        assert len(banks) == 8


def test_counters_begin_at_zero_and_rows_before_them_stay(device: str) -> None:
    numbers = torch.full((3000,), math.nan, device=device)
    barriers.zero_kernel[(2,)](numbers, 700, 1500, 1024)
    assert torch.all(numbers[700:2200] == 0)
    assert torch.all(numbers[:700].isnan())
    assert torch.all(numbers[2200:].isnan())


@on_hopper
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_on_several_streams_at_once_are_those_of_one(causal: bool) -> None:
    shapes = [(2, 16, 700, 256), (2, 8, 900, 256), (2, 8, 900, 256), (2, 16, 700, 256)]
    *inputs, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)

    def gradients() -> tuple[torch.Tensor, ...]:
        own = [x.detach().requires_grad_() for x in inputs]  # leaves of this stream, as autograd wants
        return torch.autograd.grad(gluon_hopper.attention(*own, causal=causal), own, dout)

    first = gradients()
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for stream in streams * 4:
        with torch.cuda.stream(stream):
            found.append(gradients())
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for again in found for x, y in zip(again, first, strict=True))
