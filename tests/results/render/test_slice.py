"""A slice as Markdown and HTML, from the pages' own defaults."""

from itertools import product
from pathlib import Path

import pytest

from results.__main__ import main
from results.files.journal import RunFolder
from results.formats import UploadError, understand
from results.records import Measurement, Run, Status, attention_case
from results.render.html import html_page
from results.render.markdown import tables
from tests.builders import add_run, latency, small_case
from tests.cases import cases


@pytest.fixture
def home(home: Path) -> Path:
    rows = []
    for name, times in {"torch_naive": (4.0, Status.OOM), "mine": (1.0, 3.0)}.items():
        for (seqlen, found), mode in product(zip((128, 2048), times, strict=True), ("fwd", "bwd")):
            more = {"note": "a | in it"} if isinstance(found, Status) else {"statistic": "median", "n": 9}
            rows.append(latency(name, found, small_case(seqlen), mode=mode, **more))
    add_run(home, "a", *rows, command="python -m runner run x", created=None)
    return home


def _table(text: str, first: str) -> list[tuple[str, ...]]:
    return next(list(table.rows) for table in tables(text) if table.header[0] == first)


def test_a_view_says_who_wins_what_failed_where_it_comes_from_and_that_it_is_for_reading(home, capsys):
    assert main(["render"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Attention on A GPU\n\nattention · causal mask · mode fwd · kernel time · B1 H2.")
    assert _table(text, "float16, seqlen")[0] == ("128", "mine 4.00×")
    assert _table(text, "float16, seqlen")[1] == ("2k", "mine 3 ms")
    ranking = {row[0]: row for row in _table(text, "implementation")}
    assert ranking["mine"][1:6] == ("4.00×", "4.00×", "4.00×", "1 of 2", "0")
    assert ("torch_naive", "oom", "1", "a | in it") in [row for table in tables(text) for row in table.rows]
    assert "- **a**, 4 numbers of this slice" in text
    assert "`python -m runner run x`" in text
    assert main(["render"]) == 0
    text = capsys.readouterr().out
    assert "For reading: numbers are rounded" in text
    with pytest.raises(UploadError, match="rendered for reading.*--format csv --run a$"):
        understand("attention.md", text.encode())


def test_a_view_says_where_newer_code_has_nothing_to_compare_with(home, capsys):
    case = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
    alone = Measurement("b", case, "mine", "latency_ms", Status.OK, mode="fwd", timing="kernel", value=0.5)
    RunFolder.create(home, Run("b", "local", created="2026-03-01", gpu_name="A GPU", kernel_hash="changed"), [alone])
    assert main(["render"]) == 0
    text = capsys.readouterr().out
    assert (
        "Newer code was measured in 1 of 2 shapes, but is not shown: no time of torch_naive with that code (b)." in text
    )


def test_a_view_follows_its_filters_and_the_command_advises_from_the_same_home(home, capsys):
    assert main(["render", "--mode", "bwd", "--seqlen", "128", "--baseline", "mine"]) == 0
    text = capsys.readouterr().out
    assert "mode bwd" in text
    assert "seqlen 128" in text
    assert _table(text, "float16, seqlen") == [("128", "mine 1.00×")]
    assert main(["advise"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# What to use when on A GPU")
    short = next(row for row in _table(text, "use case") if row[0] == "Short sequences")
    assert short[2] == "mine"


@pytest.mark.parametrize("words,complaint", cases(__file__, "test_a_view_of_nothing_says_what_is_possible"))
def test_a_view_of_nothing_says_what_is_possible(home, capsys, words, complaint):
    assert main(["render", *words]) == 1
    assert complaint in capsys.readouterr().err


def test_a_view_as_html_is_one_file_with_the_same_cells(home, tmp_path):
    assert main(["render", "--format", "html", "--output", str(tmp_path / "view.html")]) == 0
    page = (tmp_path / "view.html").read_text()
    assert '<th scope="col">float16, seqlen</th><th scope="col">head_dim 64</th>' in page
    assert '<td class="faster" style="--heat: 0.30">mine 4.00×</td>' in page
    assert "src=" not in page
    assert "href=" not in page


def test_figures_go_below_the_title_and_what_a_file_says_is_text():
    page = html_page("# A <b>\n\n| a | b |\n| --- | --- |\n| <script>x</script> | 1.5× |\n\n- **bold** `code` & so on")
    assert "<script>" not in page
    assert "<title>A &lt;b&gt;</title>" in page
    assert '<td class="number">1.5×</td>' in page
    assert "<li><strong>bold</strong> <code>code</code> &amp; so on</li>" in page
    page = html_page("# A\n\ntext", ["<div>drawn</div>"])
    assert page.index("<h1>A</h1>") < page.index("<figure><div>drawn</div></figure>") < page.index("<p>text</p>")
    page = html_page("# A\n\nnot \\*\\*bold\\*\\* nor \\[a\\](b) nor \\<b\\> nor \\`code\\` but **bold \\* star**")
    assert "not **bold** nor [a](b) nor &lt;b&gt; nor `code` but <strong>bold * star</strong>" in page
