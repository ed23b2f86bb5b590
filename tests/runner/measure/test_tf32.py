"""The switch of TF32 is as it was, however a block ends."""

import pytest
import torch

from runner.measure import tf32


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_the_switch_holds_within_the_block_and_is_put_back_after_an_error(before: bool, allowed: bool) -> None:
    with tf32.products(allowed=before):
        with pytest.raises(ZeroDivisionError), tf32.products(allowed=allowed):
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
            raise ZeroDivisionError
        assert torch.backends.cuda.matmul.allow_tf32 is before
