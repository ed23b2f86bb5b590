"""The cases for NVIDIA's checker: that none of our kernels is left out, and that their answers are checked."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernels import registry
from kernels.attention import torch_naive
from kernels.attention.gluon_hopper import tuning
from kernels.attention.triton_fa2 import problem
from kernels.tools import sanitize


def test_every_implementation_of_ours_and_every_mask_it_takes_has_a_case():
    ours = [name for name in registry.implementations() if name.startswith(("triton_", "gluon_"))]
    for name in ours:
        masks = {case.mask for case in sanitize.cases() if case.implementation == name}
        assert masks == {mask for mask in sanitize.MASKS if mask != "window" or registry.get(name).window}


def test_names_are_all_different_and_each_chooses_its_case_alone():
    names = [case.name for case in sanitize.cases()]
    assert len(set(names)) == len(names)
    assert all([case.name for case in sanitize.chosen_by(name.split())] == [name] for name in names)


def test_words_choose_the_cases_that_hold_them_all(capsys):
    assert sanitize.main(["--list", "gluon_hopper", "128", "causal"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) > 2 and all(line.startswith("gluon_hopper bfloat16 128 causal") for line in listed)
    assert sanitize.main(["no_such_word"]) == 1


@pytest.mark.parametrize(("word", "multiprocessors"), [("busy", 3), ("idle", 1000)])
def test_a_busy_or_idle_gpu_is_the_same_gpu_with_fewer_or_more_multiprocessors(monkeypatch, word, multiprocessors):
    real = SimpleNamespace(multi_processor_count=132, major=9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: real)
    with sanitize.circumstances(sanitize.SanitizerCase("triton_fa2", "float32", 16, "full", **{word: True})):
        seen = torch.cuda.get_device_properties("cuda")
        assert (seen.multi_processor_count, seen.major) == (multiprocessors, 9)
    assert torch.cuda.get_device_properties("cuda") is real


@pytest.mark.parametrize("length", list(sanitize.LENGTHS))
@pytest.mark.parametrize(("head_dim", "mask"), [(64, "full"), (64, "causal"), (128, "causal")])
def test_a_case_of_longer_sequences_gets_tiles_that_short_sequences_do_not(head_dim, mask, length):
    lengths, masks = (sanitize.SEQLEN_Q, sanitize.LENGTHS[length]), (sanitize.MASKS[mask][0], False)
    short, longer = (tuning.forward_tiles(head_dim, head_dim, seqlen, *masks) for seqlen in lengths)
    case = sanitize.SanitizerCase("gluon_hopper", "bfloat16", head_dim, mask, tiles_of=length)
    assert case in sanitize.cases() or (head_dim, length) == (128, "middle")
    with sanitize.circumstances(case):
        assert tuning.forward_tiles(head_dim, head_dim, case.seqlen_q, *masks) == longer != short


def test_a_case_of_longer_sequences_gets_their_backward():
    case = sanitize.SanitizerCase("gluon_hopper", "bfloat16", 64, "causal", grouped=False, busy=True, tiles_of="middle")
    assert case in sanitize.cases()
    lengths, masks = (case.seqlen_q, case.seqlen_k), (True, False)
    assert not tuning.computes_next_delta(64, *lengths, *masks)
    with sanitize.circumstances(case):
        assert tuning.computes_next_delta(64, *lengths, *masks)


def test_each_forward_of_triton_fa2_has_a_case(monkeypatch):
    def routes():
        for case in sanitize.cases():
            if not case.implementation.startswith("triton_fa2"):
                continue
            of_q, of_k = ((2, heads, seqlen, case.head_dim) for heads, seqlen in _sizes(case))
            q, k = (torch.empty(size, dtype=getattr(torch, case.dtype), device="meta") for size in (of_q, of_k))
            with sanitize.circumstances(case):
                made = problem.Problem.of(q, k, case.causal, case.window_size, None, "ieee")
            yield made.precision, made.forward_table, made.forward_split is not None

    chip = {"major": 9, "minor": 0, "shared_memory_per_block_optin": 232448, "L2_cache_size": 50 << 20}
    hopper = SimpleNamespace(**chip, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: hopper)
    monkeypatch.setattr(problem, "INTERPRETED", False)
    found = set(routes())
    assert ("half", "few_rows", False) in found
    for precision in ("half", "bf16x6", "ieee"):
        assert {(precision, "forward", False), (precision, "forward", True)} <= found


def _sizes(case):
    return (case.num_heads, case.seqlen_q), (case.num_kv_heads, case.seqlen_k)


def test_a_deterministic_case_leaves_pytorch_as_it_was():
    with sanitize.circumstances(sanitize.SanitizerCase("gluon_hopper", "bfloat16", 64, "full", deterministic=True)):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_machine_without_a_gpu_is_told_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert sanitize.main([]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [1.0, 1.001])
def test_a_case_runs_forward_and_backward_and_says_how_far_it_is_off(monkeypatch, scale):
    def attention(q, k, v, **keywords):
        return torch_naive.attention(q, k, v, **keywords) * scale

    found = registry.Implementation(name="stand_in", description="", attention=attention)
    monkeypatch.setattr(registry, "get", lambda name: found)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda x: x)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    case = sanitize.SanitizerCase("stand_in", "float32", 16, "window")
    errors = sanitize.run(case)
    assert list(errors) == ["out", "dq", "dk", "dv"]
    assert (max(errors.values()) > case.largest_error) == (scale != 1.0)


@pytest.mark.parametrize("name", sorted({case.implementation for case in sanitize.cases()}))
def test_implementations_can_ask_a_case_all_they_ask_about(name):
    assert all(hasattr(case, field) for case in sanitize.cases() for field in registry.AttentionCase.__annotations__)
    device = registry.Device("cuda", "a chip", (9, 0), shared_memory_bytes=232448)
    for case in sanitize.chosen_by([name]):
        registry.get(name).reason_against(case, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_results_are_right_without_the_checker():
    words = ["triton_fa2", "float32", "causal"]
    command = [sys.executable, "-m", "kernels.tools.sanitize", *words]  # alone: it turns the allocator's cache off
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("right") == len(sanitize.chosen_by(words))
