"""HTML that the pages draw: every text is escaped."""

import math

from pages.ui.draw import tables
from pages.ui.draw.tables import Bar, Fact, TableColumn


def test_what_a_number_means_is_there_for_the_keyboard_and_no_empty_mark_where_there_is_no_word(drawn):
    tables.show_facts([Fact("Failures", "2", "OOM 2", "Planned cases without a number.")])
    assert '<button type="button" aria-label="Planned cases without a number.">' in drawn[-1]
    assert '<dd>2</dd><dd class="below">OOM 2</dd>' in drawn[-1]
    tables.show_facts([Fact("Best speedup", "none", "", "Highest mean.")])
    assert "<dd>none</dd></div>" in drawn[-1]


def test_neither_a_name_nor_a_text_of_a_file_ever_becomes_markup(drawn):
    tables.show_facts([Fact("a", "1", "b", 'over <b>"mine"</b>')])
    assert "<b>" not in drawn[-1]
    assert 'aria-label="over &lt;b&gt;&quot;mine&quot;&lt;/b&gt;"' in drawn[-1]
    tables.show_table([{"name": "<script>"}], {"name": TableColumn("name")}, 'a "table"')
    assert '<th scope="row">&lt;script&gt;</th>' in drawn[-1]
    assert 'aria-label="a &quot;table&quot;"' in drawn[-1]


def test_a_column_without_any_value_is_left_out_and_a_missing_one_is_a_dash(drawn):
    table = [{"name": "a", "speed": 2.0, "none": None}, {"name": "b", "speed": float("nan"), "none": None}]
    columns = {
        "name": TableColumn("name"),
        "speed": TableColumn("speed", lambda x: f"{x:.1f}"),
        "none": TableColumn("nothing"),
    }
    tables.show_table(table, columns, "speeds")
    assert "nothing" not in drawn[-1]
    assert '<tr><th scope="row">a</th><td>2.0</td></tr><tr><th scope="row">b</th><td>–</td></tr>' in drawn[-1]


def test_a_bar_reaches_as_far_as_its_number_on_the_axis_of_its_column(drawn):
    axis = tables.log_axis([0.1, 10.0])
    assert axis.ticks == (0.05, 0.1, 1.0, 10.0)
    assert [axis.percent(number) for number in (0.05, 10.0)] == [0.0, 100.0]
    rows = [{"name": "a", "ms": Bar(10.0, "10 ms")}, {"name": "b", "ms": "OOM"}]
    tables.show_table(rows, {"name": TableColumn("name"), "ms": TableColumn("latency (ms)", axis=axis)}, "times")
    assert "width:100.0%" in drawn[-1]
    assert '<td class="bar">OOM</td>' in drawn[-1]
    ahead, behind = (tables.BarAxis(0.25, 4.0, line=1.0).draw(Bar(value, "")) for value in (2.0, 0.5))
    assert '<span class="line" style="left:50.0%">' in ahead
    assert "left:50.0%;width:25.0%" in ahead
    assert "left:25.0%;width:25.0%" in behind


def test_labels_of_a_logarithmic_axis_do_not_overlap():
    axis = tables.log_axis([0.61, 0.65, 700.0])
    ends = [math.log(tick / axis.low) / math.log(axis.high / axis.low) for tick in axis.ticks]
    assert all(after - before >= 0.12 for before, after in zip(ends, ends[1:], strict=False))
    assert 1.0 in axis.ticks
