"""Certificates find what leaks, and pass what does not."""

import json
from dataclasses import replace

import pytest
import torch

from kernels import registry
from results.records import decode_case
from results.render.certificates import COMMAND, FAILS, QUESTIONS, cells, table
from runner.levels import make_inputs
from runner.validate.certificates import certificate, main, step_certificate

INPUTS = tuple(torch.randn((2, 2, 32, 16), generator=torch.Generator().manual_seed(at)) for at in range(4))
SMALL = {"batch": 2, "num_heads": 2, "num_kv_heads": 2, "context": 40, "query_tokens": 2, "head_dim": 16}
KINDS = {"rows": {}, "pages": {"page_size": 16}, "ragged pages": {"page_size": 16, "lengths": "ragged"}}
NAIVE = registry.get("torch_naive", "decode").attention


def longer(step) -> dict:
    return {"lengths": tuple(length + 1 for length in step.lengths), "cache_seqlens": step.cache_seqlens + 1}


# Changes of a step that an implementation wrongly computes, and the questions that show each.
WRONG = {
    "a row beyond the length": (longer, {"no leak"}),
    "later tokens": (lambda step: {"causal": False}, {"no leak"}),
    "the other sequence": (lambda step: {"q": step.q + 1e-2 * step.q.mean()}, {"alone", "NaN"}),
}


def deviating(attention, kind: str) -> set[str]:
    found = step_certificate(
        attention, make_inputs(decode_case(**SMALL, **KINDS[kind], dtype="float32"), "cpu", 1).step
    )
    assert found["out"].keys() == set(QUESTIONS) and not found["gradients"]
    return {question for question, apart in found["out"].items() if not apart < 1e-6}


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
    ((_, words),) = cells({"leaking, packed": found})
    assert [question for question in words if f"{FAILS} {COMMAND} --implementations leaking" in words[question]] == [
        "no leak",
        "NaN",
    ]
    unmasked = certificate(naive, INPUTS, causal=False, backward=False)
    assert [*unmasked["out"]] == ["alone", "repeat", "NaN"]
    assert "| `full` | — | 0 | — | 0 | 0 |" in table({"full": unmasked})


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_wrong_step_of_decoding_reads_is_found(kind: str) -> None:
    assert deviating(NAIVE, kind) == set()
    for change, questions in WRONG.values():
        wrong = deviating(lambda step, change=change: NAIVE(replace(step, **change(step))), kind)
        assert questions <= wrong
    if "pages" in kind:
        assert "padding" in deviating(lambda step: NAIVE(replace(step, page_table=step.page_table % 2)), kind)


def test_the_command_prints_a_table_and_the_reason_where_there_is_none(capsys, tmp_path) -> None:
    path = tmp_path / "certificates.json"
    chosen = ["--implementations", "torch_naive,batch_invariant,gluon_hopper", "--seqlen", "32", "--record", str(path)]
    assert main(["--device", "cpu", *chosen]) == 0
    (entry,) = json.loads(path.read_text()).values()
    assert entry["implementations"]["torch_naive, packed"]["gradients"]["NaN"] == 0
    assert entry["implementations"]["torch_naive, decode of latents"]["out"]["alone"] < 1e-6
    assert entry["environment"]["seqlen"] == 32 and "price" not in entry
    printed = capsys.readouterr().out
    assert "| `torch_naive` | 0 · 0 |" in printed and "| `torch_naive, decode over pages` | 0 |" in printed
    assert "\n- `gluon_hopper`: " in printed and "\n- `batch_invariant, decode`: UnsupportedCase: " in printed
    assert "gluon_hopper, packed" not in printed
    with pytest.raises(SystemExit):
        main(["--implementations", "torch_naif"])
