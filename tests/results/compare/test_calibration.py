"""What verdicts promise, held on every simulated machine, and what results/README.md says of it."""

import re

import pytest

from tests.results.compare import calibration
from tests.results.compare.calibration import MACHINES, MOST_WRONG
from tests.test_readme import ROOT

pytestmark = pytest.mark.slow
ROW = re.compile(r"\| (.+?) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|")


@pytest.fixture(scope="module")
def table() -> str:
    return "\n".join(calibration.table(comparisons=1))


def test_at_most_one_in_a_hundred_verdicts_is_wrong_and_the_readme_has_rows_that_are_printed(table: str) -> None:
    rows = ROW.findall(table)
    assert [name for name, *_ in rows] == [machine.name for machine in MACHINES]
    assert [row for row in rows if float(row[1]) > 100 * MOST_WRONG] == []
    assert [row for row in ROW.findall(table) if float(row[3]) > 100 * MOST_WRONG] == []
    said = ROW.findall((ROOT / "results" / "README.md").read_text())
    assert said and set(said) <= set(ROW.findall(table))


@pytest.mark.parametrize(
    ("machine", "least"), [("two quiet processes", 85), ("the second process 2.6 % slower", 85), ("one run", 90)]
)
def test_a_slowdown_of_five_percent_is_found_where_the_machine_lets_it_be_seen(table, machine, least) -> None:
    assert {name: float(found) for name, _, found, _ in ROW.findall(table)}[machine] >= least
