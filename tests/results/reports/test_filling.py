"""Which of several runs a row of a report is taken from."""

from results.reports.layout import Section, TableRow
from results.reports.side_by_side import merged


def words(own: str, *cases: int) -> list[Section]:
    """Return the sections of a run that has one sentence."""
    return [
        Section("Claims", "", ("Where",), ("Figure",), (None,), (TableRow(("here",), ("2x",), (own,), cases=cases),))
    ]


def test_a_sentence_is_of_the_run_whose_words_have_most_spans_then_most_cases() -> None:
    runs = {"one": words("1.5x (1 case)", 1), "many": words("1.4 to 2x (4 cases)", 4), "few": words("3x (2 cases)", 2)}
    gpus = dict.fromkeys([*runs, "both"], "GPU")
    assert merged(runs, gpus, {})["Claims"][0].rows[0].run == "many"
    runs["both"] = words("1.1x (1 step), 2x (1 prompt)", 1, 1)
    assert merged(runs, gpus, {})["Claims"][0].rows[0].run == "both"
