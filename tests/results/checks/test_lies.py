"""How many planted lies are caught is what results/README.md says."""

from results.checks import check
from tests.results.checks import lies
from tests.test_readme import ROOT


def test_the_readme_says_what_the_command_prints() -> None:
    *_, total = lies.table()
    assert total in " ".join((ROOT / "results" / "README.md").read_text().split())


def test_a_run_without_a_lie_has_no_finding() -> None:
    assert check([(lies.RUN, lies.sound())]) == []


def test_every_lie_is_caught_or_says_why_no_rule_can() -> None:
    planted = lies.lies()
    assert len({lie.name for lie in planted}) == len(planted) >= 116
    missed = [lie.name for lie in planted if not lies.caught(lie)]
    assert missed == [lie.name for lie in planted if lie.unseen != lies.Lie.unseen]
