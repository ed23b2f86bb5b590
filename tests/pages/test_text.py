"""Words, axes and choices of the pages as plain functions over plain values; HTML in which every text is escaped."""

import math

import pandas as pd
import pytest

from pages.ui.draw import cells, charts, maps, messages, tables, text
from pages.ui.draw.charts import ReferenceLine, Series
from pages.ui.draw.tables import Bar, Fact, TableColumn
from pages.ui.filters import words
from pages.ui.overview import ranking, views
from results.levels import level_of
from results.records import Status
from results.slice import Filters

OP = level_of("op")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([text.ratio(n) for n in (None, 9.994, 9.996, 35.94, 99.96)], ["–", "9.99×", "10.0×", "35.9×", "100×"]),
        ([text.ms(n) for n in (None, 0.0123, 9999, 10_000)], ["–", "0.0123 ms", "9999 ms", "10.0 s"]),
        ([text.mib(n) for n in (None, 1.5, 1023, 1024, 2560)], ["–", "1.50 MiB", "1023 MiB", "1.00 GiB", "2.50 GiB"]),
        ([text.significant(n) for n in (0, 0.00123, 1.234, 123.4)], ["0", "0.00123", "1.23", "123"]),
        ([text.about_tokens(n) for n in (None, 0.5, 1, 68_171)], ["–", "–", "1", "≈ 68,100"]),
        ([text.status(n) for n in (None, "oom", "odd")], ["not measured", "OOM", "odd"]),
        ([text.short(n) for n in ("flash_attn_4", "torch_sdpa_flash", "torch_")], ["FA4", "sdpa_flash", "torch_"]),
        ([text.mask(*m) for m in ((None, 0), (True, 0), (False, 8))], ["not stated", "causal", "full window 8"]),
        ([text.statistic(["mean"], n)[8:] for n in ((), (5, 5), (3, 9))], ["n samples", "5 samples", "3–9 samples"]),
        ([messages.counted(n, "run") for n in (0, 1, 1234)], ["0 runs", "1 run", "1,234 runs"]),
        ([views._lost_words(n) for n in (None, 1.004, 1.25)], ["none", "none", "+25 %"]),
        ([views._share_words(n) for n in (4, 50, 80)], ["1/25", "50 %", "80 %"]),
        ([words.chip("shape", "16384 tokens", OP), words.chip("mask", "full", OP)], ["16k tokens", "full mask"]),
        ([words.chip("mode", "all", OP), words.chip("timing", "kernel", OP)], ["all modes", "device time"]),
        ([words.several("dtype", "", n) for n in ([], ["float16"], ["a"] * 3)], ["all dtypes", "fp16", "3 dtypes"]),
        ([words.several("run", "Runs", ["a"] * n) for n in (1, 2)], ["1 run", "2 runs"]),
        ([words.several("seqlen", "seqlen", ["1024"] * n) for n in (3, 4)], ["seqlen 1k, 1k, 1k", "4 of seqlen"]),
        ([maps.failure(r) for r in (None, {"failure": "x"}, {"status": "oom"})], ["not measured", "x", "OOM"]),
    ]
)  # fmt: skip
def test_values_in_words(written, expected):
    assert written == expected


def test_names_of_gpus_lose_their_maker_unless_two_would_be_equal():
    assert text.without_maker(["NVIDIA H200", "RTX 4060"]) == {"NVIDIA H200": "H200", "RTX 4060": "RTX 4060"}
    assert text.without_maker(["NVIDIA H200", "H200"]) == {"NVIDIA H200": "NVIDIA H200", "H200": "H200"}


def test_text_of_a_file_cannot_be_markdown_or_a_formula():
    assert text.plain("*a* [b](c) $d$") == "\\*a\\* \\[b\\](c) \\$d\\$"
    assert text.with_code("*a* `run --on b_c` ends.") == "\\*a\\* `run --on b_c` ends."
    for name in ("a```x`![y](z)", "a\n\n![y](z)", "`![y](z)"):
        found = text.with_code(f"see `run {name}` ends")
        assert (found[:5], found[-6:], found.count("`")) == ("see `", "` ends", 2)
        assert "\n" not in found
    assert text.with_code("one ` and ![y](z)") == "one  and \\!\\[y\\](z)"
    table = pd.DataFrame({"a": ["=1+1", "b", None], "n": [-1, 2, 3]})
    assert messages.safe_csv(table).decode().splitlines() == ["a,n", "'=1+1,-1", "b,2", ",3"]


def test_a_place_of_a_map_needs_a_length_only():
    assert maps.place("float16", 128.0, 64.0) == ("float16", 128, 64)
    assert maps.place(None, 128, math.nan) == (None, 128, None)
    assert maps.place("float16", None, 64) is None
    assert maps.label(OP, (None, 128, None)) == "dtype not stated, seqlen 128, head_dim not stated"


def test_axes_have_round_ticks_and_a_margin():
    assert charts.log_axis(1.5, 90)["ticktext"] == ["1", "2", "5", "10", "20", "50", "100", "200", "500"]
    assert charts.log_axis(1, 1e6)["tickvals"][:2] == [1, 10], "many decades have no ticks in between"
    assert charts.with_range({}, 10, 1000)["range"] == pytest.approx([0.9, 3.1])
    assert charts.log_axis_at(3, 30, charts.TENS)["tickvals"] == [2, 5, 10, 20, 50]
    assert charts.log_axis_at(3, 4, charts.TENS)["range"] == pytest.approx([math.log10(2), math.log10(5)])
    assert charts.from_zero(100)["range"] == pytest.approx([0, 108])


def test_lines_are_named_at_their_ends_and_lack_missing_values():
    rows = [{"implementation": "a", "seqlen": n, "v": v} for n, v in ((256, 2.0), (128, 1.0), (512, None))]
    (line,) = charts.lines(rows, "v", {"a": "#000000"}, lambda row: "said")
    assert (line.x, line.y, line.hover) == ([128, 256], [1.0, 2.0], ["a: said", "a: said"])
    early = charts.by_size([line], "seqlen", [128, 512], {"range": [0, 4]})
    late = charts.by_size([line], "seqlen", [128, 256], {"range": [0, 4]})
    named = [(s.labels[0].strip(), s.x, s.y, s.label_at, s.group) for s in (early.series[1], late.series[1])]
    assert named == [("a", [256], [2.0], place, "a") for place in ("top center", "middle right")]
    assert (len(charts.by_size([line], "seqlen", [128], {}).series), late.series[0].group) == (1, "a")


def test_a_figure_has_what_its_chart_declares():
    marks = Series("<a>", [1], [2], "#111111", ["x\n<y>"], symbol="star", errors=([1], [0]), panel=1)
    bars = Series("b", ["k"], [3], "#222222", bars="v", labels=["3"], pattern="/")
    chart = charts.Chart([marks, bars], {}, {}, rows=[{}, {}], rules=[ReferenceLine(7.0, panel=1)], band=(0.9, 1.1))
    figure = charts.figure(chart)
    assert [(trace.type, trace.yaxis) for trace in figure.data] == [("scatter", "y2"), ("bar", None)]
    assert (figure.data[0].name, figure.data[0].customdata[0]) == ("&lt;a&gt;", "x<br>&lt;y&gt;")
    assert (figure.data[0].mode, figure.data[0].error_y.array[0], figure.data[1].hoverinfo) == ("markers", 1, "skip")
    assert (figure.data[1].marker.pattern.shape, figure.data[1].text[0], figure.layout.barmode) == ("/", "3", "group")
    assert [(shape.type, shape.yref, shape.y0) for shape in figure.layout.shapes] == [
        ("line", "y2", 7),
        ("rect", "y", 0.9),
    ]


def _ranked(name, speedup, compared, precision=None):
    return {"implementation": name, "speedup": speedup, "compared": compared, "precision": precision}


def test_the_best_covers_nearly_all_shapes_in_the_precision_of_its_inputs():
    rows = [_ranked("few", 9.0, 8), _ranked("fp8", 8.0, 10, "fp8"), _ranked("good", 2.0, 9), _ranked("all", 1.5, 10)]
    assert [row["implementation"] for row in ranking.comparable(rows)] == ["good", "all"]
    assert ranking.best_of(rows)["implementation"] == "good"
    assert ranking.best_of([_ranked("none", None, 0)]) is None
    assert [r["implementation"] for r in ranking.rivals_of(rows, Filters(baseline="all"))] == ["few", "fp8", "good"]
    assert ranking.failure_words({"oom": 3, "unsupported": 0, "error": 1}) == "OOM 3, error 1"


def _winner(gpu, head_dim, name="a", **changes):
    row = {"gpu": gpu, "dtype": "float16", "seqlen": 128, "head_dim": head_dim, "winner": name, "latency_ms": 1.0}
    row |= {"speedup": 2.0, "next": "b", "margin": 1.5, "cases": 1, "status": "ok", "standing": None, "void": None}
    return row | {"tied": [name], "failed": []} | changes


def test_the_map_of_gpus_names_each_gpu():
    found = views.gpu_cells(OP, pd.DataFrame([_winner("A", 64), _winner("B", 64)]))
    assert found["gpu"].tolist() == ["A", "B"]
    assert set(found["winner"]) == {"a"}
    assert found["hover"][1].startswith("B<br>seqlen 128, head_dim 64<br>a: 1.00 ms")


def test_a_cell_names_its_winner_lead_ties_and_failures():
    rows = [
        _winner("A", 64, tied=["a", "b"], standing=cells.Standing.TIE),
        _winner("A", 64, void="too fast", next=None),
        _winner("A", 64, None, status=Status.OOM, failed=["x oom", "y unsupported"], cases=2),
    ]
    found = cells.winner_cells(OP, pd.DataFrame(rows)).to_dict("records")
    assert [row["label"] for row in found] == ["≈ a", "? a", ""]
    assert [row["below"] for row in found][:2] == ["1.50× b", ""]
    assert "geometric mean" not in found[0]["hover"], "of one shape"
    assert (found[0]["ties"], found[2]["failure"]) == ("b", "OOM")
    assert "cannot be right: too fast" in found[1]["hover"]
    assert found[2]["hover"].endswith("x: OOM<br>geometric mean of 2 shapes")


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
