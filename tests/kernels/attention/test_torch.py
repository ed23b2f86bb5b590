"""PyTorch's implementations against the float64 oracle, and what they refuse."""

import pytest
import torch

from kernels import registry
from kernels.attention import torch_naive, torch_sdpa
from kernels.registry import UnsupportedCase
from kernels.tools.check_features import cases as feature_cases
from kernels.tools.check_features import worst_error
from results.records import attention_case
from tests.cases import cases

DTYPES = ["float32", "float16", "bfloat16"]
SHAPES = cases(__file__, "SHAPES")
SDPA = [i.name for i in torch_sdpa.IMPLEMENTATIONS]


def assert_near(made, attention):
    """Assert that out and the gradients are those of the oracle up to 60 roundings."""
    expected, got, atol = made.expected(), made.run(attention), 60 * torch.finfo(made.q.dtype).eps
    for name, exact in expected.items():
        torch.testing.assert_close(got[name].double(), exact, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("causal", "window_size"), [(False, 0), (True, 0), (True, 7), (False, 7)])
def test_naive_is_near_the_oracle(problem, shape, dtype, causal, window_size):
    made = problem(shape, getattr(torch, dtype), causal=causal, window_size=window_size)
    assert_near(made, torch_naive.attention)


@pytest.mark.parametrize("name", SDPA)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("causal", "window_size"), [(False, 0), (True, 0), (True, 7)])
def test_sdpa_is_right_or_says_up_front_why_not(problem, device, name, shape, dtype, causal, window_size):
    implementation = registry.get(name)
    names = ("batch", "num_heads", "num_kv_heads", "seqlen", "seqlen_k", "head_dim")
    sizes = dict(zip(names, shape, strict=True))
    case = attention_case(**sizes, dtype=dtype, causal=causal, window_size=window_size)
    reason = implementation.reason_against(case, registry.describe_device(device))
    if reason:
        assert reason.startswith(name)
        return
    assert_near(problem(shape, getattr(torch, dtype), causal=causal, window_size=window_size), implementation.attention)


def test_flash_and_math_and_auto_run_on_the_cpu():
    case = attention_case(batch=1, num_heads=2, seqlen=64, head_dim=64, dtype="float32", causal=True)
    cpu = registry.Device(type="cpu", name="CPU")
    reasons = {name: registry.get(name).reason_against(case, cpu) for name in SDPA}
    assert [name for name, reason in reasons.items() if reason is None] == [
        "torch_sdpa_auto",
        "torch_sdpa_flash",
        "torch_sdpa_math",
    ]
    assert reasons["torch_sdpa_cudnn"] == "torch_sdpa_cudnn runs on cuda, not on cpu."


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch warns why each backend refuses before it raises
@pytest.mark.parametrize("variant", ["cudnn", "efficient"])
def test_a_backend_that_pytorch_lacks_is_an_unsupported_case(variant):
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match=f"torch_sdpa_{variant}: PyTorch .* has no {variant} kernel .* on cpu"):
        torch_sdpa.attention(q, q, q, variant=variant)


def test_a_mask_for_a_backend_without_masks_is_an_unsupported_case():
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match="takes no mask"):
        torch_sdpa.attention(q, q, q, causal=True, window_size=3, variant="flash")


@pytest.mark.parametrize("case", ["boolean mask", "additive mask", "learned mask", "blocks, causal"])
def test_masks_are_those_that_fused_kernels_take_and_no_row_is_without_a_key(case, monkeypatch):
    """cuDNN's kernel is one that divides by the sum of the exponentials, whatever it is.

    A row that a caller's bias hides whole is left to PyTorch, whose softmax makes it zeros.
    """

    def fused(q, k, v, attn_mask, scale, enable_gqa):
        assert attn_mask.dtype in (torch.bool, q.dtype) and attn_mask.stride(-1) == 1
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = q @ k.mT * q.shape[3] ** -0.5
        if attn_mask.dtype == torch.bool:
            return (scores + attn_mask.log()).softmax(-1) @ v
        hidden = attn_mask.isneginf().all(-1, keepdim=True)
        return (scores + attn_mask).masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0) @ v

    monkeypatch.setattr(torch_sdpa, "scaled_dot_product_attention", fused)
    worst, of = worst_error(feature_cases()[case], torch_sdpa.attention, torch.float64, "cpu")
    assert worst <= 1, of


H200 = registry.Device(type="cuda", name="NVIDIA H200", compute_capability=(9, 0))


@pytest.mark.parametrize(
    ("name", "changes", "sentence"), cases(__file__, "test_what_a_backend_lacks_on_a_gpu_is_one_sentence")
)
def test_what_a_backend_lacks_on_a_gpu_is_one_sentence(name, changes, sentence):
    fields = {"batch": 1, "num_heads": 2, "seqlen": 128, "head_dim": 64, "dtype": "bfloat16", "causal": True}
    reason = registry.get(name).reason_against(attention_case(**fields | changes), H200)
    assert reason.startswith(name)
    assert sentence in reason


def test_every_implementation_has_its_own_name():
    names = [i.name for module in (torch_naive, torch_sdpa) for i in module.IMPLEMENTATIONS]
    assert sorted(set(names)) == sorted(names)
    assert set(names) <= set(registry.implementations())
