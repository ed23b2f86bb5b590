"""On a CPU machine these run in Triton's interpreter (float16 and float32), on a CUDA machine for real."""

import itertools

import pytest
import torch

from kernels.registry import UnsupportedCase, get
from tests.cases import cases

flash_attn_1 = pytest.importorskip("kernels.attention.flash_attn_1")
kernels = pytest.importorskip("kernels.attention.flash_attn_1.kernels")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
CASES = cases(__file__, "CASES")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_outputs_and_gradients_are_as_near_the_oracle_as_naive(problem, case, dtype) -> None:
    shape, causal = case
    problem(shape, dtype, causal=causal).check(flash_attn_1.attention)


def test_views_with_heads_behind_tokens_are_taken_as_they_are(device) -> None:
    qkv = torch.randn(2, 70, 3, 2, 32, device=device)
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    out = flash_attn_1.attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    dense = (part.contiguous() for part in (q, k, v))
    torch.testing.assert_close(out, flash_attn_1.attention(*dense))


def test_blocks_are_the_papers_where_they_fit() -> None:
    config = kernels.options_of("forward", 2, 64, causal=True)["CONFIG"].config
    assert config.block_m == min(config.block_n, 64)
    for direction, size, head_dim in itertools.product(("forward", "backward"), (2, 4), (16, 64, 65, 128, 129, 256)):
        config = kernels.options_of(direction, size, head_dim, causal=True)["CONFIG"].config
        assert config.block_m <= config.block_n


def test_a_window_is_refused(device) -> None:
    x = torch.randn(1, 1, 16, 16, device=device)
    with pytest.raises(UnsupportedCase, match="sliding windows"):
        flash_attn_1.attention(x, x, x, window_size=4)
    assert not get("flash_attn_1").window
