"""The page Compare: runs, implementations, GPUs, versions, imports and history."""

import json
import math
import random
from dataclasses import replace

import pandas as pd
import pytest

from pages.ui.compare import choose, imported, verdicts
from pages.ui.draw import charts
from pages.ui.runs import listing
from results.compare import beside
from results.compare.beside import BesideCell, BesideRow
from results.files.journal import RunFolder
from results.records import Measurement, Run, Status, attention_case
from results.spread import spread
from tests.builders import import_understanding
from tests.cases import cases
from tests.pages.conftest import GPU, opened, shown
from tests.results.formats.peers.peer_files import understood

RUN = Run("before", "local", created="2026-03-01T00:00:00", gpu_name=GPU, driver="570", protocol="standard/2")
AFTER = replace(RUN, run_id="after", created="2026-03-02T00:00:00", driver="575")


def latency(ms: float, seqlen: int, *, run_id: str = "before", name: str = "triton_fa2", **fields) -> Measurement:
    """A latency of three quiet rounds, or the status given as ms."""
    size = fields.pop("batch_size", 1)
    case = attention_case(batch=size, num_heads=2, seqlen=seqlen, head_dim=64, dtype="float16", causal=True)
    given = {"metric": "latency_ms", "mode": "fwd", "timing": "kernel"} | fields
    if isinstance(ms, Status):
        return Measurement(run_id, case, name, status=ms, note="24 GB needed", **given)
    rng = random.Random(f"{run_id} {seqlen} {name}")
    found = spread([ms * (1 + abs(rng.gauss(0, 0.003))) for _ in range(21)])
    return Measurement(run_id, case, name, status="ok", **found, round_sizes=(7, 7, 7), **given)


@pytest.fixture
def page(unpublished, home, app):
    before = {128: 1.0, 256: 2.0, 512: 4.0, 1024: 8.0}
    after = {128: 1.0, 256: 2.4, 512: 3.0, 1024: Status.OOM}
    for run, times in ((RUN, before), (AFTER, after)):
        rows = [latency(ms, seqlen, run_id=run.run_id, timing="eager") for seqlen, ms in times.items()]
        RunFolder.create(home, run, rows)
    app.session_state["changed_shapes"] = app.session_state["environment"] = True
    return app.switch_page("pages/compare.py").run()


def cells(page):
    return next(table.value for table in page.dataframe if "verdict" in table.value)


def test_the_newest_run_is_judged_against_the_one_it_shares_cells_with_and_others_can_be_chosen(page):
    assert (page.selectbox(key="first").value, page.selectbox(key="second").value) == ("before", "after")
    assert cells(page)["verdict"].tolist() == ["LOST", "SLOWER", "UNCLEAR: too noisy", "FASTER"]
    assert cells(page)["why"].iloc[0] == "oom: 24 GB needed"
    assert "1 lost, 1 slower, 1 faster, 1 unclear (too noisy), of 4 shapes · 1.035× on average" in shown(page)
    assert "3 shapes compared in eager time · 1 lost." in shown(page)
    assert "different clocks" not in shown(page)
    changes = next(table.value for table in page.dataframe if "fact" in table.value)
    assert changes.to_dict("records") == [{"fact": "driver", "before": "570", "after": "575"}]
    assert f"{GPU} · 2026-03-01 00:00 · before" in page.selectbox(key="first").options
    page.get_by_key("verdict").set_value(["SLOWER", "LOST"]).run()
    assert cells(page)["verdict"].tolist() == ["LOST", "SLOWER"]
    page.get_by_key("verdict").set_value([])
    page.selectbox(key="first").select("after").run()
    assert "Both sides are the same" in shown(page)
    page.selectbox(key="second").select("before").run()
    assert set(cells(page)["verdict"]) == {"SLOWER", "FASTER", "GAINED", "UNCLEAR: too noisy"}
    assert any("compare after before" in code.value for code in page.code)
    assert page.query_params["first"] == "after"
    page.query_params["first"] = "run-a"
    assert page.run().selectbox(key="first").value == "run-a"
    page.query_params["second"] = "gone"
    assert page.run().selectbox(key="second").value == "before", "what is not here changes nothing"


def test_time_and_cycles_stand_in_columns_of_their_own_and_runs_apart_say_what_keeps_them_so(page, home):
    for run_id, day, clock in (("cooler", 3, 1650.0), ("warmer", 4, 1980.0)):
        rows = [replace(latency(2.0, 256, run_id=run_id), sm_clock_mhz=clock)]
        RunFolder.create(home, replace(AFTER, run_id=run_id, created=f"2026-03-0{day}T00:00:00"), rows)
    page.run()
    page.selectbox(key="first").select("warmer").run()
    page.selectbox(key="second").select("cooler").run()
    (found,) = cells(page).to_dict("records")
    assert found["verdict"] == verdicts.BY_CLOCK
    assert found["time"] == pytest.approx(1.0, abs=0.01)
    assert found["cycles"] == pytest.approx(1.2, abs=0.01)
    assert "1 of 1 pairs ran at different SM clocks" in shown(page)
    RunFolder.create(home, replace(RUN, run_id="far"), [latency(1.0, 128, run_id="far", name="other")])
    page.run()
    page.selectbox(key="first").select("far").run()
    assert "No shape is in both" in shown(page)


def test_the_newest_two_runs_of_one_sweep_on_one_gpu_are_compared_first(page, home):
    quick = {"name": "quick"}
    for run_id, day, gpu, sweep, ms in (
        ("older", "04", GPU, quick, 0.94),  # differs most from the next
        ("one", "05", GPU, quick, 1.0),
        ("two", "06", GPU, quick, 0.97),
        ("elsewhere", "07", "Other GPU", quick, 1.0),
        ("otherwise", "08", GPU, {"name": "other"}, 1.0),
    ):
        run = replace(RUN, run_id=run_id, created=f"2026-03-{day}T00:00:00", gpu_name=gpu, sweep=sweep)
        RunFolder.create(home, run, [latency(ms, seqlen, run_id=run_id) for seqlen in (128, 256)])
    again = opened("compare")
    assert "compare one two" in again.code[-1].value
    assert "Shown first: your newest runs of one sweep on one GPU." in shown(again)
    assert "2026-03-06 00:00" in again.selectbox(key="second").options[2]
    shipped = replace(RUN, run_id="theirs", created="2026-03-07T00:00:00", sweep={"name": "other"}, source="shipped")
    RunFolder.create(home, shipped, [latency(1.0, seqlen, run_id="theirs") for seqlen in (128, 256)])
    assert "Shown first: your newest run and a shipped one, of one sweep on one GPU." in shown(opened("compare"))


def test_two_implementations_of_one_run_are_judged(page, home):
    rows = [latency(1.0, 128, run_id="other", name=name) for name in ("mine", "torch_naive")]
    RunFolder.create(home, replace(RUN, run_id="other"), rows)
    linked = opened("compare", of="Two implementations", of_run="other")
    assert linked.selectbox(key="against").value == "torch_naive"
    page.get_by_key("of").set_value("Two implementations").run()
    page.selectbox(key="of_run").select("run-a").run()
    page.selectbox(key="with").select("triton_fa2").run()
    assert "One run: one machine" in shown(page)
    assert "UNCLEAR: too noisy" in set(cells(page)["verdict"])
    link = {"of": "Two implementations", "of_run": "run-a", "against": "torch_naive", "with": "torch_sdpa_flash"}
    command = "python -m results compare run-a/torch_naive run-a/torch_sdpa_flash"
    assert command in [block.value for block in opened("compare", **link).code]
    assert "Speedup of triton_fa2 over torch_naive. ▲ faster" in shown(page)
    assert choose.file_name("run-a", "run-a", ("x", "y")) == "compare-run-a-x-y"
    assert choose.file_name("run-a", "run-b") == "compare-run-a-run-b"


def test_gpus_stand_side_by_side_on_the_shapes_they_share(page, home):
    other = replace(RUN, run_id="other", gpu_name="Other GPU", sm_count=10, power_limit_w=100.0)
    rows = [latency(0.5, 128, run_id="other"), latency(1.0, 4096, run_id="other")]
    rows.append(latency(0.1, 128, run_id="other", metric="energy_j", timing=None))
    RunFolder.create(home, other, [replace(rows[0], sm_clock_mhz=1000.0), *rows[1:]])
    RunFolder.create(home, replace(AFTER, run_id="kernels"), [latency(1.0, 128, run_id="kernels")])
    page.get_by_key("of").set_value("GPUs").run()
    page.multiselect(key="gpus").set_value([GPU, "Other GPU"]).run()
    assert f"In kernel time Other GPU is **2.00×** as fast as {GPU}: geometric mean of 1 shared shape." in shown(page)
    table = page.dataframe[0].value
    assert table["seqlen"].tolist() == [128]
    flops = 2.0 * 1 * 2 * (128 * 129 / 2) * 2 * 64
    found = table.iloc[0]
    ms = found["Other GPU: Time (ms)"]
    assert found["Other GPU: TFLOP/s"] == pytest.approx(flops / ms / 1e9)
    assert found["Other GPU: At its clock"] == pytest.approx(flops / (ms * 1e3 * 1000.0) / 10)
    assert found["Other GPU: Per joule"] == pytest.approx(flops / 0.1 / 1e9, rel=0.01)
    assert found["Other GPU: Per watt of its limit"] == pytest.approx(flops / ms / 1e6 / 100)
    page.pills(key="quantity").set_value("gflops_per_watt").run()
    assert f"Not drawn, because the power limit is not stated: {GPU}." in shown(page)
    assert any("Not available: % of nominal peak" in (caption.help or "") for caption in page.caption)


def test_gpus_without_an_implementation_in_common_say_so(page, home):
    names = {"other": "fwd", "gluon_hopper": None}  # the one that is shown first states no mode
    for gpu in ("Third GPU", "Fourth GPU"):
        run = replace(RUN, run_id=gpu[:5], gpu_name=gpu)
        rows = [latency(1.0, 128, run_id=gpu[:5], name=name, mode=mode) for name, mode in names.items()]
        RunFolder.create(home, run, rows)
    page.get_by_key("of").set_value("GPUs").run()
    page.multiselect(key="gpus").set_value(["Third GPU", "Fourth GPU"]).run()
    assert "as fast as" in shown(page) and "mode" not in page.dataframe[0].value and not page.exception
    RunFolder.create(home, replace(RUN, run_id="fifth", gpu_name="Fourth GPU"), [latency(1.0, 128, run_id="fifth")])
    page.run()
    page.multiselect(key="gpus").set_value(["Third GPU", GPU]).run()
    assert "no implementation in common" in shown(page)
    page.multiselect(key="gpus").set_value([]).run()
    assert "Choose at least two GPUs" in shown(page)


def test_axes_have_numbers_and_reach_to_the_ends_of_intervals_unless_one_is_far_off():
    one = pd.DataFrame([{"verdict": "SAME", "speedup": 0.996, "low": 0.99, "high": 1.0, "first_ms": 0.61}])
    one = one.assign(implementation="x", mode="fwd", seqlen=128, head_dim=64, dtype="float16")
    figure = charts.figure(verdicts.speedup_chart(one))
    for axis, value in ((figure.layout.xaxis, 0.61), (figure.layout.yaxis, 0.996)):
        assert axis.tickvals[0] < value < axis.tickvals[-1]
        assert axis.range[0] < math.log10(value) < axis.range[1]
    cells = pd.DataFrame({"verdict": "SAME", "speedup": [1.0, 1.01], "low": [0.93, 0.99], "high": [1.06, 1.02]})
    cells = cells.assign(first_ms=[0.1, 1.0], implementation="x", mode="fwd", seqlen=128, head_dim=64, dtype="float16")
    axis = charts.figure(verdicts.speedup_chart(cells)).layout.yaxis
    assert (axis.tickvals[0], axis.tickvals[-1], axis.range) == (0.9, 1.1, None)  # without a range Plotly shows it all
    far = charts.figure(verdicts.speedup_chart(cells.assign(high=[1000.0, 1.02]))).layout.yaxis
    assert (far.tickvals[0], far.tickvals[-1]) == (0.95, 1.05)


def test_a_mean_says_in_which_directions_its_shapes_went():
    rows = pd.DataFrame({"speedup": [1.1, 1.0], "verdict": ["FASTER", verdicts.NOISY]})
    drawn = [verdicts._mean({"implementation": "x"}, rows.iloc[at:]) for at in (0, 1)]
    assert [(cell["label"], cell["mark"]) for cell in drawn] == [("1.049× ▲", None), ("1.000× ?", "?")]


def test_a_newer_run_that_shares_little_is_not_preferred_to_two_that_share_much(page, home):
    many = [(seqlen, mode) for seqlen in range(128, 128 + 8) for mode in ("fwd", "bwd")]
    for run_id, created in (("long-1", "2026-03-03T00:00:00"), ("long-2", "2026-03-04T00:00:00")):
        run = replace(RUN, run_id=run_id, created=created)
        RunFolder.create(home, run, [latency(1.0, seqlen, run_id=run_id, mode=mode) for seqlen, mode in many])
    few = replace(RUN, run_id="few", created="2026-03-05T00:00:00")
    RunFolder.create(home, few, [latency(1.0, 128, run_id="few")])
    apart = replace(RUN, run_id="apart", created="2026-03-06T00:00:00")
    others = [(seqlen, mode) for seqlen in range(129, 129 + 16) for mode in ("fwd", "bwd")]  # 14 of 32 are shared
    RunFolder.create(home, apart, [latency(1.0, seqlen, run_id="apart", mode=mode) for seqlen, mode in others])
    assert "compare long-1 long-2" in opened("compare").code[-1].value


@pytest.mark.parametrize("share,words", cases(__file__, "changes in words"))
def test_a_change_that_nothing_could_show_is_said_as_a_factor(share, words):
    assert verdicts.change(share) == words


def test_two_versions_of_one_sweep_have_their_verdicts_and_the_constant_of_every_time(page, home) -> None:
    against = {"label": "abc1234", "git_commit": "abc1234", "torch": None}
    run = replace(RUN, run_id="versions", against=against, git_commit="def5678", empty_launch_ms=0.0031)
    rows = [latency(ms, seqlen, run_id="versions") for seqlen, ms in ((128, 1.0), (256, 2.0))]
    others = [latency(1.2 * m.value, m.case.seqlen_q, run_id="versions") for m in rows]
    rows += [replace(m, implementation="triton_fa2@abc1234") for m in others]
    RunFolder.create(home, run, rows)
    app = page.get_by_key("of").set_value("Two versions").run()
    assert not app.exception
    assert "2 faster, of 2 shapes" in shown(app)
    assert "python -m results compare versions" in [block.value for block in app.code]
    assert "Each kernel time contains 3.1 µs that an empty kernel also takes." in shown(app)


def test_a_comparison_without_its_runs_says_what_brings_them(page) -> None:
    app = page.get_by_key("of").set_value("Two versions").run()
    assert "No sweep measured two versions yet." in shown(app)
    assert [block.value for block in app.code] == ["python -m runner run quick --against COMMIT"]
    page.get_by_key("of").set_value("Import beside a run").run()
    assert "No results of other tools are here yet" in shown(page)
    assert "No sweep timed a shape twice on one GPU yet" in shown(page.get_by_key("of").set_value("History").run())


def test_an_import_stands_beside_the_run_that_shares_its_cases(app, home):
    import_understanding(home, understood("cudnn_inference_decode_h200.csv"))
    app.query_params["of"] = "Import beside a run"
    page = app.switch_page("pages/compare.py").run()
    assert "12 shared shapes" in shown(page)
    table = page.dataframe[0].value
    assert len(table) == 12 and "triton_split_kv" in table and "cudnn 9.27 (cudnn-frontend), imported" in table
    assert "SM clock" in page.dataframe[1].value["fact"].tolist()


def test_a_sweep_run_again_has_a_history_with_its_regression_on_top(page, home):
    for day, ms in ((1, 1.0), (2, 1.0), (3, 1.3)):
        run = replace(RUN, run_id=f"day-{day}", created=f"2026-04-0{day}T00:00:00", sweep={"name": "quick"})
        run = replace(run, git_commit=f"{day}" * 40, kernel_hash=f"hash {day}")
        times = ((ms, 128), (2.0, 256))
        RunFolder.create(home, run, [latency(*time, run_id=run.run_id, timing="eager") for time in times])
    page.get_by_key("of").set_value("History").run()
    assert "1 regression in the newest of 3 runs, 1 in all" in shown(page)
    (change,) = page.dataframe[0].value.to_dict("records")
    assert (change["verdict"], change["commit"], change["run before"]) == ("SLOWER", "3333333", "day-2")
    assert page.get_by_key("history_shapes").value[0].startswith("triton_fa2 B1 H2 D64 S128")
    assert len(page.get("plotly_chart")) == 1
    assert "history_timing" not in {control.key for control in page.segmented_control}, "there is one timing"


def test_runs_of_a_sweep_that_share_no_shape_have_no_history(unpublished, home, app):
    for day, seqlen in ((1, 128), (2, 4096)):
        run = replace(RUN, run_id=f"day-{day}", created=f"2026-04-0{day}T00:00:00", sweep={"name": "quick"})
        RunFolder.create(home, run, [latency(1.0, seqlen, run_id=run.run_id)])
    app.query_params["of"] = "History"
    page = app.switch_page("pages/compare.py").run()
    assert "No sweep timed a shape twice on one GPU yet." in shown(page)


def test_gpus_are_drawn_as_ratios_of_each_shape_around_a_line_at_one(page, home):
    shapes = {"Fast": {128: 1.0, 256: 4.0}, "Slow": {128: 4.0, 256: 2.0}}
    for gpu, times in shapes.items():
        rows = [latency(ms, n, run_id=gpu, batch_size=b) for n, ms in times.items() for b in (1, 4)]
        RunFolder.create(home, replace(RUN, run_id=gpu, gpu_name=gpu, power_limit_w=100.0), rows)
    far = replace(RUN, run_id="far", source="upload", created="2199-01-01", gpu_name="Fast")  # replaces none of them
    RunFolder.create(home, far, [latency(9.0, 128, run_id="far")])
    page.get_by_key("of").set_value("GPUs").run()
    page.multiselect(key="gpus").set_value(["Fast", "Slow"]).run()
    (spec,) = (json.loads(each.proto.spec) for each in page.get("plotly_chart"))
    (trace,) = spec["data"]
    assert (trace["name"], trace["mode"], trace["x"]) == ("Fast", "markers", [128, 128, 256, 256])
    assert trace["y"] == pytest.approx([4.0, 4.0, 0.5, 0.5], rel=0.01)
    assert [(shape["y0"], shape["y1"]) for shape in spec["layout"]["shapes"]] == [(1.0, 1.0)]
    title = spec["layout"]["title"]["text"]
    assert "Speed relative to Slow" in title and "head_dim 64" in title
    page.pills(key="quantity").set_value("gflops_per_watt").run()
    (spec,) = (json.loads(each.proto.spec) for each in page.get("plotly_chart"))
    assert spec["data"][0]["y"] == pytest.approx([4.0, 4.0, 0.5, 0.5], rel=0.01), "better is above 1 there too"


def test_gpus_are_told_in_one_direction_also_where_a_timing_turns_them_around(page, home):
    for gpu, kernel, eager in (("Fast", 1.0, 3.0), ("Slow", 4.0, 2.0)):
        run = replace(RUN, run_id=gpu, gpu_name=gpu)
        rows = [latency(ms, 128, run_id=gpu, timing=timing) for ms, timing in ((kernel, "kernel"), (eager, "eager"))]
        RunFolder.create(home, run, rows)
    page.get_by_key("of").set_value("GPUs").run()
    page.multiselect(key="gpus").set_value(["Fast", "Slow"]).run()
    words = shown(page)
    assert "In kernel time Fast is **4.00×** as fast as Slow" in words
    assert "In eager time Fast is **0.67×** as fast as Slow" in words


def test_a_number_that_a_finding_voids_says_so_beside_its_verdict(page, home):
    run = replace(RUN, run_id="odd", created="2026-05-01T00:00:00", gpu_name="NVIDIA H200")
    RunFolder.create(home, run, [latency(ms, n, run_id="odd", timing="eager") for ms, n in ((1e-5, 128), (2.0, 256))])
    page.run()
    page.selectbox(key="second").select("odd").run()
    found = cells(page).set_index("seqlen")["finding"]
    assert "a GPU needs 2 us to start a kernel" in found[128] and pd.isna(found[256])


def test_a_cell_of_an_import_has_times_only_at_the_very_shape_and_does_not_write_none():
    case = attention_case(batch=2, num_heads=4, seqlen=128, head_dim=64, dtype="float16", causal=True)
    cell = BesideCell("a", False, True, Status.OK, 0.5, 120.0, case)
    assert imported._cell(cell) == "120 TFLOP/s · 0.500 ms"
    assert imported._cell(replace(cell, tflops=None)) == "0.500 ms"
    assert imported._cell(replace(cell, same=False)) == "120 TFLOP/s (B2 H4)"
    assert imported._cell(replace(cell, same=False, tflops=None)) == "–"
    assert imported._cell(replace(cell, latency_ms=None, status=Status.OOM)) == "OOM"
    ours = replace(cell, ours=True, tflops=60.0), replace(cell, ours=True, tflops=600.0, reduced=True)
    assert imported._ratio(BesideRow(case, "fwd", (cell, *ours)))["ratio"] == 2.0
    case = attention_case(batch=1, num_heads=16, seqlen=128, head_dim=64, dtype="float16", causal=True)
    row = BesideRow(replace(case, num_kv_heads=None, seqlen_k=None, batch=None, dtype=None), "fwd", ())
    assert beside.words(row) == "B? H16 128 d64 causal dtype not stated"


def test_without_runs_that_share_shapes_the_newest_two_are_compared(unpublished, home, app):
    for run_id, seqlen in (("older", 128), ("newer", 4096)):
        run = replace(RUN, run_id=run_id, created=f"2026-05-0{1 + (run_id == 'newer')}T00:00:00")
        RunFolder.create(home, run, [latency(1.0, seqlen, name=run_id, run_id=run_id)])
    page = app.switch_page("pages/compare.py").run()
    assert (page.selectbox(key="first").value, page.selectbox(key="second").value) == ("older", "newer")
    assert "python -m results compare older newer" in [block.value for block in page.code]


def test_an_upload_is_called_by_its_title():
    run = {"source": "upload", "title": "mine.csv", "created": None, "git_commit": None, "gpu_name": "A GPU"}
    table = pd.DataFrame([run | {"run_id": "upload-438b"}, run | {"run_id": "local-1", "source": "local"}])
    words = listing.words_of(table.assign(sweep=None))
    assert (words("upload-438b"), words("local-1")) == ("mine.csv · A GPU", "mine.csv · A GPU · local-1")
