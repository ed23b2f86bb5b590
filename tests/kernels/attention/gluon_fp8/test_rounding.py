"""gluon_fp8: its rounding against a float64 model of e4m3, and the order of what it rounds."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.attention import gluon_fp8
from tests.kernels.attention.gluon_fp8.inputs import ON_HOPPER, draw
from tests.kernels.attention.gluon_fp8.rounding import dequantised, key_of_place


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """float64 numbers of at most 448 rounded to e4m3: 3 bits of mantissa, a spacing of 2^-9 below 2^-6."""
    exponent = torch.floor(torch.log2(x.abs().clamp_min(2.0**-6)))
    spacing = torch.exp2(exponent - 3)
    return torch.round(x / spacing) * spacing


class TestRounding:
    pytestmark = pytest.mark.skipif(gluon_fp8.IMPLEMENTATIONS[0].unavailable is not None, reason="no Triton")

    @pytest.fixture
    def interpreted(self):
        """The kernel that quantises, where it can run: compiled on Hopper, interpreted without a GPU."""
        if torch.cuda.is_available() and not ON_HOPPER:
            pytest.skip("compiles for Hopper")
        return pytest.importorskip("kernels.attention.gluon_fp8.plan", exc_type=ImportError)

    @pytest.mark.parametrize("magnitude", [1e-3, 1.0, 300.0])
    def test_a_number_is_rounded_as_e4m3_rounds_it_after_scaling(self, interpreted, magnitude: float) -> None:
        tensors = draw(2, 4, 2, 150, 300, 40, dtype=torch.float16, magnitude=magnitude)
        made = interpreted.quantise(*tensors)
        scales = made.q_scales, made.k_scales, made.v_scales.exp2()
        for x, got, scale in zip(tensors, dequantised(made), scales, strict=True):
            scale = scale.repeat_interleave(128, -1)[..., : x.shape[2], None].double()
            numbers, got = x.double() / scale, got.double() / scale
            if ON_HOPPER:
                assert torch.equal(got, e4m3(numbers))
            else:  # the interpreter's own conversion loses carries and errs below e4m3's normal numbers
                assert (got == e4m3(numbers)).double().mean() > 0.95

    def test_scales_are_the_least_powers_of_two_by_which_all_numbers_fit(self, interpreted) -> None:
        q, k, v = draw(1, 1, 1, 200, 200, 64, dtype=torch.float16)
        k[0, 0, 7, 3], k[0, 0, 150, 3] = 448.0, 449.0
        made = interpreted.quantise(q, k, v)
        assert made.k_scales.flatten().tolist() == [1.0, 2.0]
        largest = q[0, 0, :128].abs().max().item() / made.q_scales[0, 0, 0].item()
        assert 224 < largest <= 448

    def test_padding_is_zero(self, interpreted) -> None:
        made = interpreted.quantise(*draw(1, 2, 1, 60, 70, 40, dtype=torch.float16))
        assert made.v.shape == (1, 1, 64, 128)
        assert torch.all(made.q.float()[..., 40:] == 0)
        assert torch.all(made.v.float()[:, :, 40:] == 0)
        assert torch.all(made.v.float()[..., key_of_place(128).to(made.v.device) >= 70] == 0)

    def test_zeros_and_infinities_stay_what_they_are(self, interpreted) -> None:
        q, k, v = (torch.zeros_like(x) for x in draw(1, 1, 1, 130, 130, 64, dtype=torch.float16))
        k[0, 0, 0, 0] = math.inf
        made = dequantised(interpreted.quantise(q, k, v))
        assert torch.all(made[0] == 0)
        if ON_HOPPER:  # the interpreter makes a number of NaN
            assert torch.all(made[1][0, 0, :128].isnan())
        assert torch.all(made[1][0, 0, 128:] == 0)
        assert torch.all(made[2] == 0)


def test_values_stand_in_the_order_of_the_registers_that_hold_the_weights() -> None:
    """A thread has the columns 8 g + 2 c + e of a product and those from 16 h + 4 c on, four at a time, of a factor."""
    held = {c: [8 * g + 2 * c + e for g in range(4) for e in range(2)] for c in range(4)}
    wanted = {c: [16 * h + 4 * c + i for h in range(2) for i in range(4)] for c in range(4)}
    order = key_of_place(64).tolist()
    assert sorted(order) == list(range(64))
    for c in range(4):
        assert [order[place] for place in wanted[c]] == held[c]
        assert [order[32 + place] for place in wanted[c]] == [32 + key for key in held[c]]
