"""The forms of a call: what decides it, what could stand in its place, and when another one is better."""

from dataclasses import replace

import pytest

pytest.importorskip("triton")

from kernels import tables
from kernels.attention.triton_fa2 import tuning
from kernels.problem import Problem
from kernels.tables import Form
from kernels.tools.forms import better, times_ms

PROBLEM = Problem("float32", "causal", 1, 2, 2, 8, 8, 4, 4)


def decided() -> Form:
    with tables.asked() as found:
        tuning.tiles("forward", "sm_86", "half", 64, 100)
    (form,) = found
    return form


def test_a_form_is_the_row_that_decides_and_another_one_can_take_its_place() -> None:
    form = decided()
    assert form.words.startswith("triton_fa2 half (forward, 64): block_m 64, block_n 64, num_warps 4")
    other = form.others(101376)[0]
    with tables.using(other):
        assert tuning.tiles("forward", "sm_86", "half", 64, 100)[0] == other.result
    assert tuning.tiles("forward", "sm_86", "half", 64, 100)[0] == form.result


def test_other_forms_are_of_chips_with_no_more_memory_and_of_the_same_flags() -> None:
    form = decided()
    assert set(form.others(101376)) < set(form.others(232448))
    rows = [[64, True, "..9", 16], [64, False, None, 32], [64, None, "10..", 48]]
    table = tables.Table.of("t", {"when": ["size", "causal", "keys"], "then": ["tile"], "source": "", "rows": rows})
    assert [other.result for other in table.forms((64,), {"causal": True})] == [(16,), (48,)]


def test_only_a_form_that_is_faster_in_every_round_by_over_two_percent_is_better(capsys) -> None:
    chosen = decided()
    fast, noisy, broken = (replace(chosen, result=(n,)) for n in range(3))
    rounds = {chosen: 1.0, fast: 0.9, noisy: 0.99}
    current: list[Form] = []

    def bench(call) -> float:
        (form,) = tables.in_use()
        current.append(form)
        if form == broken:
            raise RuntimeError("out of registers")
        return rounds[form]

    times = times_ms(PROBLEM, [chosen, fast, noisy, broken], bench, "cpu")
    assert current[:4] == [chosen, fast, noisy, broken]
    assert set(times) == {chosen, fast, noisy}
    assert better(times, chosen) == [fast]
    times[fast][3] = 1.1
    assert better(times, chosen) == []
    assert "out of registers" in capsys.readouterr().out
