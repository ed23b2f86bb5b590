"""Adapters of other projects' packages: called through stand-ins, and on a GPU where the packages are installed."""

import sys
import tomllib
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import packages, registry
from kernels.attention import torch_flex, xformers
from kernels.attention.torch_naive import hidden_keys
from kernels.decode import cudnn_frontend, flashinfer, flex_paged
from kernels.features import Features
from kernels.problem import Problem
from kernels.registry import Device, UnsupportedCase
from kernels.tools import check_features
from results.records import attention_case, decode_case
from runner.levels import decode, make_inputs
from runner.measure.check import check, make_oracle
from tests.kernels import stand_ins

MASKS = [(63, 63, True, 0), (63, 63, True, 7), (63, 63, False, 7), (20, 63, True, 0), (63, 20, True, 5)]
CASE = decode_case(batch=3, num_heads=4, num_kv_heads=2, context=64, head_dim=16, dtype="float32")
LATENT = decode_case(
    batch=3, num_heads=4, num_kv_heads=1, context=128, head_dim=576, dtype="float32", latent_dim=512, page_size=64
)
PAGED, RAGGED, E4M3 = {"page_size": 16}, {"lengths": "ragged"}, {"cache_dtype": "float8_e4m3fn"}
DECODE_CASES = [
    replace(case, **form)
    for case in (CASE, replace(CASE, seqlen_q=3), replace(CASE, window_size=7))
    for form in ({}, PAGED, RAGGED, {**PAGED, **RAGGED}, {"page_size": 256, **RAGGED}, {**PAGED, **E4M3})
] + [LATENT, replace(LATENT, seqlen_q=2, **RAGGED), replace(CASE, seqlen_q=20, **PAGED)]
DECODE_CASES += [replace(CASE, batch=5, seqlen_q=20, lengths="2q20s64_3q1s33", window_size=w, **PAGED) for w in (0, 7)]
FEATURE_CASES = check_features.cases()
H200 = Device("cuda", "NVIDIA H200", (9, 0), 232448, 150 << 30)
OP = ("flash_attn_2", "flash_attn_3", "flash_attn_4", "xformers")
DECODE = (*OP, "cudnn_frontend", "flash_mla", "flashinfer")
PACKAGES = {packages.package_of(name) for name in DECODE}


@pytest.fixture
def peer(monkeypatch):
    """Return the callable of an adapter, which finds the stand-in for its package; what it needs of a GPU is faked."""
    for level in registry.FOLDERS:
        registry.implementations(level)  # looks for the real packages, once, before the stand-ins are there
    for name, module in stand_ins.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(cudnn_frontend, "_handle", lambda device: object())
    monkeypatch.setattr(cudnn_frontend, "_DTYPES", {torch.float32: "HALF"})
    monkeypatch.setattr(flashinfer, "_HEAD_DIMS", (16,))
    monkeypatch.setattr(flashinfer, "_WORKSPACE_BYTES", 1 << 10)
    monkeypatch.setattr(packages, "package_of", lambda name: packages.Package("here", "", module="sys"))

    def attention(name, level):
        module = sys.modules[f"kernels.{registry.FOLDERS[level]}.{name}"]
        if level == "decode":
            return packages.decode(name, module.prepare)[0].attention
        return packages.op(name, module.call, packed=module.packed)[0].attention

    yield attention


@pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins compute on the CPU")
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "causal", "window_size"), [*MASKS, (40, 40, False, 0)])
@pytest.mark.parametrize("name", OP)
def test_a_peer_gets_layout_mask_and_scale(peer, name, problem, seqlen_q, seqlen_k, causal, window_size, kv_heads):
    mask = {"causal": causal, "window_size": window_size, "softmax_scale": 0.3}
    made, attention = problem((2, 4, kv_heads, seqlen_q, seqlen_k, 16), torch.float32, **mask), peer(name, "op")
    made.check(attention)
    with torch.no_grad():  # xformers has another call without gradients
        out = attention(made.q, made.k, made.v, **made.keywords)
    assert out.shape == made.q.shape
    torch.testing.assert_close(out.double(), made.expected()["out"], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-ins compute on the CPU")
@pytest.mark.parametrize("case", check_features.cases())
@pytest.mark.parametrize("name", OP)
def test_a_peer_gets_the_features_that_it_declares(peer, name, case):
    made = FEATURE_CASES[case]
    if not check_features.declares(registry.get(name), made):
        names = (made.feature, *Features(**made.asked).asked)
        assert registry.get(name).reason_against_features(names).startswith(name)
    elif "rows without a key" not in case:  # of which the stand-ins have no gradient
        lengths = made.lengths and (made.lengths[0], made.lengths[0])  # packages want as many keys as queries here
        rows = sum(lengths[0]) if lengths else 0
        shape = (*made.shape[:3], rows, rows, *made.shape[5:]) if rows else made.shape
        made = replace(made, lengths=lengths, shape=shape)
        assert check_features.worst_error(made, peer(name, "op"), torch.float32, "cpu")[0] <= 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", check_features.cases())
def test_flex_computes_features(case, monkeypatch):
    from torch.nn.attention import flex_attention

    made = FEATURE_CASES[case]
    if not check_features.declares(registry.get("torch_flex"), made):
        assert made.asked.get("dropout_p"), "the only feature that it lacks"
        return
    torch._dynamo.reset()  # numbers that differ from those of another case would be symbols
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)  # refuses gradients on a CPU
    attend = partial(torch_flex.call, flex_attention.flex_attention)
    assert check_features.worst_error(made, attend, torch.float32, "cpu")[0] <= 1


@pytest.mark.parametrize("name", DECODE)
@pytest.mark.parametrize("case", DECODE_CASES)
def test_a_peer_gets_cache_lengths_and_pages(peer, name, case):
    rules = replace(registry.get(name, "decode"), unavailable=None)
    cache_dtype = "float16" if case.cache_dtype == case.dtype else case.cache_dtype
    if reason := rules.reason_against(replace(case, dtype="float16", cache_dtype=cache_dtype), H200):
        assert name in reason
        return
    (step,) = decode.PASSES
    checked = check(peer(name, "decode"), step, make_oracle(make_inputs(case, "cpu", seed=5), seed=5))
    assert checked.reason is None


def test_flash_attention_3_may_return_the_logsumexp_too(peer, monkeypatch):
    q = torch.randn(1, 2, 8, 16)
    alone = peer("flash_attn_3", "op")(q, q, q)
    module = sys.modules["flash_attn_interface"]
    function = module.flash_attn_func
    monkeypatch.setattr(module, "flash_attn_func", lambda *tensors, **options: (function(*tensors, **options), None))
    assert torch.equal(peer("flash_attn_3", "op")(q, q, q), alone)


@pytest.mark.parametrize("name", OP)
def test_a_call_does_not_look_for_its_package_again(peer, name, monkeypatch):
    def lookup(name):
        raise AssertionError("takes a tenth of a millisecond and more, which would be timed with the call")

    attention, q = peer(name, "op"), torch.randn(1, 2, 8, 16)
    monkeypatch.setattr("importlib.metadata.distributions", lookup)
    monkeypatch.setattr("importlib.util.find_spec", lookup)
    assert attention(q, q, q).shape == q.shape


def test_xformers_without_a_kernel_is_unsupported_and_gives_its_reason(peer, monkeypatch):
    def no_kernel(query, key, value, **options):
        raise NotImplementedError("No operator found:\n    xFormers wasn't build with CUDA support")

    monkeypatch.setattr(sys.modules["xformers.ops"], "memory_efficient_attention", no_kernel)
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match="No operator found: xFormers wasn't build"):
        peer("xformers", "op")(q, q, q)


@pytest.mark.parametrize("package", sorted(PACKAGES, key=str), ids=lambda package: package.title)
def test_a_package_is_missing_if_no_distribution_or_module_has_its_name(package):
    absent = replace(
        package, **({"distribution": "no-such-package"} if package.distribution else {"module": "no_such"})
    )
    assert absent.unavailable == f"{package.title} is not installed: {package.install}."
    there = {"distribution": "torch"} if package.distribution else {"module": "torch"}
    assert replace(package, **there).unavailable is None


@pytest.mark.parametrize(("name", "level"), [*((name, "op") for name in OP), *((name, "decode") for name in DECODE)])
def test_a_package_that_is_not_installed_is_never_imported(name, level):
    implementation = registry.get(name, level)
    if implementation.unavailable is None:
        pytest.skip("installed here")
    q = torch.randn(1, 1, 8, 16)
    arguments = (q, q, q) if level == "op" else (make_inputs(CASE, "cpu", seed=0).step,)
    with pytest.raises(UnsupportedCase, match="is not installed: (pip install|build) "):
        implementation.attention(*arguments)


HALF = {"dtype": "bfloat16", "cache_dtype": "bfloat16", "head_dim": 64, "head_dim_v": 64}
REFUSED = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text())["refused"]


@pytest.mark.parametrize(("level", "name", "changes", "capability", "reason"), REFUSED)
def test_a_peer_says_what_it_cannot_run(level, name, changes, capability, reason):
    sizes = {"batch": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "bfloat16"}
    case = attention_case(seqlen=64, causal=True, **sizes) if level == "op" else replace(CASE, **HALF)
    case = replace(case, **{name: value for name, value in changes.items() if level == "decode" or "cache" not in name})
    implementation = replace(registry.get(name, level), unavailable=None)
    answer = implementation.reason_against(case, Device("cuda", "a GPU", tuple(capability)))
    assert (reason in answer) if reason else answer is None


@pytest.mark.parametrize(
    ("head_dim", "direction", "major"), [*product((40, 72, 96, 128), ("forward", "training"), (9, 10))]
)
def test_no_rule_names_flash_attention_4_where_its_dq_is_wrong(head_dim, direction, major):
    sizes = {"batch": 1, "num_heads": 4, "num_kv_heads": 4, "seqlen_q": 64, "seqlen_k": 64, "head_dim_v": head_dim}
    case = Problem("bfloat16", "full", head_dim=head_dim, direction=direction, **sizes).case
    implementation = replace(registry.get("flash_attn_4", "op"), unavailable=None)
    answer = implementation.reason_against(case, Device("cuda", "a GPU", (major, 0)))
    assert (answer is not None and "wrong dQ" in answer) == (head_dim < 96 and direction == "training" and major == 9)


def test_what_is_planned_before_a_step_is_timed_is_recorded():
    planned = {name: registry.get(name, "decode").planned for name in (*DECODE, "triton_split_kv", "flex_paged")}
    assert planned["triton_split_kv"] is None
    assert planned["flash_attn_3"] is None
    assert "plan()" in planned["flashinfer"]
    assert registry.get("flashinfer", "decode").facts["planned"] == planned["flashinfer"]
    assert "planned" not in registry.get("triton_split_kv", "decode").facts


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "causal", "window_size"), MASKS)
def test_flex_sees_what_the_baseline_does_not_hide(seqlen_q, seqlen_k, causal, window_size):
    sees = torch_flex.visible_keys(lambda q: q + seqlen_k - seqlen_q, seqlen_q + seqlen_k, causal, window_size)
    queries, keys = torch.arange(seqlen_q)[:, None], torch.arange(seqlen_k)
    hidden = hidden_keys(seqlen_q, seqlen_k, causal, window_size, torch.device("cpu"))
    assert torch.equal(sees(0, 0, queries, keys), ~hidden)


@pytest.mark.parametrize("tokens", [1, 4])
def test_flex_sees_the_pages_of_a_sequence_and_of_the_last_what_comes_before_a_query(tokens):
    step = make_inputs(replace(CASE, page_size=64, seqlen_k=192, seqlen_q=tokens), "cpu", seed=0).step
    mask = flex_paged.block_mask(step)
    for at in range(3):
        whole = mask.full_kv_indices[at, 0, 0, : int(mask.full_kv_num_blocks[at, 0, 0])].tolist()
        partly = mask.kv_indices[at, 0, 0, : int(mask.kv_num_blocks[at, 0, 0])].tolist()
        assert whole + partly == step.page_table[at].tolist()
        assert len(partly) == (tokens > 1)
        for query in range(tokens):
            keys = torch.arange(64) + 64 * int(step.page_table[at, 2])
            seen = mask.mask_mod(at, 0, query, keys)
            assert int(seen.sum()) == 64 - tokens + 1 + query


def test_flex_off_a_gpu_says_why_it_cannot_run():
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(UnsupportedCase, match="torch_flex is compiled for a GPU"):
        torch_flex.attention(q, q, q)


@pytest.mark.skipif(registry.get("xformers").unavailable is not None, reason="xformers is not installed")
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "causal", "window_size"), MASKS)
def test_masks_of_xformers_hide_what_the_baseline_hides(seqlen_q, seqlen_k, causal, window_size):
    bias = xformers.mask(causal, window_size).materialize((seqlen_q, seqlen_k))
    assert torch.equal(bias != 0, hidden_keys(seqlen_q, seqlen_k, causal, window_size, torch.device("cpu")))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # other projects' own
@pytest.mark.parametrize("name", ["torch_flex", *OP])
@pytest.mark.parametrize(("causal", "window_size"), [(False, 0), (True, 0), (True, 100), (False, 100)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_peer_is_right_where_it_says_it_runs(problem, name, causal, window_size, head_dim):
    mask, sizes = {"causal": causal, "window_size": window_size}, {"batch": 2, "num_heads": 4, "num_kv_heads": 2}
    case = attention_case(seqlen=200, head_dim=head_dim, dtype="bfloat16", **sizes, **mask)
    implementation = registry.get(name)
    if reason := implementation.reason_against(case, registry.describe_device("cuda")):
        pytest.skip(reason)
    problem((2, 4, 2, 200, 200, head_dim), torch.bfloat16, **mask).check(implementation.attention)
