"""The memory pass: what goes in, what comes on top, what stays for a backward."""

import pytest
import torch

from kernels.attention.torch_naive import attention as naive
from results.records import attention_case
from runner.levels import make_inputs, op
from runner.machine import peaks
from runner.measure.passes import MIB, memory_of_call

CASE = attention_case(batch=2, num_heads=4, seqlen=1024, head_dim=64, dtype="float16", causal=False)
TENSOR = 2 * 4 * 1024 * 64 * 2 / MIB  # of q, k, v, out and each gradient
MATRIX = 2 * 4 * 1024 * 1024 * 2 / MIB


def memory_of(attention, inputs, mode: str):
    kept = op.kept_for_backward(attention, inputs, mode)
    return memory_of_call(op.call(attention, inputs, mode), inputs.bytes_of(mode), kept)


@pytest.mark.gpu
def test_the_peak_is_the_inputs_and_what_the_call_adds() -> None:
    inputs = make_inputs(CASE, "cuda", 0)
    forward, both = (memory_of(naive, inputs, mode) for mode in ("fwd", "fwd_bwd"))
    assert (forward["inputs_memory_mb"], both["inputs_memory_mb"]) == (3 * TENSOR, 4 * TENSOR)
    for found in (forward, both):
        assert found["peak_memory_mb"] == found["inputs_memory_mb"] + found["extra_memory_mb"]
        assert found["reserved_memory_mb"] >= found["peak_memory_mb"]
        assert found["extra_memory_mb"] >= MATRIX + TENSOR
    assert both["extra_memory_mb"] > forward["extra_memory_mb"]


@pytest.mark.gpu
def test_what_is_saved_for_the_backward_is_the_output_and_the_probabilities() -> None:
    inputs = make_inputs(CASE, "cuda", 0)
    forward, both = (memory_of(naive, inputs, mode) for mode in ("fwd", "fwd_bwd"))
    assert "activation_memory_mb" not in forward
    assert both["activation_memory_mb"] >= TENSOR + MATRIX

    def lean(q, k, v, **options):
        return q * 0.0 + k * 0.0 + v

    assert memory_of(lean, inputs, "fwd_bwd")["activation_memory_mb"] == TENSOR


@pytest.mark.gpu
def test_the_measured_peaks_are_those_of_a_gpu_and_leave_nothing_behind() -> None:
    before = torch.cuda.memory_allocated()
    found = peaks.measure("cuda:0")
    rates = found["tflops"]
    assert rates["bfloat16"] > rates["float32"] > 1
    assert rates["tf32"] >= 0.9 * rates["float32"]
    assert found["gbs"] > 100
    assert torch.cuda.memory_allocated() == before
    assert not torch.backends.cuda.matmul.allow_tf32
