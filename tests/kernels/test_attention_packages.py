"""The peers that are compiled or installed: what can be seen without them, and all of it where they run.

Those that are not installed here are called through stand-ins: modules with the signatures of the real ones (flash-attn
2.8.3, flash_attn_interface 3.0.0b1, flash-attn-4 4.0.0b36, xformers 0.0.35) that compute with PyTorch what those do.
"""

import dataclasses
import sys
from types import ModuleType

import pytest
import torch

from kernels import attention_packages, registry
from kernels.attention import flash_attn_2, flash_attn_3, flash_attn_4, torch_flex, xformers
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
    before, after = attention_packages.window(causal, window_size, every=None)
    positions, keys = torch.arange(30)[:, None], torch.arange(30)
    seen = (keys >= positions - before) & (keys <= positions + after)
    assert torch.equal(seen, ~hidden_keys(30, 30, causal, window_size, torch.device("cpu")))
    assert attention_packages.window(True, 0, every=None) == (None, None)


def attend(q, k, v, seen, scale):
    """Attention of (batch, seqlen, heads, head_dim) by the definition; zero where a query sees no key."""
    group, scale = q.shape[2] // k.shape[2], q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def band(seqlen_q, seqlen_k, left, right):
    """Where a query looks: so many keys before and after its own position; the last query's is the last key."""
    distance = torch.arange(seqlen_k) - torch.arange(seqlen_q)[:, None] - (seqlen_k - seqlen_q)
    return (distance >= -left) & (distance <= right)


def flash_seen(q, k, causal, window_size):
    assert isinstance(window_size, tuple)
    left, right = (10**6 if limit == -1 else limit for limit in window_size)
    return band(q.shape[1], k.shape[1], left, 0 if causal else right)


def flash_attn_2_stand_in():
    def flash_attn_func(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
    ):
        assert (dropout_p, softcap, alibi_slopes, return_attn_probs) == (0.0, 0.0, None, False)
        return attend(q, k, v, flash_seen(q, k, causal, window_size), softmax_scale)

    module = ModuleType("flash_attn")
    module.flash_attn_func = flash_attn_func
    return {"flash_attn": module}


def flash_attn_3_stand_in(with_lse):
    def flash_attn_func(
        q,
        k,
        v,
        softmax_scale=None,
        causal=False,
        qv=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        sm_margin=0,
        return_attn_probs=False,
    ):
        assert (qv, q_descale, k_descale, v_descale, attention_chunk, softcap) == (None, None, None, None, 0, 0.0)
        out = attend(q, k, v, flash_seen(q, k, causal, window_size), softmax_scale)
        return (out, None) if with_lse else out

    module = ModuleType("flash_attn_interface")
    module.flash_attn_func = flash_attn_func
    return {"flash_attn_interface": module}


def flash_attn_4_stand_in():
    def flash_attn_func(
        q,
        k,
        v,
        qv=None,
        gather_kv_indices=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
    ):
        assert (qv, gather_kv_indices, learnable_sink, softcap) == (None, None, None, 0.0)
        assert not (causal and window_size != (None, None))
        limits = tuple(-1 if limit is None else limit for limit in window_size)
        return attend(q, k, v, flash_seen(q, k, causal, limits), softmax_scale), None

    modules = {name: ModuleType(name) for name in ("flash_attn", "flash_attn.cute")}
    modules["flash_attn.cute"].flash_attn_func = flash_attn_func
    return modules


class Local:
    """Stands in for LocalAttentionFromBottomRightMask."""

    def __init__(self, window_left, window_right):
        self.limits = (window_left, window_right)


class Below:
    """Stands in for LowerTriangularFromBottomRightMask, and for what its method makes."""

    def __init__(self):
        self.limits = (10**6, 0)

    def make_local_attention(self, window_size):
        return Local(window_size - 1, 0)


def xformers_stand_in():
    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
        assert (p, op, output_dtype) == (0.0, None, None)
        grouped = query.ndim == 5  # (batch, seqlen, groups, heads of a group, head_dim)
        if grouped:
            assert not any(x.requires_grad for x in (query, key, value)), "its backward takes no groups"
            assert query.shape[2:4] == key.shape[2:4] and key.stride(3) == value.stride(3) == 0
        else:
            assert query.shape[2] == key.shape[2]
        left, right = attn_bias.limits if attn_bias else (10**6, 10**6)
        seen = band(query.shape[1], key.shape[1], left, right)
        flat = (x.flatten(2, 3) if grouped else x for x in (query, key, value))
        return attend(*flat, seen, scale).reshape(query.shape)

    modules = {name: ModuleType(name) for name in ("xformers", "xformers.ops", "xformers.ops.fmha")}
    modules["xformers.ops"].memory_efficient_attention = memory_efficient_attention
    modules["xformers.ops.fmha.attn_bias"] = biases = ModuleType("xformers.ops.fmha.attn_bias")
    biases.LocalAttentionFromBottomRightMask, biases.LowerTriangularFromBottomRightMask = Local, Below
    modules["xformers.ops.fmha"].attn_bias = biases
    return modules


STAND_INS = {
    "flash_attn_2": (flash_attn_2, flash_attn_2_stand_in()),
    "flash_attn_3": (flash_attn_3, flash_attn_3_stand_in(with_lse=False)),
    "flash_attn_3 with lse": (flash_attn_3, flash_attn_3_stand_in(with_lse=True)),
    "flash_attn_4": (flash_attn_4, flash_attn_4_stand_in()),
    "xformers": (xformers, xformers_stand_in()),
}


@pytest.fixture(params=STAND_INS)
def peer(request, monkeypatch):
    """The attention of a peer that finds the stand-in for its package."""
    module, stand_ins = STAND_INS[request.param]
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    flash_attn_4._function.cache_clear()
    return attention_packages.attention_by(module.call, unavailable=None)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "causal", "window_size"), [*CASES, (40, 40, False, 0)])
def test_a_peer_is_told_layout_mask_and_scale(peer, problem, seqlen_q, seqlen_k, causal, window_size, kv_heads):
    if torch.cuda.is_available():
        pytest.skip("the stand-ins compute on the CPU")
    made = problem(
        (2, 4, kv_heads, seqlen_q, seqlen_k, 16),
        torch.float32,
        causal=causal,
        window_size=window_size,
        softmax_scale=0.3,
    )
    made.check(peer)
    with torch.no_grad():  # xformers is called otherwise
        out = peer(made.q, made.k, made.v, **made.keywords)
    assert out.shape == made.q.shape
    torch.testing.assert_close(out.double(), made.expected()["out"], rtol=1e-4, atol=1e-5)


def test_a_call_does_not_look_for_its_package_again(peer, monkeypatch):
    def lookup(name):
        raise AssertionError("takes a tenth of a millisecond and more, which would be timed with the call")

    monkeypatch.setattr("importlib.metadata.version", lookup)
    monkeypatch.setattr("importlib.util.find_spec", lookup)
    q = torch.randn(1, 2, 8, 16)
    assert peer(q, q, q).shape == q.shape


def test_xformers_without_a_kernel_is_unsupported_and_gives_its_reason(monkeypatch):
    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
        raise NotImplementedError("No operator found:\n    xFormers wasn't build with CUDA support")

    for name, stand_in in xformers_stand_in().items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr(sys.modules["xformers.ops"], "memory_efficient_attention", memory_efficient_attention)
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match="No operator found: xFormers wasn't build"):
        attention_packages.attention_by(xformers.call, unavailable=None)(q, q, q)


@pytest.mark.skipif(registry.get("xformers").unavailable is not None, reason="xformers is not installed")
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "causal", "window_size"), CASES)
def test_masks_of_xformers_hide_what_the_baseline_hides(seqlen_q, seqlen_k, causal, window_size):
    bias = xformers.mask(causal, window_size).materialize((seqlen_q, seqlen_k))
    assert torch.equal(bias != 0, hidden_keys(seqlen_q, seqlen_k, causal, window_size, torch.device("cpu")))


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flash_attn_2", {}, None),
        ("flash_attn_2", {"dtype": "float32"}, "float32"),
        ("flash_attn_2", {"capability": (7, 5)}, "compute capability"),
        ("flash_attn_3", {}, None),
        ("flash_attn_3", {"capability": (8, 0)}, "compute capability"),
        ("flash_attn_3", {"head_dim": 100}, "divisible by 8"),
        ("xformers", {"dtype": "float32"}, None),
        ("xformers", {"dtype": "float32", "causal": False, "window_size": 9}, "not in float32"),
        ("xformers", {"causal": False, "window_size": 9}, None),
        ("xformers", {"dtype": "float32", "capability": (10, 0)}, "9.0"),
        ("xformers", {"head_dim": 20}, "divisible by 8"),
    ],
)
def test_a_peer_says_what_it_cannot_run(name, changes, reason):
    changes = {"head_dim": 64, "dtype": "bfloat16", "causal": True, "window_size": 0, "capability": (9, 0), **changes}
    device = registry.Device(type="cuda", name="a GPU", compute_capability=changes.pop("capability"))
    case = attention_case(batch=1, num_heads=4, num_kv_heads=2, seqlen=64, **changes)
    answer = dataclasses.replace(registry.get(name), unavailable=None).reason_against(case, device)
    assert (answer is None) if reason is None else (reason in answer)


def test_a_call_that_cannot_run_says_why():
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match="torch_flex is compiled for a GPU"):
        torch_flex.attention(q, q, q)
    messages = {flash_attn_2: "pip install flash-attn", flash_attn_3: "folder hopper", xformers: "pip install xformers"}
    for peer, message in {flash_attn_4: "pip install --pre flash-attn-4", **messages}.items():
        if peer.IMPLEMENTATIONS[0].unavailable:
            with pytest.raises(UnsupportedCase, match=message):
                peer.IMPLEMENTATIONS[0].attention(q, q, q)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the peers run on CUDA")
@pytest.mark.filterwarnings("ignore")  # other projects' own
@pytest.mark.parametrize("name", ["torch_flex", "flash_attn_2", "flash_attn_3", "flash_attn_4", "xformers"])
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
