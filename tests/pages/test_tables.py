from pages.ui.draw import html
from pages.ui.draw.html import Column


def test_text_of_a_file_never_becomes_markup(drawn):
    html.show_table([{"name": "<script>"}], {"name": Column("name")}, 'a "table"')
    assert '<th scope="row">&lt;script&gt;</th>' in drawn[0]
    assert 'aria-label="a &quot;table&quot;"' in drawn[0]


def test_a_column_without_any_value_is_left_out_and_a_missing_one_is_empty(drawn):
    table = [{"name": "a", "speed": 2.0, "none": None}, {"name": "b", "speed": float("nan"), "none": None}]
    columns = {"name": Column("name"), "speed": Column("speed", lambda x: f"{x:.1f}"), "none": Column("nothing")}
    html.show_table(table, columns, "speeds")
    assert "nothing" not in drawn[0]
    assert '<tr><th scope="row">a</th><td>2.0</td></tr><tr><th scope="row">b</th><td></td></tr>' in drawn[0]
