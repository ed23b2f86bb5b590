"""Certificates find what leaks, and pass what does not."""

import json

import pytest
import torch

from kernels import registry
from results.render.certificates import COMMAND, FAILS, cells, table
from runner.validate import certificates
from runner.validate.certificates import certificate, main

INPUTS = tuple(torch.randn((2, 2, 32, 16), generator=torch.Generator().manual_seed(at)) for at in range(4))


@pytest.mark.parametrize("name", ["torch_naive", "torch_sdpa_math"])
def test_a_plain_implementation_has_a_certificate(name: str) -> None:
    found = certificate(registry.get(name).attention, INPUTS, backward=True)
    assert max(found["out"].values()) < 1e-5 and max(found["gradients"].values()) < 1e-5
    assert FAILS not in table({name: found})


def test_a_later_token_that_is_seen_and_a_nan_that_spreads_are_found() -> None:
    naive = registry.get("torch_naive").attention

    def leaking(q, k, v, *, causal):
        return naive(q, k, v, causal=causal) + 1e-6 * v.mean()  # of later tokens, and of the other sequence

    found = certificate(leaking, INPUTS, backward=True)
    assert found["out"]["alone"] > 0 and found["out"]["repeat"] == 0
    ((_, words),) = cells({"leaking": found})
    assert [question for question in words if f"{FAILS} {COMMAND} --implementations leaking" in words[question]] == [
        "no leak",
        "NaN",
    ]


def test_the_command_prints_a_table_and_the_reason_where_there_is_none(capsys, tmp_path) -> None:
    path = tmp_path / "certificates.json"
    chosen = ["--implementations", "torch_naive,batch_invariant,gluon_hopper", "--seqlen", "32", "--record", str(path)]
    assert main(["--device", "cpu", *chosen]) == 0
    (entry,) = json.loads(path.read_text()).values()
    assert entry["implementations"]["torch_naive"]["out"]["repeat"] == 0 and entry["environment"]["seqlen"] == 32
    printed, refused, reason = capsys.readouterr().out.strip().rsplit("\n", 2)
    assert "| `torch_naive` | 0 · 0 |" in printed and reason.startswith("- `gluon_hopper`: ")
    assert "price" not in entry and refused.startswith("- `batch_invariant`: UnsupportedCase: ")
    assert "out" in certificates.certificates("cpu", ["torch_naive"], 32, 16)["torch_naive"]
