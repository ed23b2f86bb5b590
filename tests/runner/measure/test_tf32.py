"""The switch of TF32 is as it was, however a block ends."""

import pytest
import torch

from kernels.tools.check_features import tf32_products


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_the_switch_holds_within_the_block_and_is_put_back_after_an_error(before: bool, allowed: bool) -> None:
    with tf32_products(before):
        with pytest.raises(ZeroDivisionError), tf32_products(allowed):
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
            raise ZeroDivisionError
        assert torch.backends.cuda.matmul.allow_tf32 is before
