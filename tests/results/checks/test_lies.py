"""Each planted lie is caught by the rules that lies.json names, or says why none can."""

import pytest

from results.checks import check
from tests.results.checks import lies
from tests.test_readme import ROOT


def test_a_run_without_a_lie_has_no_finding() -> None:
    assert check([(lies.RUN, lies.made(lies.DECLARED["sound"]))]) == []


_SLOW = {"audit": 53, "own": 15}  # they change runs that ship


@pytest.mark.parametrize(
    "group,least", [("made", 109), *(pytest.param(*each, marks=pytest.mark.slow) for each in _SLOW.items())]
)
def test_every_lie_is_caught_or_says_why_no_rule_can(group: str, least: int) -> None:
    """The audit's, of which 58 more were caught and one read right: at least 105 of 116."""
    planted = {lie.name: lie for lie in lies.planted(group)}
    found = {name: lies.fate(lie) for name, lie in planted.items()}
    assert {name for name, lie in planted.items() if not set(lie.by) <= set(found[name])} == set()
    assert [name for name, rules in found.items() if not rules] == [n for n, lie in planted.items() if lie.unseen]
    caught = sum(map(bool, found.values()))
    assert caught >= least and len(planted) == len(lies.DECLARED[group])
    assert f"{caught} of {len(planted)} planted lies ({group})" in " ".join(
        (ROOT / "results/README.md").read_text().split()
    )


@pytest.mark.slow  # reads every number that ships
def test_the_shipped_runs_cannot_be_relabeled() -> None:
    relabeled = [lies.fate(lie) for lie in lies.relabeled(("h200-window_gqa", "h200-energy", "h200-prefill-1k"))]
    alone = [["off_ticks"], ["off_ticks", "unlike_its_chip"], []]
    copied = [["off_ticks", "same_as_run", "unlike_its_chip"]] * 2 + [["same_as_run"]]  # by its times of compiling
    assert relabeled == [rules for pair in zip(copied, alone, strict=True) for rules in pair]
