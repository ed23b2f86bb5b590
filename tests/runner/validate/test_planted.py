"""The planted bugs: many kinds, each caught in every dtype that it can show in, and the sound version let through."""

import pytest

from kernels import registry
from runner.validate import planted
from runner.validate.planted import DTYPES, PLANTED, SOUND, PlantedBug, caught


def test_there_are_more_kinds_than_asked_for_and_each_has_its_own_name() -> None:
    assert len({bug.name for bug in PLANTED}) == len(PLANTED) >= 32
    assert all(bug.changes or bug.around for bug in PLANTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "device,dtypes", [("cpu", DTYPES), pytest.param("cuda:0", ("bfloat16",), marks=pytest.mark.gpu)]
)
def test_every_planted_bug_is_caught_and_the_sound_version_is_not(device: str, dtypes: tuple[str, ...]) -> None:
    findings = caught(device, dtypes)
    assert {(finding.name, finding.dtype): finding.missed for finding in findings if finding.missed} == {}
    there = {(bug.name, dtype) for bug in PLANTED for dtype in set(bug.dtypes) & set(dtypes)}
    of_process = planted.ON_CPU if device == "cpu" else (*planted.ON_CPU, *planted.ON_GPU)
    there |= {(bug.name, bug.case.dtype) for bug in of_process}
    assert {(found.name, found.dtype) for found in findings if not found.name.startswith(SOUND)} == there
    assert not {SOUND, *(name for name, _ in there)} & set(registry.implementations())


@pytest.mark.slow
def test_a_bug_that_is_none_is_told_as_missed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(planted, "PLANTED", (PlantedBug("nothing at all"), PLANTED[0]))
    monkeypatch.setattr(planted, "DTYPES", ("float32",))
    monkeypatch.setattr(planted, "ON_CPU", ())
    assert planted.main("cpu") is False
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "missed  nothing at all, float32: fwd, bwd, fwd_bwd"
    assert lines[1] == "1 of 2 planted bugs caught: 2 kinds in float32."
