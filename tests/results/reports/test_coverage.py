"""How much of the published reports runs fill."""

from results.__main__ import main
from results.render.markdown import tables
from results.reports import headline
from results.reports.coverage import coverage, total
from results.reports.layout import Section, TableRow
from tests.cases import cases

AT_LEAST = cases(__file__, "AT_LEAST")  # rows that the shipped runs filled in November 2026, and cells


def test_the_shipped_runs_fill_no_less_than_they_did() -> None:
    """The document's table is what the code says: tests/test_readme.py compares them."""
    text = headline.blocks(headline.DOCUMENT.read_text(encoding="utf-8"))["reports_filled"]
    rows = {row[0].split(" ")[0]: row for row in tables(text)[0].rows}
    filled = {name: (int(rows[name][2]), int(rows[name][6])) for name in AT_LEAST}
    assert all(filled[name] >= least and filled[name][1] >= least[1] for name, least in AT_LEAST.items()), filled


def _section(title: str, *own: tuple[str, ...] | None, **fields: object) -> Section:
    rows = tuple(TableRow((str(at),), ("1", "2x"), cells, "r" if cells else None) for at, cells in enumerate(own))
    return Section(title, "", ("N",), ("ms", "Speedup"), ("latency_ms", "speedup"), rows, **fields)


def test_a_row_is_filled_by_a_run_or_by_formula_or_open_and_a_ratio_without_numbers_is_no_cell() -> None:
    found = [
        _section("A", ("1", "—"), None, None),
        _section("A: by formula", ("1", "1x"), ("1", "1x"), None, by_formula=True),
        _section("B", ("OOM", "")),
    ]
    first, second = coverage(found)
    assert (first.rows, first.filled, first.by_formula, first.open) == (3, 1, 1, 1)
    assert (first.cells, first.filled_cells, first.runs) == (6, 1, ("r",))
    assert (second.filled, second.filled_cells) == (1, 1), "a status is a result"
    assert (total([first, second]).rows, total([first, second]).filled_cells) == (4, 2)


def test_any_setting_of_a_table_fills_it() -> None:
    (table,) = coverage([_section("A", ("1", "2x"), None), _section("A", None, ("1", "2x"))])
    assert (table.filled, table.filled_cells) == (2, 4)


def test_the_command_prints_each_table_and_of_one_report_what_would_fill_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    assert main(["report", "flashtile_a100", "--coverage", "--run", "h200-torch_vs_triton"]) == 0
    text = capsys.readouterr().out
    (table,) = tables(text)
    assert table.header[:3] == ("table", "rows", "filled")
    assert table.rows[-1][:4] == ("all", "41", "0", "3")
    assert "`python -m runner run flashtile --set subject=mha_fused_bias,gqa_bias --set seqlen=256," in text
    assert main(["report"]) == 1
    assert "--coverage" in capsys.readouterr().err
