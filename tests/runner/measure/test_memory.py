"""The memory pass: what goes in, what comes on top, what stays for a backward."""

from types import SimpleNamespace

import pytest
import torch

from kernels.attention.torch_naive import attention as naive
from results.records import attention_case
from runner.levels import make_inputs, op
from runner.machine import peaks
from runner.measure.memory import MIB, memory_of_call

CASE = attention_case(batch=2, num_heads=4, seqlen=1024, head_dim=64, dtype="float16", causal=False)
TENSOR = 2 * 4 * 1024 * 64 * 2 / MIB  # of q, k, v, out and each gradient
MATRIX = 2 * 4 * 1024 * 1024 * 2 / MIB


def memory_of(attention, inputs, mode: str):
    kept = op.kept_for_backward(attention, inputs, mode)
    found = memory_of_call(op.call(attention, inputs, mode), inputs.bytes_of(mode), kept)
    return SimpleNamespace(**{metric.removesuffix("_memory_mb"): size for metric, size in found.items()})


@pytest.mark.gpu
def test_the_peak_is_the_inputs_and_what_the_call_adds() -> None:
    inputs = make_inputs(CASE, "cuda", 0)
    forward, both = (memory_of(naive, inputs, mode) for mode in ("fwd", "fwd_bwd"))
    assert (forward.inputs, both.inputs) == (3 * TENSOR, 4 * TENSOR)
    for found in (forward, both):
        assert found.peak == found.inputs + found.extra
        assert found.reserved >= found.peak
        assert found.extra >= MATRIX + TENSOR
    assert both.extra > forward.extra


@pytest.mark.gpu
def test_what_is_saved_for_the_backward_is_the_output_and_the_probabilities() -> None:
    inputs = make_inputs(CASE, "cuda", 0)
    forward, both = (memory_of(naive, inputs, mode) for mode in ("fwd", "fwd_bwd"))
    assert not hasattr(forward, "activation")
    assert both.activation >= TENSOR + MATRIX

    def lean(q, k, v, **options):
        return q * 0.0 + k * 0.0 + v

    assert memory_of(lean, inputs, "fwd_bwd").activation == TENSOR


@pytest.mark.gpu
def test_the_measured_peaks_are_those_of_a_gpu_and_leave_nothing_behind() -> None:
    before = torch.cuda.memory_allocated()
    found = peaks.measure("cuda:0")
    assert found.tflops["bfloat16"] > found.tflops["float32"] > 1
    assert found.tflops["tf32"] >= 0.9 * found.tflops["float32"]
    assert found.gbs > 100
    assert torch.cuda.memory_allocated() == before
    assert not torch.backends.cuda.matmul.allow_tf32
