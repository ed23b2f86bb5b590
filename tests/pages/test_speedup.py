"""The page Speedup: cells, failures, ties and filters."""

import json
import shutil

import pytest

from pages.ui.draw import detail, messages
from results.levels.real_shapes import SHAPES
from results.records import case_to_json
from tests.pages.conftest import GPU, opened, run_folder, shown


@pytest.fixture
def page(app):
    return app.switch_page("pages/speedup.py").run()


def _map(page):
    return json.loads(page.get("bidi_component")[0].proto.json)


def _texts(page):
    return [cell["text"] for facet in _map(page)["facets"] for line in facet["cells"] for cell in line]


def test_a_map_has_a_number_or_a_reason_in_every_cell_and_marks_the_chosen_one(page):
    assert "on average over 2 of 3 shapes, range 2.00–8.00×" in shown(page)
    assert _texts(page) == ["2.00×", "8.00×", "baseline OOM"]
    assert (_map(page)["rows"], _map(page)["columns"]) == (["128", "256", "512"], ["64"])
    picture = _map(page)["picture"]
    assert " ".join(picture["lines"][: picture["bold"]]) == (
        "Speedup of triton_fa2 over torch_naive by seqlen and head_dim"
    )
    words = " ".join(picture["lines"])
    assert all(part in words for part in (GPU, "causal mask", "forward", "over torch_naive", "run-a, 2026-01-01"))
    assert picture["file"].startswith(
        "attnbench-speedup-of-triton_fa2-over-torch_naive-by-seqlen-and-head_dim-test-gpu"
    )
    page.session_state["cell"] = "float16, seqlen 256, head_dim 64"
    page.run()
    assert _map(page)["selected"] == "float16, seqlen 256, head_dim 64"
    head = json.loads(page.get("bidi_component")[1].proto.json)
    assert head["title"] == "float16, seqlen 256, head_dim 64"
    assert "triton_fa2 is the fastest: 0.500 ms" in shown(page).replace("*", "")
    page.get_by_key("show").set_value("torch_sdpa_flash").run()
    assert _texts(page) == ["1.99×", "2.00×", "shared memory"]


def test_a_speedup_never_mixes_two_runs(page, home):
    run_folder(home, "run-b", created="2026-02-01T00:00:00", scale=3.0)
    page.run()
    assert "on average over 2 of 3 shapes, range 2.00–8.00×" in shown(page)
    page.session_state["provenance"] = True  # the expander is open
    page.multiselect(key="run").set_value(["run-a"]).run()
    assert "range 2.00–8.00×" in shown(page)
    assert page.code[0].value.startswith(f"python -m results render --gpu '{GPU}' --")


def test_latencies_that_are_downloaded_and_uploaded_elsewhere_show_the_same_numbers(page, home, monkeypatch):
    taken: dict[str, object] = {}
    monkeypatch.setattr(messages, "offer", lambda label, file, made, key, **_: taken.update({key: made}))
    before, latencies = _texts(page.run()), taken["latencies_csv"]()
    shutil.rmtree(home / "runs" / "run-a")
    page.switch_page("pages/upload.py").run()
    page.file_uploader[0].upload("latencies.csv", latencies)
    page.run().button(key="import").click().run()
    assert "latencies.csv: 9 numbers in 1 run" in shown(page)
    assert _texts(page.switch_page("pages/speedup.py").run()) == before
    assert "uploaded" in shown(page)


def test_a_deep_link_opens_the_same_slice_and_unknown_values_are_said_and_the_default_shown(home):
    slice_ = {"gpu": "RTX 4060 Laptop", "mode": "sideways", "dtype": "float32", "seqlen": ["512", "1024"]}
    page = opened("speedup", **slice_)
    assert "names unknown values: Mode sideways." in shown(page)
    heads = "".join(element.proto.body for element in page.get("html")) + shown(page)
    assert "· forward · B1 H? · float32 · seqlen 512, 1k" in heads and "· 8 shapes ·" in heads


def test_a_preset_sets_several_filters_and_the_mask_and_a_reset_takes_them_back(home):
    page = opened("speedup", gpu="NVIDIA H200", head_dim="64")
    page.pills(key="preset").set_value("Window").run()
    assert "causal window 1024 mask · forward" in shown(page)
    assert page.query_params["baseline"] == "torch_flex" and "head_dim" not in page.query_params
    page.pills(key="preset").set_value("Training, long").run()
    assert "causal mask · forward and backward" in shown(page)
    assert page.query_params["baseline"] == "torch_naive"
    page.button(key="reset_filters").click().run()
    assert page.query_params["mode"] == "fwd" and "dtype" not in page.query_params


def test_a_cell_with_the_shape_of_a_model_names_it_and_its_source(monkeypatch):
    said = []
    monkeypatch.setattr(detail.st, "caption", said.append)
    cases = [case_to_json(SHAPES[0].in_dtype(dtype)) for dtype in ("float16", "float32")]
    detail._models_with_shape([*cases, cases[0] | {"batch": 77}])
    assert [line.replace("\\", "") for line in said] == [
        f"Shape of {SHAPES[0].name}. [configuration]({SHAPES[0].source})."
    ]
