"""The page Start: the fastest of each shape, ties, failures, the answer for one shape, and how the winner is called."""

import json
import re
import sys

import pandas as pd
import pytest
import torch

import kernels
from pages.ui.draw import cells, titles
from pages.ui.overview import my_shape, ranking, views
from results.query import block_sparse, pages
from results.recommend import usage
from results.records import Status
from results.slice import Filters, best_baseline, in_order, level_in
from results.store.database import open_store
from tests.builders import add_run, latency, small_case
from tests.cases import cases
from tests.pages.conftest import GPU, shown


@pytest.fixture
def app(app):
    return app.run()


def _fact(app, label):
    """The value of a number at the head of the page, and the word on it."""
    heads = "".join(element.proto.body for element in app.get("html"))
    return re.search(rf"<dt>{label} .*?</dt><dd>(.*?)</dd><dd class=\"below\">(.*?)</dd>", heads).groups()


def test_the_answer_its_facts_and_its_map_are_of_the_chosen_gpu_and_baseline(app):
    text = shown(app)
    assert "On Test GPU (float16, causal, forward, B1 H2) triton_fa2 is the fastest: 2.00× torch_sdpa_flash" in text
    assert "torch_sdpa_flash, the next best, and 4.00× torch_naive on average over 2 shapes" in text
    assert _fact(app, "Over sdpa_flash") == ("2.00×", "4.00× torch_naive, range 2.00–8.00×")
    assert _fact(app, "Fastest in") == ("2 of 3 shapes", "1 more close")
    assert _fact(app, "Failed") == ("2", "OOM 1, shared memory 1")
    (facet,) = json.loads(app.get("bidi_component")[0].proto.json)["facets"]
    said = [(cell["text"], cell["below"], cell["hatched"]) for (cell,) in facet["cells"]]
    assert tuple(said) == cases(__file__, "cells of the map")
    app.radio(key="baseline").set_value("triton_fa2").run()
    assert "torch_sdpa_flash comes closest: 0.50× triton_fa2" in shown(app)
    options = app.radio(key="gpu").options
    assert "RTX 4060 Laptop" in options
    app.radio(key="gpu").set_value("RTX 4060 Laptop").run()
    assert "time as published" in shown(app)
    app.radio(key="gpu").set_value("H100 80GB").run()
    drawn = json.loads(app.get("bidi_component")[0].proto.json)
    assert [facet["title"] for facet in drawn["facets"]][-1] == "dtype not stated"
    assert {"bfloat16", "float16"} & {facet["title"] for facet in drawn["facets"]}


def test_a_gpu_without_the_baseline_is_compared_with_another_and_says_so(home, app):
    naive = latency("torch_naive", 2.0, small_case(), mode="bwd")  # has numbers, but not in this slice
    rows = [latency(name, ms, small_case()) for name, ms in (("torch_sdpa_flash", 2.0), ("mine", 1.0))]
    add_run(home, "other", naive, *rows, source="upload", created="2026-01-02", gpu_name="Other GPU")
    app.run()
    app.radio(key="gpu").set_value("Other GPU").run()
    text = shown(app)
    assert "mine is the fastest: 2.00× torch_sdpa_flash, the next best, on average over 1 shape" in text
    assert "Nothing here can be compared with torch_naive. Speedups are over torch_sdpa_flash." in text
    assert app.radio(key="baseline").value == "torch_sdpa_flash"


def test_the_next_best_can_be_the_baseline_and_a_mean_over_few_shapes_is_named():
    def ranked(name, speedup, compared=9):
        return {"implementation": name, "speedup": speedup, "compared": compared, "precision": None}

    chosen = Filters(gpu=GPU, baseline="fa4", mask="causal", mode="fwd", workload="attention")
    best, others = ranked("mine", 1.12), [ranked("fa4", 1.0), ranked("sdpa", 0.91)]
    said = ranking._sentence([best, *others], best, [], chosen)
    assert said.endswith("mine is the fastest: 1.12× fa4, the next best, on average over 9 shapes")
    said = ranking._sentence([ranked("few", 13.1, 2), best, ranked("near", 1.01), *others], best, [], chosen)
    assert "1.11× near, the next best, and 1.12× fa4 on average" in said
    assert "leads those measured in most shapes" in said and said.endswith("(few has 13.1×, but only over 2 shapes)")
    tie = {"winner": "mine", "mark": cells.TIE, "dtype": "float16"}
    said = ranking._sentence([best, *others], best, [tie], chosen)
    assert "mine is ahead, but in no shape with certainty: 1.12×" in said


def test_ones_own_winner_is_not_its_baseline():
    times = {"my_kernel": {"a": 1.0, "b": 1.0}, "torch sdpa": {"a": 2.0}, "other": {"a": 3.0, "b": 3.0}}
    assert best_baseline(times) == in_order("baseline", dict.fromkeys(times, 3))[0] == "torch sdpa"
    assert best_baseline(times | {"torch_sdpa_auto": {"a": 1.0}}) == "torch_sdpa_auto"
    assert best_baseline({name: times[name] for name in ("my_kernel", "other")}) == "other", "the slowest"
    assert best_baseline({"alone": {"a": 1.0}, "apart": {"b": 1.0}}) is None


def test_a_feature_leaves_the_implementations_that_declare_it_and_the_baseline(home, app):
    declared = {"triton_fa2": {"features": ["softcap"]}, "torch_sdpa_flash": {"window": True}, "torch_naive": {}}
    row = latency("torch_naive", 1.0, small_case(64))
    add_run(home, "declaring", row, created="2027-02-02", gpu_name=GPU, implementations=declared)
    app.run()
    assert app.multiselect(key="feature").options == ["sliding window", "softcap"]
    app.multiselect(key="feature").select("softcap").run()
    assert "torch_sdpa_flash" not in shown(app)
    assert "triton_fa2 is the fastest: 4.00× torch_naive, the next best" in shown(app)
    app.multiselect(key="feature").select("sliding window").run()
    assert "triton_fa2" not in shown(app), "none declares both, so that the baseline stands alone"


def test_a_device_without_kernel_times_is_shown_by_those_it_has(home, app):
    assert app.radio(key="timing").value == "kernel"
    case, names = small_case(dtype="float32"), ("torch_naive", "torch_sdpa_auto")
    skipped = [latency(name, Status.SKIPPED, case, note="on a CPU") for name in names]
    for run_id, ms in (("before", 3.0), ("cpu", 1.0)):
        timed = [latency(name, ms, case, timing="eager") for name in names]
        add_run(home, run_id, *timed, *skipped, created="2026-01-02T00:00:00", gpu_name="A CPU", device_type="cpu")
    app.run()
    app.radio(key="gpu").set_value("A CPU").run()
    assert app.radio(key="timing").value == "eager"
    assert "nothing can be compared" not in shown(app)
    assert "on this processor the same times vary by 3.00×, more than this lead" in shown(app)
    app.radio(key="gpu").set_value(GPU).run()
    assert app.radio(key="timing").value == "kernel"
    app.radio(key="gpu").set_value("A CPU").run()
    app.radio(key="timing").set_value("kernel").run()
    assert "nothing can be compared" in shown(app), "what is asked for is shown"


def test_a_slice_without_results_says_what_to_do(app):
    app.multiselect(key="source").select("local")
    app.multiselect(key="implementation").set_value([])
    app.radio(key="mode").set_value("bwd")
    app.pills(key="seqlen").set_value(["512"]).run()
    assert "triton_fa2 is the fastest in 1 of 1 shape; nothing can be compared with torch_naive" in shown(app)
    assert "Mean speedup" not in next(
        html.proto.body for html in app.get("html") if "Measured pairs" in html.proto.body
    )


def test_a_shape_is_answered_by_the_nearest_measured_one_and_says_which(app):
    app.segmented_control(key="overview_view").set_value("My shape").run()
    app.number_input(key="shape_seqlen").set_value(300).run()
    app.number_input(key="shape_heads").set_value(2).run()
    text = shown(app)
    assert "Use triton_fa2. Within PyTorch: scaled_dot_product_attention with SDPBackend.FLASH_ATTENTION" in text
    nearest = "Nearest measured shape: seqlen 256, head_dim 64, batch 1, heads 2, kv heads 2: 0.500 ms."
    times = "Yours takes about 0.686 ms (0.344 to 2.73 ms by the 3 nearest)"
    assert f"{times}: measured times, scaled by floating-point operations. {nearest}" in text
    table = app.dataframe[0].value
    assert table["distance"].is_monotonic_increasing
    app.number_input(key="shape_kv_heads").set_value(1).run()
    grouped = app.dataframe[0].value["distance"].min() - table["distance"].min()
    assert grouped == pytest.approx(0.25), "no grouped heads were measured; a factor of two counts a quarter"
    app.number_input(key="shape_seqlen").set_value(9000).run()
    assert "far from yours" in shown(app)
    (link,) = (link for link in app.get("page_link") if link.proto.label == "Measure this shape")
    assert "edit_num_kv_heads_fa_paper=1" in link.proto.query_string


def test_the_memory_of_the_ranking_is_of_the_mode_of_the_slice_if_it_was_taken_there(home, app):
    memory = {"metric": "peak_memory_mb", "timing": None, "mode": "fwd_bwd"}
    add_run(home, "both", latency("triton_fa2", 4096.0, small_case(256), **memory), gpu_name=GPU)
    peaks = [pages.peak_memory(open_store(), Filters(gpu=GPU, mask="causal", mode=mode)) for mode in ("fwd", "bwd")]
    assert [of_mode["triton_fa2"] for of_mode in peaks] == [512.0, 4096.0]


def test_the_file_of_advice_names_no_mask_mode_or_timing_that_its_use_cases_do_not_have(app, monkeypatch):
    kept = []
    monkeypatch.setattr(views.messages, "download_slice", lambda *made: kept.append(made))
    app.segmented_control(key="overview_view").set_value("What to use when").run()
    (_, title, chosen, _, _) = kept[-1]
    assert title.file_name == "attnbench-what-to-use-when-test-gpu-attention-all-batch-and-head-counts"
    assert (chosen.gpu, chosen.mask, chosen.mode, chosen.timing, chosen.dtype) == (GPU, None, None, None, ())


@pytest.mark.slow
def test_recommendations_and_features_rest_on_stored_numbers(app):
    app.radio(key="gpu").set_value("NVIDIA H200").run()
    app.segmented_control(key="overview_view").set_value("What to use when").run()
    text = shown(app)
    assert "The recommended implementation is the closest to the fastest one on average." in text
    drawn = next(html.proto.body for html in app.get("html") if "time lost" in html.proto.body)
    assert drawn.count('<th scope="row"') == 10, "a row a use case"
    app.session_state["advice_numbers"] = True
    app.run()
    table = app.dataframe[0].value.set_index("use_case")
    assert (table["covered"] <= table["cases"]).all()
    assert (table["behind"] >= 1).all()
    features = app.dataframe[1].value.set_index("feature")
    assert features.loc["float32", "gluon_hopper"].startswith("✗")


def test_the_ranking_says_which_implementations_compute_in_a_lower_precision(app):
    app.radio(key="gpu").set_value("NVIDIA H200").run()
    assert "is **1.0" in shown(app) and "as fast as on H100 80GB HBM3 (" in shown(app)
    table = next(html.proto.body for html in app.get("html") if "peak memory" in html.proto.body)
    marked = dict(re.findall(r'<th scope="row">(\w+)(?:(?!<th).)*?<td class="text">(.*?)</td>', table))
    assert ranking.reduced("fp8") == "FP8, reduced"
    assert marked["triton_fa2_tf32"] == "TF32, reduced"
    assert marked["triton_fa2"] == "–"
    own = re.findall(r'<th scope="row">(\w+) <mark>own</mark>', table)
    assert set(own) == {"triton_fa2", "triton_fa2_tf32", "gluon_hopper", "gluon_fp8"}


def test_what_is_downloaded_names_the_slice_and_gives_each_rival_a_row(app):
    chosen = Filters(gpu=GPU, workload="attention", mask="causal", mode="fwd", timing="kernel", baseline="torch_naive")
    table = titles.with_slice(chosen, ranking.winners_csv(level_in(chosen), ranking.judged(open_store(), chosen)))
    assert list(table["gpu"].unique()) == [GPU]
    first = table[table["seqlen"] == 256].set_index("implementation")
    assert first["standing"].to_dict() == {"triton_fa2": "fastest", "torch_sdpa_flash": "ahead", "torch_naive": "ahead"}
    assert first["ratio"].to_dict() == {"triton_fa2": 1.0, "torch_sdpa_flash": 4.0, "torch_naive": 8.0}


def test_the_window_of_a_typed_shape_reaches_the_form_that_measures_it(home, app):
    rows = [latency(name, 1.0, small_case(window_size=64)) for name in ("a", "b")]
    add_run(home, "window", *rows, created="2026-03-01T00:00:00", gpu_name=GPU)
    app.run()
    app.segmented_control(key="overview_view").set_value("My shape").run()
    kinds = app.selectbox(key="shape_kind")
    kinds.set_value(next(kind for kind in kinds.options if "window 64" in kind)).run()
    (link,) = (link for link in app.get("page_link") if link.proto.label == "Measure this shape")
    assert "edit_window_size_fa_paper=64" in link.proto.query_string
    case = small_case(window_size=64, batch=2)
    point = vars(small_case()) | {"seqlen": case.seqlen_q, "batch": 1, "latency_ms": 3.0}
    assert my_shape.scaled_ms(point, case, "fwd") == 6.0, "both have the window"


def test_every_gpu_has_a_column_of_one_map(app):
    app.segmented_control(key="overview_view").set_value("Every GPU").run()
    assert app.get_by_key("gpus_head_dim").value == "128" and set(app.dataframe[0].value["head_dim"]) == {128}
    app.get_by_key("gpus_head_dim").set_value("64").run()
    assert GPU in json.loads(app.get("bidi_component")[0].proto.json)["columns"]
    table = app.dataframe[0].value.set_index(["gpu", "dtype", "seqlen"])
    assert table.loc[(GPU, "float16", 128), "winner"] == "triton_fa2"


def test_block_sparse_masks_have_a_picture_or_the_command_that_makes_it(home, app, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(block_sparse, "rows", lambda store: pd.DataFrame())
        app.segmented_control(key="overview_view").set_value("My features").run()
        assert "python -m runner run block_sparse" in [code.value for code in app.code] and not app.exception
    rows = [latency("gluon_hopper", 3.0, small_case(1024))]
    rows += [
        latency("triton_fa2", ms, small_case(1024, features=f"blocks=128:{s}")) for s, ms in ((0.5, 4.0), (0.9, 1.0))
    ]
    add_run(home, "blocks", *rows)
    app.run()
    assert "is faster than dense: 1k from 90 % on." in shown(app) and not app.exception
    assert len(app.get("plotly_chart")) == 1


def test_a_card_shows_its_numbers_or_says_that_nothing_was_measured(home, app):
    app.pills(key="my_card").set_value("MI300X").run()
    assert "**MI300X** (192 GB, 1307.4 TFLOP/s in 16 bits, 5300 GB/s): not measured, and no GPU of its" in shown(app)
    rows = [latency(name, ms, small_case()) for name, ms in (("triton_fa2", 1.0), ("torch_naive", 2.0))]
    add_run(home, "own", *rows, source="upload", gpu_name="NVIDIA L40S", device_type="cuda", created=None)
    app.run().pills(key="my_card").set_value("L40S").run()
    assert "2 numbers of NVIDIA L40S" in shown(app)
    assert app.radio(key="gpu").value == "NVIDIA L40S"
    assert "python -m runner run quick" in shown(app)
    app.radio(key="gpu").set_value(GPU).run()
    assert app.pills(key="my_card").value is None, "another GPU was chosen"
    app.pills(key="my_card").set_value("B200").run()
    app.segmented_control(key="overview_view").set_value("My shape").run()
    assert "by the data sheets the B200 takes about" in shown(app)
    text = shown(app.pills(key="my_card").set_value("RTX 4090").run())
    said = "Measured at seqlen 4k, head_dim 64, batch 1, by a source that does not state heads: 0.358 ms."
    assert f"{said} These are times of RTX 4060 Laptop." in text
    assert "of 168 shapes on RTX 4060 Laptop, by time as published. In a terminal" in text


def test_the_winner_can_be_called_by_the_lines_below_it(app, monkeypatch):
    app.session_state["usage"] = True  # the expander is open
    app.run()
    (code,) = (block.value for block in app.code)
    assert code.splitlines()[0] == "from attnbench import registry"
    assert 'registry.get("triton_fa2").attention(q, k, v, causal=True, window_size=0' in code
    (source,) = (b for b in app.get("download_button") if b.proto.label.startswith("Source"))
    assert source.proto.label == "Source: kernels/attention/triton_fa2/__init__.py"
    monkeypatch.setitem(sys.modules, "attnbench", kernels)
    q = torch.randn(1, 2, 16, 32)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    for name in ("torch_naive", "torch_sdpa_math"):
        found = {"q": q, "k": q, "v": q, "torch": torch}
        exec(usage.usage_of(name, "op").code, found)
        torch.testing.assert_close(found["out"], expected)
    assert usage.usage_of("flash_attn_4", "op").project.endswith("flash-attention")
    assert usage.usage_of("my_kernel", "op") is None
    assert "attnbench.decode(" in usage.usage_of("triton_split_kv", "decode").code
