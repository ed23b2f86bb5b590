"""The peers that are compiled or installed: what can be seen without them, and all of it where they run."""

import pytest
import torch

from kernels import registry
from kernels.attention import flash_attn_4, torch_flex
from kernels.attention.torch_naive import hidden_keys
from kernels.registry import UnsupportedCase
from results.records import attention_case

CASES = [(63, 63, True, 0), (63, 63, True, 7), (63, 63, False, 7), (20, 63, True, 0), (63, 20, True, 5)]


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "causal", "window_size"), CASES)
def test_flex_sees_what_the_baseline_does_not_hide(seqlen_q, seqlen_k, causal, window_size):
    sees = torch_flex.visible_keys(seqlen_q, seqlen_k, causal, window_size)
    queries, keys = torch.arange(seqlen_q)[:, None], torch.arange(seqlen_k)
    hidden = hidden_keys(seqlen_q, seqlen_k, causal, window_size, torch.device("cpu"))
    assert torch.equal(sees(0, 0, queries, keys), ~hidden)


@pytest.mark.parametrize(("causal", "window_size"), [(True, 7), (False, 7)])
def test_flash_attention_4_gets_the_window_as_keys_before_and_after(causal, window_size):
    before, after = flash_attn_4.window(causal, window_size)
    positions, keys = torch.arange(30)[:, None], torch.arange(30)
    seen = (keys >= positions - before) & (keys <= positions + after)
    assert torch.equal(seen, ~hidden_keys(30, 30, causal, window_size, torch.device("cpu")))
    assert flash_attn_4.window(True, 0) == (None, None)


def test_a_call_that_cannot_run_says_why():
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match="torch_flex is compiled for a GPU"):
        torch_flex.attention(q, q, q)
    if registry.get("flash_attn_4").unavailable:
        with pytest.raises(UnsupportedCase, match="pip install --pre flash-attn-4"):
            flash_attn_4.attention(q, q, q)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the peers run on CUDA")
@pytest.mark.filterwarnings("ignore")  # other projects' own
@pytest.mark.parametrize("name", ["torch_flex", "flash_attn_4"])
@pytest.mark.parametrize(("causal", "window_size"), [(False, 0), (True, 0), (True, 100), (False, 100)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_peer_is_right_where_it_says_it_runs(problem, name, causal, window_size, head_dim):
    implementation = registry.get(name)
    case = attention_case(
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        seqlen=200,
        head_dim=head_dim,
        dtype="bfloat16",
        causal=causal,
        window_size=window_size,
    )
    if reason := implementation.reason_against(case, registry.describe_device("cuda")):
        pytest.skip(reason)
    made = problem((2, 4, 2, 200, 200, head_dim), torch.bfloat16, causal=causal, window_size=window_size)
    made.check(implementation.attention)
