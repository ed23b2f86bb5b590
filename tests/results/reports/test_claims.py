"""What reports claim in words, answered by the numbers of an own run."""

import pytest

from results.files import journal, library
from results.records import Measurement, Run
from results.reports import side_by_side
from tests.results.reports.made_up import own_of


def claims_of(name: str, own: list[Measurement]) -> dict[str, tuple[str, str | None]]:
    found = side_by_side.sections(name, side_by_side.published(name), [(Run("own", "local"), own)])
    section = next(each for each in found if each.title == "Claims")
    return {row.labels[0]: (row.printed[0], row.own and row.own[0]) for row in section.rows}


def test_a_summarys_range_is_that_of_the_tables_and_what_a_run_does_not_hold_is_not_answered() -> None:
    printed, own = claims_of("attention_layers_a100", own_of("attention_layers_a100", 1.0))[
        "Summary / Triton Backward Speedup"
    ]
    assert printed == "3.37 to 41.99x"
    assert own == "4.43 to 17.15x"  # what the findings say of the report's own tables
    backward = [m for m in own_of("attention_layers_a100", 1.0) if m.mode == "bwd"]
    assert claims_of("attention_layers_a100", backward)["Summary / Flash Forward Speedup"][1] is None


@pytest.fixture(scope="module")
def one_head() -> list[Measurement]:
    folder = next(f for f in journal.published_folders() if f.run_id == "h200-fa2_speedup")
    return library.read(folder)[1]


def test_a_claim_from_a_length_on_leaves_shorter_sequences_out(one_head) -> None:
    short = [m for m in one_head if m.case.seqlen_q < 4096]
    assert claims_of("fa2_rtx4060", short)["Key Observations / 2"][1] is None
