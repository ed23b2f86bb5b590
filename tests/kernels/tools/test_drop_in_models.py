"""The outcomes for a family with exchanged attention, for one that keeps its own, and for a wrong attention."""

import pytest
import torch

from kernels import transformers as ours
from kernels.tools import drop_in_models as tool

transformers = pytest.importorskip("transformers", reason="the families are those of transformers")

HOUR = 3600  # seconds: how long a family takes depends on what else the machine does


def test_families_are_right_keep_their_own_attention_or_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    ours.register(())
    calls = {name: tool.CALLS[name] for name in ("padding on the left", "packed")}
    monkeypatch.setattr(tool, "CALLS", calls)

    def said(family: str) -> list[str]:
        return [state for state, _ in tool.try_family(getattr(transformers, family), HOUR).values()]

    # masks are read by the second and third, and windows are in the fourth's masks alone
    for family in ("LlamaConfig", "DogeConfig", "DeepseekV32Config", "PhimoeConfig"):
        assert said(family) == [tool.RIGHT] * 2
    assert said("BloomConfig") == [tool.OWN] * 2
    assert said("PreTrainedConfig") == [tool.LEFT_OUT]

    def forgetful(module: torch.nn.Module, q: torch.Tensor, *rest: object, **asked: object) -> tuple:
        return torch.zeros_like(q).transpose(1, 2), None

    transformers.AttentionInterface.register(ours.FRONT_DOOR, forgetful)
    try:
        assert said("LlamaConfig") == [tool.WRONG] * 2
    finally:
        ours.register(())
