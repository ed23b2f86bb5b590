"""The cases for NVIDIA's checker: that none of our kernels is left out, and that their answers are checked."""

import pytest
import torch

from kernels import registry, sanitize
from kernels.attention import torch_naive


def test_every_implementation_of_ours_and_every_mask_it_takes_has_a_case():
    ours = [name for name in registry.implementations() if name.startswith(("triton_", "gluon_"))]
    for name in ours:
        masks = {case.mask for case in sanitize.cases() if case.implementation == name}
        assert masks == {mask for mask in sanitize.MASKS if mask != "window" or registry.get(name).window}


def test_names_are_all_different_and_choose_their_case(capsys):
    names = [case.name for case in sanitize.cases()]
    assert len(set(names)) == len(names)
    assert sanitize.main(["--list", "gluon_hopper", "256", "causal", "deterministic"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == ["gluon_hopper bfloat16 256 causal deterministic"]
    assert sanitize.main(["no_such_word"]) == 1


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
    case = sanitize.Case("stand_in", "float32", 16, "window")
    errors = sanitize.run(case)
    assert list(errors) == ["out", "dq", "dk", "dv"]
    assert (max(errors.values()) > case.largest_error) == (scale != 1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_results_are_right_without_the_checker(capsys):
    assert sanitize.main(["triton_fa2", "float32", "causal"]) == 0
    assert capsys.readouterr().out.count("right") == 3
