"""The page of models' shapes over a home with a small run of known numbers."""

from pathlib import Path

import pytest

from pages.ui.filters import offers
from pages.ui.shell.data import store
from results.levels.real_shapes import SHAPES
from tests.builders import add_run, latency
from tests.pages.conftest import GPU, shown

LLAMA, LAST = SHOWN = SHAPES[0], SHAPES[-1]
TIMES = {"triton_fa2": (2.0, 4.0), "torch_sdpa_flash": (3.0, 2.0)}


@pytest.fixture
def page(home: Path, app, drawn):
    rows = [latency(name, ms, shape.case) for name in TIMES for ms, shape in zip(TIMES[name], SHOWN, strict=True)]
    add_run(home, "shapes-a", *rows, created="2026-03-01T00:00:00", gpu_name=GPU)
    return app.switch_page("pages/shapes.py").run()


def test_the_answer_counts_shapes_of_the_chosen_gpu_and_domain_and_names_where_ours_is_behind(page, drawn) -> None:
    assert page.selectbox(key="shapes_gpu").value == offers.first_gpu(store(), "op") != GPU
    page.selectbox(key="shapes_gpu").set_value(GPU).run()
    assert "ahead of the fastest other in 1 of 2 shapes: 0.87× on average" in shown(page)
    tables = "".join(drawn)
    assert LLAMA.name in tables and LAST.name in tables
    assert "1.50×" in tables and "0.50×" in tables
    drawn.clear()
    page.selectbox(key="shapes_domain").set_value(LLAMA.domain).run()
    assert "in 1 of 1 shapes" in shown(page)
    assert LAST.name not in "".join(drawn)
    assert drawn[-1].count('<th scope="row">') == len(TIMES), "the shape in detail"
    assert LLAMA.source in shown(page)
