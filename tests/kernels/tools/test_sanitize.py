"""The cases of the checks: none of our kernels is left out, and their results are compared."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernels import registry
from kernels.attention import torch_naive
from kernels.attention.gluon_hopper import tuning
from kernels.tools import cases, check, sanitize
from kernels.tools.cases import DecodeCase, FeatureRun, OpCase, small_cases

SMALL = list(small_cases())


def test_every_implementation_mask_and_feature_of_ours_has_a_case():
    ours = [name for name in registry.implementations() if name.startswith(("triton_", "gluon_"))]
    for name in ours:
        masks = {case.mask for case in SMALL if isinstance(case, OpCase) and case.implementation == name}
        taken = {"full": True, "causal": registry.get(name).causal, "window": registry.get(name).window}
        assert masks == {mask for mask in cases.MASKS if taken[mask]}
    for name in ("triton_fa2", "gluon_hopper"):
        found = {case.call.feature for case in SMALL if isinstance(case, FeatureRun) and case.implementation == name}
        assert found == set(registry.get(name).features)


def test_names_are_all_different_and_each_chooses_its_case_alone():
    names = [case.name for case in SMALL]
    assert len(set(names)) == len(names)
    assert all([case.name for case in sanitize.chosen_by(name.split())] == [name] for name in names)


def test_words_choose_the_cases_that_hold_them_all(capsys):
    assert check.main(["sanitize", "--list", "gluon_hopper", "128", "causal"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) > 2 and all(line.startswith("gluon_hopper bfloat16 128 causal") for line in listed)
    assert check.main(["sanitize", "no_such_word"]) == 1


@pytest.mark.parametrize(("word", "multiprocessors"), [("busy", 3), ("idle", 1000)])
def test_a_busy_or_idle_gpu_is_the_same_gpu_with_fewer_or_more_multiprocessors(monkeypatch, word, multiprocessors):
    real = SimpleNamespace(multi_processor_count=132, major=9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: real)
    with sanitize.circumstances(OpCase("triton_fa2", "float32", 16, "full", **{word: True})):
        seen = torch.cuda.get_device_properties("cuda")
        assert (seen.multi_processor_count, seen.major) == (multiprocessors, 9)
    assert torch.cuda.get_device_properties("cuda") is real


@pytest.mark.parametrize("length", list(sanitize.LENGTHS))
@pytest.mark.parametrize(("head_dim", "mask"), [(64, "full"), (64, "causal"), (128, "causal")])
def test_a_case_of_longer_sequences_gets_tiles_that_short_sequences_do_not(head_dim, mask, length):
    lengths, masks = (200, sanitize.LENGTHS[length]), (cases.MASKS[mask][0], False)
    short, longer = (tuning.forward_tiles(head_dim, head_dim, seqlen, *masks) for seqlen in lengths)
    case = OpCase("gluon_hopper", "bfloat16", head_dim, mask, tiles_of=length)
    assert case in SMALL or (head_dim, length) == (128, "middle")
    with sanitize.circumstances(case):
        assert tuning.forward_tiles(head_dim, head_dim, case.seqlens[0], *masks) == longer != short


def test_a_case_of_longer_sequences_gets_their_backward():
    case = OpCase("gluon_hopper", "bfloat16", 64, "causal", grouped=False, busy=True, tiles_of="middle")
    assert case in SMALL
    lengths, masks = case.seqlens, (True, False)
    assert not tuning.computes_next_delta(64, *lengths, *masks)
    with sanitize.circumstances(case):
        assert tuning.computes_next_delta(64, *lengths, *masks)


def test_a_deterministic_case_leaves_pytorch_as_it_was(monkeypatch):
    seen = []

    def attention(q, k, v, **keywords):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return torch_naive.attention(q, k, v, **keywords)

    _stand_in(monkeypatch, attention)
    case = OpCase("stand_in", "float32", 16, "full", deterministic=True)
    case.compute(*case.inputs("cpu"))
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()


def test_a_machine_without_a_gpu_is_told_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert check.main(["sanitize"]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


def _stand_in(monkeypatch, attention):
    found = registry.Implementation(name="stand_in", description="", attention=attention)
    monkeypatch.setattr(registry, "get", lambda name: found)


@pytest.mark.parametrize("scale", [1.0, 1.001])
def test_a_case_runs_forward_and_backward_and_says_how_far_it_is_off(monkeypatch, scale):
    def attention(q, k, v, **keywords):
        return torch_naive.attention(q, k, v, **keywords) * scale

    _stand_in(monkeypatch, attention)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda x: x)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    case = OpCase("stand_in", "float32", 16, "window")
    errors = sanitize.run(case)
    assert list(errors) == ["out", "dq", "dk", "dv"]
    assert (max(errors.values()) > case.largest_error) == (scale != 1.0)


@pytest.mark.parametrize(
    "case",
    [
        DecodeCase("float32", 16, context=70, ragged=True),
        DecodeCase("float32", 16, context=70, page=16, ragged=True, seqlen_q=3),
        DecodeCase("float32", 512, context=40),
    ],
    ids=lambda case: case.name,
)
def test_a_decoding_case_is_compared_with_the_oracle(monkeypatch, case):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda x: x)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert 0 < sanitize.run(case)["out"] <= case.largest_error
    table = torch.tensor(case._table)
    assert table.unique().numel() == table.numel() and int(table.max()) < len(case.inputs("meta")[1]) or not case.page


@pytest.mark.gpu
def test_results_are_right_without_the_checker():
    words = ["triton_fa2", "float32", "causal"]
    # In a separate process, because it turns the allocator's cache off.
    command = [sys.executable, "-m", "kernels.tools.check", "sanitize", *words]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("right") == len(sanitize.chosen_by(words))
