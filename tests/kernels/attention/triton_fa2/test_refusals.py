"""What triton_fa2 does not take, and where it cannot run: refused with a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import registry
from kernels.registry import Device, UnsupportedCase
from results.records import attention_case
from tests.cases import cases

triton_fa2 = pytest.importorskip("kernels.attention.triton_fa2")
ROOT = Path(__file__).parents[4]


def test_a_second_derivative_and_mixed_or_unknown_dtypes_are_refused(device):
    q = torch.randn(1, 1, 8, 16, device=device, requires_grad=True)
    (dq,) = torch.autograd.grad(triton_fa2.attention(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()
    q = torch.zeros(1, 1, 8, 16, device=device)
    with pytest.raises(UnsupportedCase, match="one dtype of"):
        triton_fa2.attention(q, q.half(), q)
    with pytest.raises(UnsupportedCase, match="float64"):
        triton_fa2.attention(q.double(), q.double(), q.double())


@pytest.mark.parametrize(("q", "k", "sentence"), cases(__file__, "test_shapes_that_do_not_belong_together_are_refused"))
def test_shapes_that_do_not_belong_together_are_refused(device, q, k, sentence):
    q, k = torch.zeros(q, device=device), torch.zeros(k, device=device)
    with pytest.raises(UnsupportedCase, match=sentence):
        triton_fa2.attention(q, k, k)


def test_tf32_is_a_name_of_its_own_and_float32_only():
    ieee, tf32 = registry.get("triton_fa2"), registry.get("triton_fa2_tf32")
    assert ieee.dtypes == ("bfloat16", "float16", "float32")
    assert tf32.dtypes == ("float32",)


def test_bfloat16_is_refused_on_the_cpu():
    case = attention_case(batch=1, num_heads=1, seqlen=64, head_dim=64, dtype="bfloat16", causal=True)
    implementation = registry.get("triton_fa2")
    reason = implementation.reason_against(case, Device(type="cpu", name="CPU"))
    assert "bfloat16" in reason
    x = torch.zeros(1, 1, 8, 16, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedCase, match="TRITON_INTERPRET|bfloat16"):
        implementation.attention(x, x, x)


def test_without_triton_everything_imports_and_says_why():
    code = "import sys, importlib.util as u; real = u.find_spec\n"
    code += "u.find_spec = lambda name, *a: None if name == 'triton' else real(name, *a)\n"
    code += "sys.modules['triton'] = None\n"
    code += "from kernels.attention import triton_fa2; print([i.unavailable for i in triton_fa2.IMPLEMENTATIONS])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={})
    assert answer.stdout.count("Triton is not installed") == 2, answer.stderr
