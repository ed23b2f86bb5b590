"""The forms of a call: what decides it, and what could take its place."""

import pytest

pytest.importorskip("triton")

from kernels import tables
from kernels.attention.triton_fa2 import tuning
from kernels.tables import Form


def decided() -> Form:
    with tables.asked() as found:
        tuning.tiles("forward", "sm_86", "half", 64, 100)
    (form,) = found
    return form


def test_a_form_is_the_row_that_decides_and_another_one_can_take_its_place() -> None:
    form = decided()
    assert form.text.startswith("half.forward.64 block_m=64 block_n=64 num_warps=4")
    other = form.others(101376)[0]
    with tables.using(other):
        assert tuning.tiles("forward", "sm_86", "half", 64, 100)[0] == tuning.Tile(*other.result)
    assert tuning.tiles("forward", "sm_86", "half", 64, 100)[0] == tuning.Tile(*form.result)


def test_other_forms_are_of_chips_with_no_more_memory_and_of_the_same_flags() -> None:
    form = decided()
    assert set(form.others(101376)) < set(form.others(232448))
    rows = [[64, True, "..9", 16], [64, False, None, 32], [64, None, "10..", 48]]
    table = tables.Table.of("t", {"when": ["size", "causal", "keys"], "then": ["tile"], "source": "", "rows": rows})
    assert [other.result for other in table.forms((64,), {"causal": True})] == [(16,), (48,)]
