"""What is checked of declared features, and how a report tells right from wrong and refused."""

import pytest
import torch

from kernels import registry
from kernels.features import attention as define
from kernels.tools import check_features
from kernels.tools.check_features import cases, check, checks, is_right, report

ON_CPU = [
    name
    for name, each in registry.implementations().items()
    if "cpu" in each.devices and not each.interpreted_on_cpu and not each.unavailable
]
MASKS = ("narrower values", "192 and 128", "prefixes", "documents", "blocks", "blocks, causal", "two widths")


@pytest.mark.parametrize("name", ON_CPU)
def test_values_of_another_width_are_computed_where_declared_and_refused_elsewhere(name: str) -> None:
    implementation, case = registry.get(name), cases()["narrower values"]
    dtype = torch.float32
    if "head_dim_v" in implementation.features:
        assert check(implementation, case, "cpu", dtype) <= 1
    else:
        assert check_features.refuses(implementation, case, "cpu", dtype)


def test_a_report_has_errors_of_what_is_declared_and_reasons_against_the_rest(capsys) -> None:
    asked = checks(["tiled_v1", "gluon_hopper"], "float32", 16, "cpu")
    assert {(each.implementation, each.case) for each in asked} == {
        ("tiled_v1", "narrower values"),
        ("tiled_v1", "192 and 128"),
    }
    found = report(["tiled_v1", "gluon_hopper"], asked)
    tiled = found["tiled_v1"]
    assert 0 < tiled["head_dim_v"]["errors"]["float32"] <= 1
    assert tiled["softcap"] == "tiled_v1 does not support softcaps."
    assert "head_dim_v" not in found["gluon_hopper"], "declared, and not checked on a CPU"
    assert is_right(found)
    assert capsys.readouterr().out.count("tiled_v1") == 2


@pytest.mark.parametrize("case", cases())
@pytest.mark.parametrize("name", ["torch_sdpa_auto", "torch_sdpa_math"])
def test_masks_of_features_reach_pytorch(name: str, case: str) -> None:
    ratio = check(registry.get(name), cases()[case], "cpu", torch.float32)
    assert ratio is None or ratio <= 1
    assert (ratio is None) == ("mask" not in case and "of " not in case and case not in MASKS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_definition_takes_an_additive_mask_of_another_dtype(dtype: str) -> None:
    worst, _ = check_features.worst_error(cases()["additive mask"], define, getattr(torch, dtype), "cpu")
    assert worst <= 0.5, "the definition itself has half of what is allowed, and no more"


def test_tf32_is_held_to_tf32(monkeypatch) -> None:
    case, allowed = cases()["softcap"], []

    def off(*tensors: torch.Tensor, features: object, **masks: object) -> torch.Tensor:
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return define(*tensors, features, **masks) * (1 + 2**-11)

    wrong, _ = check_features.worst_error(case, off, torch.float32, "cpu")
    right, _ = check_features.worst_error(case, off, torch.float32, "cpu", tf32=True)
    assert right < 1 < wrong
    assert not any(allowed), "of PyTorch's products, only the definition's"


def test_a_kernel_that_raises_is_a_finding_and_the_other_checks_go_on(monkeypatch, capsys) -> None:
    def fails(*arguments: object) -> float:
        if arguments[1].shape[5] == 192:
            raise RuntimeError("out of registers")
        return 0.5

    monkeypatch.setattr(check_features, "check", fails)
    found = report(["torch_naive"], checks(["torch_naive"], "float32", 16, "cpu"))
    assert found["torch_naive"]["head_dim_v"] == {"errors": {"float32": None}, "why": "RuntimeError: out of registers"}
    assert not is_right(found)
    assert "WRONG RuntimeError: out of registers" in capsys.readouterr().out
