"""gluon_fp8: its kernel on a Hopper GPU, its compiled form anywhere, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from kernels import reference, registry
from kernels.attention import gluon_fp8
from kernels.attention.gluon_fp8 import plan
from kernels.attention.gluon_fp8.tuning import tiles_of_head
from tests.cases import cases
from tests.kernels.attention.gluon_fp8.inputs import draw
from tests.kernels.attention.gluon_fp8.rounding import dequantised
from tests.kernels.conftest import NEEDS_HOPPER

EPSILON = 2.0**-4  # half a unit in the last place of e4m3, relative to a normal number


@pytest.mark.parametrize("programs", [1, 114, 132])
@pytest.mark.parametrize("n_heads", [1, 8, 128])
def test_tiles_of_a_head_hold_all_its_rows_and_none_is_beyond_them(n_heads: int, programs: int) -> None:
    for seqlen in (1, 64, 65, 192, 193, 512, 900, 2048, 16384):
        long, short = tiles_of_head(seqlen, n_heads, programs)
        last = 128 if short else 192
        assert 192 * long + 128 * short - last < seqlen <= 192 * long + 128 * short


def test_short_tiles_fill_the_last_round() -> None:
    assert tiles_of_head(16384, 16, 132) == (82, 5)  # 10 rounds of long tiles and one of short


def assert_right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """The kernel errs by what rounding its weights to e4m3 costs; the call, by that and the rounding of its inputs."""
    made = plan.quantise(q, k, v)
    rounded = dequantised(made)
    exact, plain = reference.attention(*rounded).out, reference.attention(q, k, v).out
    out = plan.attend(made, made.head_dim**-0.5).double()
    assert error_of(out, exact) <= EPSILON
    with torch.no_grad():
        call = gluon_fp8.attention(q, k, v)
    assert call.dtype == q.dtype
    assert error_of(call.double(), plain) <= error_of(exact, plain) + EPSILON


def error_of(got: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = (got - wanted).norm().item()
    return difference / (wanted.norm().item() or 1.0)


class TestOnHopper:
    pytestmark = NEEDS_HOPPER

    @pytest.mark.parametrize("sizes, head_dims, options", cases(__file__, "sizes"))
    def test_every_length_head_dim_and_magnitude_is_right(self, sizes, head_dims, options: dict) -> None:
        given = options | {"dtype": getattr(torch, options.get("dtype", "bfloat16"))}
        for head_dim in head_dims:
            assert_right(*draw(*sizes, head_dim, **given))

    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    def test_many_tiles_a_program_are_right_and_the_same_every_time(self, head_dim: int) -> None:
        tensors = draw(4, 10, 5, 900, 1024, head_dim)
        assert_right(*tensors)
        made = plan.quantise(*tensors)
        first = plan.attend(made, made.head_dim**-0.5)
        assert all(torch.equal(first, plan.attend(made, made.head_dim**-0.5)) for _ in range(10))

    def test_tiles_of_two_and_of_three_consumers_are_right(self) -> None:
        tensors = draw(8, 16, 16, 500, 512, 128)
        programs = torch.cuda.get_device_properties(0).multi_processor_count
        assert all(tiles_of_head(500, 128, programs)), "this card deals no such mixture"
        assert_right(*tensors)

    # Scores stay below some 250: tensor cores add e4m3 products to 13 bits behind the largest.
    @pytest.mark.parametrize("rise", [3.5, 4.0])
    def test_scores_that_rise_from_block_to_block_are_right(self, rise: float) -> None:
        q, k, v = draw(1, 2, 2, 300, 1024, 128)
        blocks = 7 - torch.arange(1024, device=k.device) // 128  # as they are walked
        k[..., 0] = (blocks * rise * math.log(2) * math.sqrt(128) / 4).to(k.dtype)
        q[..., 0] = 4.0
        assert_right(q, k, v)

    def test_a_last_block_far_above_the_others_is_right(self) -> None:
        q, k, v = draw(1, 2, 2, 300, 1024, 128)
        k[..., 0], q[..., 0] = 0.0, 4.0
        k[..., :128, 0] = 30 * math.log(2) * math.sqrt(128) / 4  # walked last, 2^30 above the others
        assert_right(q, k, v)

    def test_scales_of_128_rows_that_differ_are_right(self) -> None:
        q, k, v = draw(1, 2, 2, 600, 600, 128)
        for x in (q, k, v):
            x *= torch.exp2(torch.arange(600, device=x.device) // 100 - 3.0)[:, None].to(x.dtype)
        assert_right(q, k, v)

    @pytest.mark.parametrize("softmax_scale", [-0.1, 0.0, 0.3])
    def test_any_scale_is_right(self, softmax_scale: float) -> None:
        q, k, v = draw(1, 2, 2, 200, 200, 128)
        with torch.no_grad():
            out = gluon_fp8.attention(q, k, v, softmax_scale=softmax_scale)
        rounded = dequantised(plan.quantise(q, k, v))
        wanted = reference.attention(*rounded, softmax_scale=softmax_scale).out
        assert error_of(out.double(), wanted) <= EPSILON

    def test_strided_and_expanded_tensors_are_right(self) -> None:
        q, k, v = draw(1, 3, 3, 300, 300, 128)
        assert_right(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)))
        assert_right(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v))
        assert_right(*(x.mT.contiguous().mT for x in (q, k, v)))

    def test_a_wrong_order_of_values_is_beyond_the_budget(self) -> None:
        q, k, v = draw(1, 2, 2, 256, 256, 128)
        made = plan.quantise(q, k, v)
        exact = reference.attention(*dequantised(made)).out
        made.v.copy_(made.v.view(torch.uint8).roll(1, -1).view(made.v.dtype))
        assert error_of(plan.attend(made, made.head_dim**-0.5).double(), exact) > EPSILON


def test_it_is_a_precision_of_its_own_without_a_backward() -> None:
    implementation = registry.get("gluon_fp8")
    assert implementation.precision == "fp8"
    assert not implementation.backward
    assert [name for name, found in registry.implementations().items() if found.precision == "fp8"] == ["gluon_fp8"]


def test_a_call_says_what_it_cannot_do() -> None:
    q = torch.zeros(1, 1, 16, 64, dtype=torch.bfloat16)
    with pytest.raises(registry.UnsupportedCase, match="gluon_fp8 got .* Hopper"):
        gluon_fp8.attention(q, q, q)
    with pytest.raises(registry.UnsupportedCase, match="window"):
        gluon_fp8.attention(q, q, q, window_size=4)
    with pytest.raises(registry.UnsupportedCase, match="causal masks: 128 rows share a scale, so later tokens"):
        gluon_fp8.attention(q, q, q, causal=True)
    with pytest.raises(registry.UnsupportedCase, match="no backward"):
        gluon_fp8.attention(q.requires_grad_(), q, q)
