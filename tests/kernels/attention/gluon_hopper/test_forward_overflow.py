"""gluon_hopper's forward on a Hopper GPU where scores exceed their rows' maxima from one block of keys to the next."""

import pytest
import torch

from kernels import reference
from kernels.attention import gluon_hopper
from kernels.attention.gluon_hopper import tuning
from tests.kernels.conftest import NEEDS_HOPPER

pytestmark = NEEDS_HOPPER
BOUND = {torch.bfloat16: 4e-3, torch.float16: 6e-4}  # the dtype's spacing at 1


def assert_right(seqlen_q: int, seqlen_k: int, head_dim: int, causal: bool, dtype: torch.dtype, factor: float) -> None:
    """With the left half of the keys so many times as large: keys are walked from the right."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, seqlen, head_dim, device="cuda", generator=generator).to(dtype)
        for heads, seqlen in ((4, seqlen_q), (2, seqlen_k), (2, seqlen_k))
    )
    k[:, :, : seqlen_k // 2] *= factor
    wanted = reference.attention(q, k, v, causal=causal).out
    error = gluon_hopper.attention(q, k, v, causal=causal).double() - wanted
    assert error.norm() < BOUND[dtype] * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
def test_scores_that_leave_every_range_from_one_block_to_the_next_are_right(head_dim, causal, dtype) -> None:
    assert_right(2000, 2048, head_dim, causal, dtype, factor=60)  # rows rise by up to 2^300


@pytest.mark.parametrize("factor", [1, 4, 60])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen_q", [2100, 4100, 16400])
def test_rows_are_right_where_overflow_is_flagged(seqlen_q: int, causal: bool, factor: float) -> None:
    assert tuning.forward_tiles(64, 64, seqlen_q, causal, False).flag_overflow
    assert_right(seqlen_q, 1000, 64, causal, torch.bfloat16, factor)
