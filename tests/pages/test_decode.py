"""The page Decode over a home with a small run of known numbers."""

import json
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest

from pages.ui import decode, frontier
from results.files.journal import RunFolder
from results.records import Measurement, Run, Status, decode_case
from tests.builders import latency
from tests.pages.conftest import GPU, opened, shown

RUN = Run("decode-a", "local", created="2026-03-01T00:00:00", gpu_name=GPU, measured_gbs=4000.0, title="Decoding")
# by implementation: milliseconds of a thousand cached tokens of one sequence
SPEEDS = {"torch_naive": 0.4, "torch_sdpa_auto": 0.1, "triton_split_kv": 0.05}


def decode_run() -> list[Measurement]:
    """A run in which time grows with context and batch; torch_naive is out of memory at the largest of both."""
    rows = []
    for context, batch, name in product((1024, 8192), (1, 8), SPEEDS):
        case = decode_case(batch=batch, num_heads=32, num_kv_heads=8, context=context, head_dim=128, dtype="bfloat16")
        ms = SPEEDS[name] * context * batch / 1024
        spread = {"statistic": "median", "p20": 0.99 * ms, "p80": 1.01 * ms, "n": 5}
        if (name, context, batch) == ("torch_naive", 8192, 8):
            ms, spread = Status.OOM, {"note": "too large"}
        rows.append(latency(name, ms, case, run_id=RUN.run_id, mode="decode", **spread))
    return rows


@pytest.fixture
def page(home, app):
    """The page over the run, and over newer kernels that were measured alone in its smallest case."""
    rows = decode_run()
    RunFolder.create(home, RUN, rows)
    newer = next(replace(row, run_id="newer") for row in rows if row.implementation == "triton_split_kv")
    made = replace(RUN, run_id="newer", created="2026-03-02T00:00:00", kernel_hash="changed")
    RunFolder.create(home, made, [newer])
    return app.switch_page("pages/decode.py").run()


def _map(page, index=0):
    return json.loads(page.get("bidi_component")[index].proto.json)


def test_the_answer_its_map_and_its_charts_are_those_of_decoding(page):
    text = shown(page)
    assert "triton_split_kv is the fastest: 2.00× torch_sdpa_auto, the next best, and 8.00× torch_naive" in text
    moved = 2 * 1024 * 8 * 128 * 2 + 2 * 32 * 128 * 2  # q and out are most beside the shortest cache
    best = moved / 0.05 / 1e9
    assert f"triton_split_kv reads fastest: **{decode.rate_words(best)}**" in text
    (told,) = [caption.value for caption in page.caption if "Newer code" in caption.value]
    why = r"but is not shown: no time of torch\_naive with that code (newer)."
    assert told.endswith(f"\n\n:material/history: Newer code was measured in 1 of 4 shapes, {why}")
    assert "Download latencies with their runs" in {button.label for button in page.get("download_button")}
    drawn = _map(page)
    assert drawn["corner"] == "context \\ batch"
    assert (drawn["rows"], drawn["columns"]) == (["1k", "8k"], ["1", "8"])
    assert drawn["facets"][0]["cells"][1][1]["known"], "the fastest ran where the baseline was out of memory"
    traces = {trace["name"]: trace for trace in json.loads(page.get("plotly_chart")[0].proto.spec)["data"]}
    assert set(traces) == {*SPEEDS, "at copy bandwidth", ""}, "the last draws the names at the ends"
    assert traces["triton_split_kv"]["x"] == [1024, 8192]
    assert traces["at copy bandwidth"]["y"][0] == pytest.approx(moved / 4000 / 1e6)
    assert not any("Cost of" in element.value for element in page.subheader)
    cell = _map(page, 1)["facets"][0]["cells"][0][0]
    assert cell["text"] == decode.rate_words(best)
    assert f"{100 * best / 4:.0f} % of the copy bandwidth" in cell["note"]
    page.pills(key="show").set_value("torch_naive").run()
    assert _map(page, 1)["facets"][0]["cells"][1][1]["text"] == "OOM"
    assert {"Data type", "context", "batch"} <= {box.label for box in page.pills}
    assert not [box for box in page.radio if box.label == "Mode"]
    page.pills(key="batch").set_value(["8"]).run()
    assert _map(page)["columns"] == ["8"]
    assert "batch 8" in shown(page)


def test_the_bandwidth_that_is_shown_first_is_of_all_cells_and_in_its_unit():
    rates = [("everywhere", 1.0), ("everywhere", 3.0), ("slower", 1.0), ("slower", 2.0), ("large cells alone", 4.0)]
    assert decode.widest_and_fastest(pd.DataFrame(rates, columns=["implementation", "tb_per_s"])) == "everywhere"
    assert decode.rate_words(4.123) == "4.12 TB/s"
    assert decode.rate_words(0.0213) == "21.3 GB/s"


def test_a_cell_shows_its_numbers_and_run(page):
    page.session_state["cell_numbers"] = True
    page.session_state["cell"] = "bfloat16, context 8192, batch 1"
    page.run()
    assert _map(page, 1)["title"] == "bfloat16, context 8192, batch 1"
    table = next(table.value for table in page.dataframe if "latency_ms" in table.value)
    assert table.set_index("implementation")["latency_ms"].to_dict() == pytest.approx(
        {"torch_naive": 3.2, "torch_sdpa_auto": 0.8, "triton_split_kv": 0.4}
    )
    moved = 2 * 8192 * 8 * 128 * 2 + 2 * 32 * 128 * 2
    share = table.set_index("implementation").loc["triton_split_kv", "percent_of_copy"]
    assert share == pytest.approx(100 * moved / 0.4e-3 / 4e12)


def test_the_operators_pages_never_show_decode_rows_and_each_level_keeps_its_choices(page):
    overview = page.switch_page("pages/overview.py").run()
    assert overview.radio(key="workload").options == ["attention"]
    assert "triton_split_kv" not in shown(overview)
    assert overview.radio(key="mode").value == "fwd"
    again = overview.switch_page("pages/decode.py").run()
    assert "triton_split_kv is the fastest" in shown(again)
    page = again
    page.pills(key="batch").set_value(["8"])
    page.radio(key="baseline").set_value("torch_sdpa_auto").run()
    overview = page.switch_page("pages/overview.py").run()
    assert overview.radio(key="baseline").value == "torch_naive"
    overview.query_params.clear()  # as a click in the sidebar does
    again = overview.switch_page("pages/decode.py").run()
    assert again.radio(key="baseline").value == "torch_sdpa_auto"
    assert again.pills(key="batch").value == ["8"]


def test_without_any_result_it_says_what_measures_decoding(unpublished):
    page = opened("decode")
    assert "No decode results yet" in shown(page)
    assert [code.value for code in page.code] == ["python -m runner run decode"]
    page.switch_page("pages/batches.py").run()
    assert [code.value for code in page.code] == ["python -m runner run mixed_batches"]


@pytest.fixture
def costs(home, app):
    """The page over a run in which pages of 16 take 1.1 and 1.2 times as long, and e4m3 half as long."""
    plain = decode_case(batch=8, num_heads=32, num_kv_heads=8, context=8192, head_dim=128, dtype="bfloat16")
    longer = replace(plain, seqlen_k=32768)
    times = {plain: 1.0, longer: 4.0, replace(plain, page_size=16): 1.1, replace(longer, page_size=16): 4.8}
    e4m3 = replace(plain, cache_dtype="float8_e4m3fn")
    run, given = "costs", {"mode": "decode", "statistic": "median", "n": 5}
    rows = [
        Measurement(run, case, name, "latency_ms", Status.OK, timing="kernel", value=factor * ms, **given)
        for case, ms in {**times, e4m3: 0.5}.items()
        for name, factor in (("torch_naive", 3.0), ("triton_split_kv", 1.0))
    ]
    for metric, error in (("error_out", 0.002), ("error_out_original", 0.03)):
        rows.append(Measurement(run, e4m3, "triton_split_kv", metric, Status.OK, value=error, mode="decode", n=1))
    created = "2026-03-01T00:00:00"
    RunFolder.create(home, Run(run, "local", created=created, gpu_name=GPU, measured_gbs=4000.0), rows)
    return app.switch_page("pages/decode.py").run()


def test_what_pages_and_e4m3_cost_is_said_drawn_and_listed(costs):
    assert not costs.exception
    facts = next(element.value for element in costs.get("html") if "Pages of 16" in element.value)
    assert "1.15×" in facts
    assert "range 1.10–1.20×" in facts
    assert "FP8 cache (e4m3)" in facts
    assert "error 3.0e-02" in facts
    listed = next(table.value for table in costs.dataframe if "beside" in table.value)
    ours = listed[listed["implementation"] == "triton_split_kv"].set_index("form")
    assert ours.loc["page 16", ["lowest", "highest"]].tolist() == pytest.approx([1.1, 1.2])
    assert ours.loc["float8_e4m3fn cache", ["error", "error_original"]].tolist() == [0.002, 0.03]
    costs.pills(key="form").set_value("page 16").run()
    drawn = _map(costs, 2)
    assert (drawn["rows"], drawn["columns"]) == (["8k", "32k"], ["8"])
    assert [line[0]["text"] for line in drawn["facets"][0]["cells"]] == ["1.10×", "1.20×"]


def test_prefill_and_mixed_batches_have_a_tab_that_compares_pages_and_separate_calls(home, app):
    sizes = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
    prompt = decode_case(batch=2, context=4096, query_tokens=2048, **sizes)
    mixed = decode_case(batch=3, context=4096, query_tokens=2048, page_size=16, lengths="q2k_2q1s4k", **sizes)
    times = {prompt: (2.0, 2.0), replace(prompt, page_size=16): (2.2, 2.5), mixed: (1.5, 2.0)}
    rows = [
        Measurement("mixed", case, name, "latency_ms", Status.OK, mode="decode", timing="kernel", value=ms)
        for case, both in times.items()
        for name, ms in zip(("triton_varlen", "triton_separate"), both, strict=True)
    ]
    RunFolder.create(home, Run("mixed", "local", created="2026-03-01T00:00:00", gpu_name=GPU), rows)
    page = app.switch_page("pages/batches.py").run().selectbox(key="batches_gpu").set_value(GPU).run()
    assert not page.exception
    assert "the fastest: 1.15× triton_separate, the next best, on average over 3 shapes" in shown(page)
    table = page.dataframe[0].value.set_index(["spec", "shape", "implementation"])
    paged, of_mixed = "H32 KV8 D128 2048 tokens page 16", ("q2k_2q1s4k", "H32 KV8 D128 q2k_2q1s4k page 16")
    assert table.loc[("2q2ks4k", paged, "triton_varlen"), "of_contiguous"] == pytest.approx(1.1)
    assert table.loc[(*of_mixed, "triton_varlen"), "of_separate"] == pytest.approx(0.75)
    assert table.loc[(*of_mixed, "triton_separate"), "of_fastest"] == pytest.approx(4 / 3)
    facts = "".join(element.value for element in page.get("html"))
    assert "Time of one call over separate calls" in facts and "Time of pages over a contiguous cache" in facts


def test_the_cost_of_a_token_follows_from_price_power_limit_and_the_fastest_attention_of_each_batch(page):
    of_layer = "**0.0139 dollars per million tokens** of attention of one layer, at context 1k and batch 1"
    assert f"Cheapest at $1 a GPU-hour: {of_layer} with triton_split_kv." in shown(page)
    page.number_input(key="price").set_value(2.0).run()
    assert "Cheapest at $2 a GPU-hour: **0.0278 dollars" in shown(page)
    times = [("a", 1, 1.0), ("b", 1, 2.0), ("a", 8, 4.0)]
    table = pd.DataFrame(times, columns=["implementation", "batch", "latency_ms"])
    table = table.assign(seqlen=1024, seqlen_q=1, run_id="r")
    rows = frontier.points(table, {"r": 700.0}).to_dict("records")
    assert [(row["implementation"], row["rate"], row["speed"]) for row in rows] == [("a", 1000, 1000), ("a", 2000, 250)]
    assert [(row["joules"], round(row["dollars"], 3)) for row in rows] == [(700_000, 0.278), (350_000, 0.139)]
    of_one_batch = frontier.points(table[table["batch"] == 1], {})
    assert of_one_batch[["series", "rate"]].values.tolist() == [["a", 1000], ["b", 500]]
