"""Rules: obeyed by the front door in both directions, from the right file, and never able to break a program."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import kernels
from kernels import choice, dispatch, feature_calls, forms, problem, registry, routes
from kernels.attention import torch_sdpa
from kernels.decode.triton_decode import calls
from kernels.problem import Chip, Problem
from tests.cases import cases

CPU = torch.device("cpu")
FORM = "triton_fa2[ieee.forward.16 block_m=64 block_n=16 num_warps=4 num_stages=2 programs=0]"
NAIVE, FLASH, MATH = "torch_naive", "torch_sdpa_flash", "torch_sdpa_math"


def point(implementation: str, seqlen: int = 64, **changes: Any) -> dict[str, Any]:
    """Make a point of a rule for float32, causal, one sequence, two heads of 16."""
    own = {name: changes.pop(name) for name in ("beaten", "evidence", "ratios") if name in changes}
    sizes = {"batch": 1, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 16}
    found = {"dtype": "float32", "mask": "causal", "seqlen_q": seqlen, "seqlen_k": seqlen, **sizes, **changes}
    return {"problem": found, "implementation": implementation, **own}


def write(folder: Path, *points: dict[str, Any], gpu: str = "CPU", **changes: Any) -> Path:
    """Write a rule file and make the next call read it."""
    folder.mkdir(exist_ok=True)
    path = folder / choice.file_name(gpu)
    record = {"format": choice.FORMAT, "version": choice.VERSION, "gpu": gpu, "points": list(points), **changes}
    path.write_text(json.dumps(record))
    routes.forget()
    return path


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The user's folder, with an empty folder of shipped rules next to it."""
    monkeypatch.setenv(choice.FOLDER, str(tmp_path / "user"))
    monkeypatch.delenv(choice.IMPLEMENTATION, raising=False)
    monkeypatch.setattr(choice, "SHIPPED", tmp_path / "shipped")
    routes.forget()
    yield tmp_path / "user"
    routes.forget()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the implementations that calls run, in order."""
    names: list[str] = []

    def recorded(implementation):
        def attention(*tensors, **options):
            names.append(implementation.name)
            return implementation.attention(*tensors, **options)

        return replace(implementation, attention=attention)

    found = {name: recorded(each) for name, each in registry.implementations().items()}
    monkeypatch.setattr(registry, "implementations", lambda level="op": found)
    return names


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list:
    """Let a rule name triton_fa2 on a CPU; the tiles of its launches, in order."""
    launches = pytest.importorskip("kernels.attention.triton_fa2.launches")
    ours = replace(registry.get("triton_fa2"), interpreted_on_cpu=False)
    found = registry._Found(registry.implementations() | {"triton_fa2": ours})
    monkeypatch.setattr(registry, "implementations", lambda level="op": found)
    monkeypatch.setattr(forms, "get", forms.get.__wrapped__)
    tiles, run = [], launches.Launches._run
    monkeypatch.setattr(launches.Launches, "_run", lambda self, call: tiles.append(call.tiles[0]) or run(self, call))
    return tiles


def tensors(seqlen: int = 64, heads: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, seqlen, 16, generator=generator).to(dtype) for _ in range(3)]


def trained(*inputs: torch.Tensor) -> list[torch.Tensor]:
    inputs = [x.clone().requires_grad_() for x in inputs]
    return list(torch.autograd.grad(kernels.attention(*inputs, causal=True).square().sum(), inputs))


def test_forward_and_training_calls_obey_their_own_points(user, ran) -> None:
    q, k, v = tensors()
    wanted, gradients = kernels.attention(q, k, v, causal=True), trained(q, k, v)
    write(user, point(NAIVE), point(MATH, direction="training"))
    torch.testing.assert_close(kernels.attention(q, k, v, causal=True), wanted)
    assert ran == [NAIVE]
    for found, right in zip(trained(q, k, v), gradients, strict=True):
        torch.testing.assert_close(found, right)
    assert ran == [NAIVE, MATH]
    with torch.no_grad():
        kernels.attention(*(x.clone().requires_grad_() for x in (q, k, v)), causal=True)
    assert ran == [NAIVE, MATH, NAIVE]


@pytest.mark.parametrize("changes", cases(__file__, "other classes"))
def test_a_point_of_another_class_decides_nothing(user, ran, changes) -> None:
    write(user, point(NAIVE, **changes))
    kernels.attention(*tensors(), causal=True)
    assert ran == []


def test_the_nearest_measured_problem_decides_unless_its_neighbors_outvote_it(user, ran) -> None:
    write(user, point(MATH, 32), point(FLASH, 256), point(NAIVE, 64, num_heads=64, num_kv_heads=64))
    for seqlen in (24, 160, 4096):
        kernels.attention(*tensors(seqlen), causal=True)
    assert ran == [MATH, FLASH, FLASH]
    ran.clear()  # where several are near, a narrow win decides only where it was measured
    narrow, wide = {MATH: 1.0, FLASH: 1.03, "torch_sdpa_auto": 1.2}, {FLASH: 1.0, MATH: 1.4, "torch_sdpa_auto": 1.1}
    write(user, point(MATH, 128, ratios=narrow), point(FLASH, 72, ratios=wide), point(FLASH, 200, ratios=wide))
    for seqlen in (128, 100):
        kernels.attention(*tensors(seqlen), causal=True)
    assert ran == [MATH, FLASH] and "128, head_dim 16 and its neighbors" in kernels.explain(*tensors(100), causal=True)


def test_what_was_wrong_in_a_neighbor_is_not_named_and_a_neighbor_without_it_does_not_count(user, ran) -> None:
    slow = "torch_sdpa_auto"
    ahead, without = {FLASH: 1.0, MATH: 1.1, slow: 1.4}, {MATH: 1.0, slow: 1.5}
    for beaten in ([slow, FLASH], [slow]):
        write(user, point(FLASH, 128, ratios=ahead), point(MATH, 200, ratios=without, beaten=beaten))
        kernels.attention(*tensors(126), causal=True)
    assert ran == [MATH, FLASH]


def test_the_fastest_usable_implementation_decides_where_the_winner_cannot_be_used(user, ran) -> None:
    times = {"flash_attn_9": 1.0, FLASH: 1.3, MATH: 1.2, "torch_sdpa_auto": 1.5}
    near = {"flash_attn_9": 1.0, FLASH: 1.01, MATH: 1.2, "torch_sdpa_auto": 1.5}
    write(user, *(point("flash_attn_9", n, ratios=ratios, beaten=[]) for n, ratios in ((64, times), (80, near))))
    for seqlen in (64, 78):
        kernels.attention(*tensors(seqlen), causal=True)
    assert ran == [MATH, FLASH]
    assert kernels.explain(*tensors(64), causal=True).endswith("; flash_attn_9 was faster and cannot be used here")


def test_an_implementation_with_the_whole_matrix_is_not_used_beyond_what_was_measured(user, ran) -> None:
    write(user, point(NAIVE, 64))
    kernels.attention(*tensors(65), causal=True)
    kernels.attention(*tensors(63), causal=True)
    assert ran == [NAIVE]
    assert "keeps the scores in memory" in kernels.explain(*tensors(65), causal=True)


@pytest.mark.parametrize("beaten, obeyed", [(None, True), (["torch_sdpa_auto"], True), ([], False), ([FLASH], False)])
def test_the_built_in_choice_stays_unless_it_was_measured_and_beaten(user, ran, beaten, obeyed) -> None:
    write(user, point(NAIVE, **({} if beaten is None else {"beaten": beaten})))
    kernels.attention(*tensors(), causal=True)
    assert ran == [NAIVE] * obeyed


def test_the_users_rule_comes_first_and_the_shipped_one_fills_its_gaps(user, ran) -> None:
    write(user, point(NAIVE))
    write(choice.SHIPPED, point(MATH), point(FLASH, 1024))
    for seqlen in (64, 1024, 24):  # the user's is too far from the second, and both from the third
        kernels.attention(*tensors(seqlen), causal=True)
    assert ran == [NAIVE, FLASH]


def test_other_cards_take_the_rule_of_the_nearest_chip(user) -> None:
    def ship(gpu: str, *figures: Any) -> None:
        names = ("compute_capability", "sms", "shared_memory", "l2")
        write(choice.SHIPPED, point(NAIVE), gpu=gpu, chip=dict(zip(names, figures, strict=False)))

    ship("A100", [8, 0], 108, 163 << 10, 40 << 20)
    ship("H200", [9, 0], 132, 227 << 10, 60 << 20)
    ship("H20", [9, 0], 78, 227 << 10, 60 << 20)
    ship("Unknown size", [9, 0])

    def source(*figures: Any) -> str:
        (rule,) = choice._rules_of(Chip("Another", *figures), "none", choice.SHIPPED)
        return rule.source

    assert "A100 (compute capability 8.0 for 8.6, 108 SMs for 82)" in source((8, 6), 82, 99 << 10, 6 << 20)
    assert "H200 (" in source((9, 0), 114, 227 << 10, 50 << 20)
    assert "H20 (" in source((9, 0), 60, 227 << 10, 50 << 20)
    assert "H20" in source((10, 0), 100, 227 << 10, 126 << 20)
    (rule,) = choice._rules_of(Chip("H200", (9, 0), 132), "none", choice.SHIPPED)
    assert rule.source == "the shipped rule"
    assert choice._rules_of(Chip("CPU"), "none", choice.SHIPPED) == ()


@pytest.mark.parametrize(("text", "said"), cases(__file__, "broken rules"))
def test_a_broken_rule_warns_once_and_changes_nothing(user, ran, text: Any, said: str) -> None:
    user.mkdir()
    (user / "cpu.json").write_text(text if isinstance(text, str) else json.dumps(text))
    routes.forget()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for seqlen in (64, 64, 65):
            inputs = tensors(seqlen)
            out = kernels.attention(*inputs, causal=True)
            torch.testing.assert_close(out, scaled_dot_product_attention(*inputs, is_causal=True))
    assert ran == []
    assert len(seen) == 1 and said in str(seen[0].message), [str(each.message) for each in seen]


def test_a_warning_that_is_an_error_does_not_break_a_program(user, capsys) -> None:
    write(user, point("gone_attention"))
    kernels.attention(*tensors(), causal=True)  # in this test suite every warning is an error
    assert "gone_attention" in capsys.readouterr().err


def test_an_implementation_that_refuses_a_call_is_replaced_for_good(user, monkeypatch, capsys) -> None:
    calls = []

    def refusing(*tensors, **options):
        calls.append(1)
        raise registry.UnsupportedCase("no kernel for these strides")

    found = {NAIVE: replace(registry.get(NAIVE), attention=refusing)}
    monkeypatch.setattr(registry, "implementations", lambda level="op": found)
    write(user, point(NAIVE), point(NAIVE, direction="training"))
    for _ in range(2):
        kernels.attention(*tensors(), causal=True)
    assert len(calls) == 1
    assert all(x.isfinite().all() for x in trained(*tensors()))
    assert capsys.readouterr().err.count("no kernel for these strides") == 1


def test_what_the_program_says_outranks_a_rule(user, ran, monkeypatch) -> None:
    write(user, point(NAIVE))
    with sdpa_kernel(SDPBackend.MATH):
        kernels.attention(*tensors(), causal=True)
        assert "no rule applies" in kernels.explain(*tensors(), causal=True)
    every = {getattr(SDPBackend, f"{name}_ATTENTION") for name in ("FLASH", "EFFICIENT", "CUDNN")} | {SDPBackend.MATH}
    for one in every:
        with sdpa_kernel([*(every - {one})]):
            assert choice.overridden(), one
    with kernels.sdpa_replacement(MATH):
        torch.nn.functional.scaled_dot_product_attention(*tensors(), is_causal=True)
    monkeypatch.setenv(choice.IMPLEMENTATION, FLASH)
    routes.forget()
    kernels.attention(*tensors(), causal=True)
    monkeypatch.setenv(choice.IMPLEMENTATION, choice.DEFAULT)
    routes.forget()
    kernels.attention(*tensors(), causal=True)
    assert ran == [MATH, FLASH]


def test_the_replacement_of_sdpa_obeys_rules(user, ran) -> None:
    write(user, point(NAIVE), point(FLASH, direction="training"))
    q, k, v = tensors()
    with kernels.sdpa_replacement() as calls:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(q.clone().requires_grad_(), k, v, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert ran == [NAIVE, FLASH]
    assert (calls.served, calls.passed_on.total()) == (2, 1)
    write(user, point("torch_sdpa_auto", layout="contiguous"), point(NAIVE, layout="other"))
    with kernels.sdpa_replacement() as calls:
        for query in (q, q, q.mT.contiguous().mT):  # what a rule says of one layout holds for no other one
            torch.nn.functional.scaled_dot_product_attention(query, k, v, is_causal=True)
    assert (calls.served, ran) == (1, [NAIVE, FLASH, NAIVE])


def test_transformers_obeys_rules(user, ran) -> None:
    ours = pytest.importorskip("kernels.transformers", exc_type=ImportError)
    write(user, point(NAIVE))
    ours.attend(dispatch.attention, torch.nn.Module(), *tensors(), None, is_causal=True)
    assert ran == [NAIVE]


def test_explain_names_the_file_the_problem_and_the_evidence(user) -> None:
    q, k, v = tensors(48)
    built_in = "torch_sdpa_auto for forward: built-in table, as there is no rule for such tensors"
    assert kernels.explain(q, k, v, causal=True) == built_in
    evidence = {"run": "my-run", "runner_up": "torch_sdpa_auto"}
    path = write(user, point(NAIVE, 64, evidence=evidence), point(MATH, mask="full", beaten=[]))
    assert kernels.explain(q, k, v, causal=True) == (
        f"torch_naive for forward: your rule {path}, measured at float32 causal, batch 1, heads 2, seqlen 64, "
        "head_dim 16 (distance 1.2); run my-run; next torch_sdpa_auto"
    )
    assert "no rule has a problem of this class" in kernels.explain(q.requires_grad_(), k, v, causal=True)
    assert "built-in choice, which is not beaten" in kernels.explain(q.detach(), k, v)
    assert "do not decide calls with features (softcap)" in kernels.explain(q, k, v, softcap=3.0)
    assert "k and v must have the same shape" in kernels.explain(q, k, v[:, :, :9])
    with pytest.raises(TypeError, match="attention has no argument scale; it takes causal"):
        kernels.explain(q, k, v, scale=1.0)


def test_explain_says_what_computes_packed_sequences_and_what_happens_to_pages(monkeypatch) -> None:
    rows, pages, table = torch.ones(32, 2, 16), torch.ones(3, 4, 2, 16), torch.zeros(1, 2, dtype=torch.int32)
    packed = {"cu_seqlens_q": torch.tensor([0, 32], dtype=torch.int32), "causal": True, "return_lse": True}
    assert kernels.explain(rows, rows, rows, **packed).startswith("the definition in PyTorch, sequence by sequence")
    monkeypatch.setattr(feature_calls, "takes", lambda *given: True)
    monkeypatch.setattr(routes, "packed_names", lambda *given: dict.fromkeys(("forward", "backward"), "triton_fa2"))
    assert kernels.explain(rows, rows, rows, **packed).startswith("triton_fa2: rules do not decide packed sequences")
    copied = kernels.explain(rows, pages, pages, block_table=table, softcap=2.0, **packed)
    assert copied.startswith("a copy of the pages, then triton_fa2: rules do not decide packed sequences with features")
    in_place = kernels.explain(rows, pages, pages, block_table=table, copy_pages=False, **packed)
    assert "reads the pages in place" in in_place
    assert "a copy of the pages" in kernels.explain(rows, pages, pages, block_table=table, **packed)
    monkeypatch.setattr("kernels.paged.ways", lambda *given: (True, True))
    assert "gluon_hopper forward, which loads" in kernels.explain(rows, pages, pages, block_table=table, **packed)


def test_a_rule_decides_the_tile_of_decoding_and_whether_pages_are_copied(user, monkeypatch) -> None:
    pytest.importorskip("triton")
    free = {"interpreted_on_cpu": False, "refuses": None}
    able = registry._Found({x.name: replace(x, **free) for x in registry.implementations("decode").values()})
    monkeypatch.setattr(registry, "implementations", lambda level="op": able)
    monkeypatch.setattr(forms, "get", forms.get.__wrapped__)
    (form, *_) = forms._every("triton_split_kv")
    name, width = f"triton_split_kv[{form.text}]", form.asked[1]
    over_cache = {"operator": "decode", "regime": "captured", "dtype": "bfloat16"}
    over_cache |= dict.fromkeys(("head_dim", "head_dim_v"), width)
    one_token, long = point(name, mask="full", **over_cache), point("triton_paged", features=["paged"], **over_cache)
    one_token["problem"]["seqlen_q"], long["problem"]["seqlen_q"] = 1, 32
    write(user, one_token, long)
    q, cache = torch.ones(1, 2, 1, width).bfloat16(), torch.ones(1, 2, 80, width).bfloat16()
    request = calls.request_of(q, calls.Caches(cache, cache), calls.Options(), check_device=False)
    assert tuple(vars(calls.tile_of(calls.decided(q, cache, request))).values())[:8] == form.result
    rows, pages = torch.ones(64, 2, width).bfloat16(), torch.ones(5, 16, 2, width).bfloat16()
    assert routes.packed_decision(rows, pages, pages, 1, (True, 0, 1.0), True, 80).implementation == routes.IN_PLACE


def test_packed_calls_obey_points_of_packed_sequences_alone(user, ran, monkeypatch, capsys) -> None:
    q, k, v = (x[0].transpose(0, 1) for x in tensors())
    packed = {"cu_seqlens_q": torch.tensor([0, 24, 64]), "cu_seqlens_k": torch.tensor([0, 24, 64]), "causal": True}
    wanted = kernels.attention_varlen(q, k, v, **packed, max_seqlen_q=40, max_seqlen_k=40)
    said = "the definition in PyTorch, sequence by sequence: built-in table, as there is no rule for such tensors"
    assert kernels.explain(q, k, v, **packed) == said

    def compute() -> None:
        found = kernels.attention_varlen(q, k, v, **packed, max_seqlen_q=40, max_seqlen_k=40)
        torch.testing.assert_close(found, wanted)

    write(user, point(NAIVE, 32))
    compute()
    write(user, point(NAIVE, 32, features=["varlen"], batch=2))
    compute()
    assert ran == [NAIVE]
    assert kernels.explain(q, k, v, **packed).startswith(f"torch_naive: your rule {user}")
    kernels.attention(*tensors(), causal=True)
    write(user, point("torch_sdpa_auto", 32, features=["varlen"]))
    compute()
    assert "does not support packed sequences" in kernels.explain(q, k, v, **packed) and ran == [NAIVE]


def test_a_compiled_call_obeys_points_of_captured_calls_alone(user, interpreted, capsys, monkeypatch) -> None:
    q, k, v = tensors()
    wanted = scaled_dot_product_attention(q, k, v, is_causal=True)

    def tiles_of(compute) -> list:
        interpreted.clear()
        torch.testing.assert_close(compute(), wanted)
        return interpreted[-1:]

    def in_program():
        from kernels import torch_ops  # brings torch._dynamo, which other processes need not load

        return torch_ops.forward(q, k, v, True, 0, None)[0]

    usual = tiles_of(in_program)
    write(user, point(FORM))
    assert tiles_of(in_program) == usual != tiles_of(lambda: kernels.attention(q, k, v, causal=True))
    write(user, point(FORM, regime="captured"))
    assert tiles_of(in_program) == [(64, 16, 4, 2, 0, 0, 1)]
    assert tiles_of(lambda: kernels.attention(q, k, v, causal=True)) == []
    assert kernels.explain(q, k, v, causal=True, compiled=True).startswith(FORM)
    write(user, point(NAIVE, regime="captured"))
    assert tiles_of(in_program) == usual
    assert tiles_of(in_program) == []  # as planned before
    assert capsys.readouterr().err.count("torch_naive for compiled programs, which has no operator") == 1
    monkeypatch.setattr(routes, "takes", lambda q, k, v: True)
    for name, bound in ((MATH, torch_sdpa.attention), ("torch_sdpa_auto", scaled_dot_product_attention), (FORM, None)):
        write(user, point(name, regime="captured"))
        assert getattr(routes.pytorch_in_program(q, k, v, True, 0, None), "func", None) is bound
        assert kernels.explain(q, k, v, causal=True, compiled=True).startswith(name)


@pytest.mark.parametrize(("name", "changes", "said"), cases(__file__, "forms"))
def test_a_form_of_a_rule_decides_the_tile_unless_chip_or_shape_refuse_it(
    user, interpreted, monkeypatch, capsys, name, changes, said
) -> None:
    monkeypatch.setattr(problem, "chip_of", lambda device: Chip("CPU", shared_memory=1e6))
    chip = changes.pop("chip", {})
    write(user, point(name, **changes), chip=chip)
    q, k, v = tensors()
    for _ in range(2):
        out = kernels.attention(q, k, v, causal=True)
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v, is_causal=True))
    assert interpreted[-1:] == ([] if said else [(64, 16, 4, 2, 0, 0, 1)])
    assert capsys.readouterr().err.count(said or "The rule") == bool(said)


def test_tensors_of_another_shape_have_no_problem_and_distances_count_doublings() -> None:
    q, k, v = tensors()
    assert problem.of_tensors(q, k[:, :, :0], v[:, :, :0], True, 0) is None
    assert problem.of_tensors(q, k.double(), v.double(), True, 0) is None
    assert problem.of_tensors(q[0], k[0], v[0], True, 0) is None
    found = problem.of_tensors(q, k[:, :1], v[:, :1, :, :8], False, 5, "training")
    assert (found.mask, found.features, found.num_kv_heads, found.chip) == ("window", ("head_dim_v",), 1, "CPU")
    assert problem.of_tensors(*(x.mT.contiguous().mT for x in (q, k, v)), True, 0).layout == "other"
    rows = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert problem.of_tensors(*rows, True, 0).layout == "transposed"
    one = Problem("float16", "full", 2, 8, 8, 1024, 1024, 64, 64)
    assert one.distance(one) == 0
    assert one.distance(replace(one, head_dim=128, head_dim_v=128)) == 1
    eighty = replace(one, head_dim=80, head_dim_v=80)
    assert eighty.distance(replace(one, head_dim=96, head_dim_v=96)) < eighty.distance(one)  # both compiled for 128
    assert one.distance(replace(one, num_kv_heads=2)) == 0.5
    assert one.distance(replace(one, head_dim_v=128, features=("head_dim_v",))) == 0.35  # a size, no class
    assert one.distance(replace(one, batch=None, num_heads=None, num_kv_heads=None)) == 0
    causal = replace(one, mask="causal", seqlen_k=128)
    assert one.distance(causal) == pytest.approx(1 + 1 + 2 * 0.2)  # a doubling counts less from 256 on
    few, windowed = replace(one, seqlen_q=64), replace(one, mask="window", window_size=300)
    assert few.distance(replace(few, seqlen_q=32)) == 2 and few.distance(replace(few, seqlen_k=256)) < 1
    assert windowed.distance(replace(windowed, seqlen_k=512)) == 0 and windowed.distance(one) is None
    assert few.distance(replace(few, seqlen_q=16)) is None is few.distance(one)  # another class; out of reach
