"""Documents on the kernels of packed sequences: where they begin and end, and what is left to triton_fa2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels import feature_calls, features, routes
from kernels.attention.gluon_hopper import documents
from kernels.attention.triton_fa2.features import call as feature_call
from kernels.attention.triton_fa2.tuning import Tile
from kernels.features import Features
from kernels.plans import LOG2_E
from kernels.tools.check_features import FeatureCase, worst_error


def rows_of_ids(seqlen: int) -> torch.Tensor:
    """Ids of a few documents; of ids that fall; of many documents; and of one document and a token."""
    tokens = torch.arange(seqlen)
    return torch.stack([tokens // 31, tokens // 31 % 2, tokens // 5, 9 + tokens // (seqlen - 1)])


class BySequence:
    """Stands in for PackedCall."""

    def __init__(self, bounds: features.SequenceBounds, *masks: Any) -> None:
        self._parts = [
            slice(*ends) for ends in zip(*(x.tolist() for x in bounds[:2]), strict=True) if ends[0] < ends[1]
        ]
        self._causal = masks[0]

    def _of(self, part: slice, *tensors: torch.Tensor) -> tuple[list[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        own = [x[:, :, part].detach().float().requires_grad_() for x in tensors]
        return own, features.attention_and_lse(*own, Features(), causal=self._causal)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        for part in self._parts:
            result = self._of(part, q, k, v)[1]
            out[:, :, part], lse[:, :, part] = result[0].detach(), result[1].detach() * LOG2_E

    @torch.enable_grad()
    def backward(self, *saved: torch.Tensor, room: list[torch.Tensor]) -> None:
        for part in self._parts:
            own, (out, _) = self._of(part, *saved[:3])
            found = torch.autograd.grad(out, own, saved[5][:, :, part].float())
            for x, gradient in zip(room, found, strict=True):
                x[:, :, part] = gradient


@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_few_documents_are_packed_and_the_others_are_left(causal: bool, monkeypatch, device) -> None:
    monkeypatch.setattr(documents, "PackedCall", BySequence)
    table = SimpleNamespace(first=lambda **asked: (17,))  # up to 4 documents in 70 tokens
    monkeypatch.setattr(documents, "family", lambda name: {"gluon_hopper documents": table})
    monkeypatch.setattr(documents, "_AT_ONCE", 32)
    monkeypatch.setattr(feature_call, "tiles", lambda *asked: (Tile(16, 16, 4, 1),))
    made = []

    def attend(*tensors: torch.Tensor, features: Features, causal: bool, window_size: int) -> torch.Tensor:
        made.append(documents.WithDocuments(features, tensors[0], (causal, window_size, 0.25)))
        return feature_call.attend(made[-1], *tensors)

    case = FeatureCase("document_ids", (4, 4, 2, 70, 70, 16, 16), causal, asked={"document_ids": rows_of_ids(70)})
    worst, of = worst_error(case, attend, torch.float16, device)
    assert worst <= 1, of
    assert made[0]._calls[1].bounds.ends_q.tolist() == [0, 70, 70, 0]


def test_the_front_door_has_large_rows_of_documents_packed(monkeypatch) -> None:
    q = torch.zeros(2, 4, 8, 64, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(routes, "takes", lambda *tensors: True)
    packed = dict.fromkeys(("documents", "forward", "backward"), "gluon_hopper")
    for names, tensor, window, expected in (
        (packed, q, 0, documents.WithDocuments),
        (packed | {"documents": "triton_fa2"}, q, 0, type(None)),
        (packed | {"backward": "triton_fa2"}, q, 0, type(None)),
        (packed, q, 3, type(None)),
        (packed, q.half(), 0, type(None)),
    ):
        monkeypatch.setattr(routes, "name", lambda way, *asked, names=names: names[way])
        call = feature_call.FeatureCall(Features(document_ids=tensor[:, 0, :, 0]), True, window, 0.25, "ieee")
        assert type(feature_calls.faster(call, tensor, tensor, tensor)) is expected
