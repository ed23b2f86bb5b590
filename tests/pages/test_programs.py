"""The page Programs: recordings, cards, refusals, and the rule that it installs."""

import json
import re
from itertools import product

import pytest
import streamlit as st

from kernels import tables
from pages.ui import programs as page_programs
from pages.ui.overview.my_card import ROWS
from results import programs
from results.gpus import GPUS
from results.levels import flops
from results.recommend import program_times
from results.recommend.program_times import NOW
from tests.builders import add_run, sampled
from tests.pages.conftest import shown

H200, A100 = (next(name for name in ROWS if chip in name) for chip in ("H200", "A100 SXM4 80GB"))
SHIPPED = {program.path.stem: program for program in programs.shipped()}
VIT = SHIPPED["vit-b-16-training"]
FORM = "triton_fa2[half.dq.64 block_m=64 block_n=128 num_warps=4 num_stages=2 programs=0]"
TIMES = {NOW: 2.0, "triton_fa2": 1.0, FORM: 1.5, "torch_sdpa_math": 9.0}


@pytest.fixture
def page(app):
    del app.query_params["gpu"]
    return app.switch_page("pages/programs.py").run()


@pytest.fixture
def tuned(home, monkeypatch, tmp_path):
    """A tune of the ViT on an A100, uploaded; rules go to a folder of the test."""
    monkeypatch.setenv("ATTNBENCH_RULES", str(tmp_path / "rules"))
    (call,) = VIT.tuned
    facts = {"gpu_name": "NVIDIA A100-SXM4-80GB", "source": "upload", "sweep": {"name": "tune"}, "device_type": "cuda"}
    how = {"case": call.case, "mode": call.mode, "timing": call.timing}
    add_run(home, "mine", *(sampled(ms, implementation=name, **how) for name, ms in TIMES.items()), **facts)
    return home


def test_a_recording_draws_for_a_measured_card_and_for_one_that_nobody_measured(page):
    names = ("beitv2-b-training", "gemma-3-12b-training", "deepseek-v3-layers-training")
    for card, name in product((H200, A100), names):
        page.selectbox(key="program_card").set_value(card)
        program = SHIPPED[name]
        page.selectbox(key="program").set_value(program.name).run()
        said, guessed = shown(page), card == A100 and bool(program.tuned)
        assert ("Nobody has measured these calls on the A100 SXM4 80GB" in said) == guessed
        assert ("takes the tiles of sm_80, made for its compute capability (expected, not measured" in said) == guessed
        assert any(f"tune --program results/programs/{name}.json" in block.value for block in page.code)
        assert ("This call was not timed with other tiles" in said) == bool(program.tuned)
        assert any(block.value.endswith(f"{name}.json --tiles") for block in page.code) == bool(program.tuned)
        assert ("Silent fallbacks" in said) == any(call.fallback for call in program.calls)
        assert len(page.dataframe) == bool(program.tuned)
        facts = re.findall("<dd>(.*?)</dd>", "".join(block.value for block in page.get("html")))
        assert len(facts) == 4 * bool(program.tuned)
        assert all(re.fullmatch(r"[\d.]{1,5} m?s", value) for value in facts), facts
        if program.tuned:
            table = page.dataframe[0].value
            assert table["count"].sum() == sum(call.count for call in program.tuned)
            assert table["from"].str.startswith("assumed from NVIDIA").all() == guessed
            assert table["share"].is_monotonic_decreasing and table["share"].sum() == pytest.approx(1)


def test_the_numbers_of_the_card_count_and_its_rule_is_installed(tuned, page, tmp_path, monkeypatch):
    page.selectbox(key="program_card").set_value(A100)
    page.selectbox(key="program").set_value(SHIPPED["siglip-so400m-384-training"].name).run()
    near = page.dataframe[0].value.iloc[0]
    (call,) = VIT.tuned
    work = flops(SHIPPED["siglip-so400m-384-training"].tuned[0].case, call.mode) / flops(call.case, call.mode)
    assert near["now_ms"] == pytest.approx(27 * 2.0 * work, rel=0.02)
    assert near["from"].startswith("NVIDIA A100-SXM4-80GB: nearest shape B64 H12 D64 S197 bfloat16 full, times ")
    page.selectbox(key="program").set_value(VIT.name)
    with monkeypatch.context() as other:
        usual = st.get_option
        other.setattr(st, "get_option", lambda name: "0.0.0.0" if name == "server.address" else usual(name))
        assert page.run().button(key="install_rule").disabled and not page.get("file_uploader")
    page.run().button(key="install_rule").click().run()
    row = page.dataframe[0].value.iloc[0]
    assert [row[name] for name in ("now_ms", "ruled_ms", "best_ms")] == pytest.approx([24, 12, 12], rel=0.02)
    assert [row[name] for name in ("ruled", "best", "standing")] == ["triton_fa2", "triton_fa2", "ahead"]
    (drawn,) = page.get("plotly_chart")
    assert "half.dq.64" in drawn.proto.spec and "64 x 128" in drawn.proto.spec
    assert row["from"] == "NVIDIA A100-SXM4-80GB: this shape, eager calls, uploaded"
    (path,) = (tmp_path / "rules").glob("*.json")
    assert str(path) in shown(page)
    (point,) = json.loads(path.read_text())["points"]
    assert (point["implementation"], point["beaten"]) == ("triton_fa2", [FORM, NOW, "torch_sdpa_math"])
    path.unlink()
    runs = page.switch_page("pages/runs.py").run()
    runs.selectbox(key="run_id").select("mine").run().button(key="install_rule").click().run()
    assert "1 problems timed eagerly" in shown(runs) and path.exists()
    assert any("--run mine" in block.value for block in runs.code)


def test_an_uploaded_recording_is_shown_and_a_broken_one_is_refused_in_words(page):
    record = json.loads(VIT.path.read_text()) | {"program": "mine"}
    record["calls"][0] |= {"modules": ["Attention", "Pool"], "scales": [0.125, 1]}
    assert not {"modules", "scales"} & {*page.dataframe[0].value}
    page.file_uploader[0].upload("mine.json", json.dumps(record | {"steps": 4}).encode()).run()
    assert (page.selectbox(key="program").options[0], page.selectbox(key="program").value) == ("mine", "mine")
    drawn = page.dataframe[0].value
    assert [*drawn["modules"], *drawn["scales"]] == ["Attention, Pool", "0.125, 1"]
    page.file_uploader[0].upload("all.json", json.dumps(record | {"program": "all", "steps": 0}).encode()).run()
    whole = page.dataframe[0].value
    assert [*drawn["count"] * 4] == [*whole["count"]] == [VIT.tuned[0].count]
    assert [*drawn["now_ms"] * 4] == pytest.approx([*whole["now_ms"]]) and "in the whole recording now" in shown(page)
    page.file_uploader[0].upload("broken.json", b'{"format": 1}').run()
    assert "broken.json is not a recording; `python -m runner record` writes one." in shown(page)


def test_a_tiny_call_takes_as_long_as_an_empty_kernel_and_fallbacks_count_for_a_step(page):
    record = json.loads(VIT.path.read_text())
    sizes = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "seqlen_q": 64, "seqlen_k": 64, "window_size": 8}
    tiny = (
        record["calls"][0]["problem"] | sizes | {"mask": "causal window", "direction": "forward", "regime": "captured"}
    )
    record |= {"program": "tiny", "steps": 2, "calls": [{"problem": tiny, "count": 3}]}
    page.file_uploader[0].upload("tiny.json", json.dumps(record).encode()).run()
    assert page.dataframe[0].value["now_ms"][0] == pytest.approx(1.5 * program_times._EMPTY_MS)
    assert "- 1.5 calls: a window, which SDPA takes as a mask rules out" in shown(page)


def test_fallbacks_name_what_rules_out_the_fast_backends():
    found = {name: [call.fallback for call in program.calls] for name, program in SHIPPED.items()}
    window = "a window, which SDPA takes as a mask rules out the flash backend, and shared key heads rule out"
    assert found["gemma-3-12b-training"][0].startswith(window) and found["gemma-3-12b-training"][1] is None
    assert found["beitv2-b-training"] == ["a mask rules out the flash backend"]
    assert found["deepseek-v3-layers-training"] == ["head_dim_v other than head_dim rules out the flash backend"]


def test_the_tiles_of_a_card_are_those_that_the_kernels_take():
    for row, sheet in GPUS.items():
        found = program_times.tiles_of(row)
        if sheet.compute_capability.startswith("gfx"):
            assert found is None
        else:
            capability = int(sheet.compute_capability.replace(".", ""))
            assert found.family == tables.family_of(capability, sheet.shared_kb << 10)
            assert found.own == (capability in tables.family(found.family).chips)


def test_the_cost_of_new_lengths_is_a_table_of_a_device(monkeypatch) -> None:
    sizes = ("torch", "created", "count", "longest", "batch", "heads", "head_dim", "dtype")
    row = dict.fromkeys(page_programs._OF_NEW_LENGTHS, 1) | {"implementation": "torch_flex"}
    entry = {"environment": dict.fromkeys(sizes, "2026"), "implementations": [row]}
    monkeypatch.setattr(page_programs, "record", lambda name: {"A device": entry})
    drawn = []
    monkeypatch.setattr(page_programs.tables, "grid", lambda table, *_: drawn.append(table))
    page_programs.new_lengths()
    assert drawn[0]["implementation"].tolist() == ["torch_flex"] and list(drawn[0]) == [*row]
