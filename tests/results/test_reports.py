"""Published reports: parsed to the letter, shipped whole, rendered back, and rendered with own numbers."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from results import reports
from results.metrics import METRICS
from results.records import Measurement, Run, Status, measurement_from_json, run_from_json
from results.reports import ReportError, fa2_rtx4060, flashtile_a100, torch_vs_triton
from results.reports.__main__ import main
from results.reports.cells import read_cell, read_seqlen
from results.reports.shipping import ship
from results.reports.tables import markdown_table, read, tables
from runner.sweeps import SWEEPS

PUBLISHED = Path(reports.__file__).parents[1] / "published"
COUNTS = {
    "published-attention_layers_a100": 184,
    "published-fa2_rtx4060": 509,
    "published-flashtile_a100": 77,
    "published-performance_guide": 76,
    "published-performance_guide-a100": 48,
    "published-performance_guide-a100-80gb": 29,
    "published-performance_guide-a10g-24gb": 12,
    "published-performance_guide-h100": 19,
    "published-performance_guide-h100-80gb": 27,
    "published-torch_vs_triton": 144,
}

FA2 = """# FlashAttention-2 Benchmark Results

**GPU**: RTX 4060 Laptop (8GB VRAM)
**Settings**: batch_size=1, causal=True

## Results Table

| seq_len | d | dtype | PT fwd (ms) | PT bwd (ms) | PT e2e (ms) | TR fwd (ms) | TR bwd (ms) | TR e2e (ms) \
| Fwd Speedup | Bwd Speedup | E2E Speedup |
|--------:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
| 128 | 128 | bf16 | 0.0549 | 0.1088 | 0.2798 | OOM | OOM | OOM | — | — | — |
| 4096 | 16 | bf16 | 3.1648 | 3.4535 | 6.2420 | 0.1556 | 0.5116 | 0.7486 | **20.3x** | **6.8x** | **8.3x** |

## Key Observations

1. Triton forward is 2–31x faster
2. At seq_len ≥ 4096, Triton backward achieves 2–12x speedup.
3. Up to **15.8x** at seq=8192, d=16, bf16.
"""


def _shipped(run_id: str) -> tuple[Run, list[Measurement]]:
    folder = PUBLISHED / run_id
    lines = (folder / "measurements.jsonl").read_text(encoding="utf-8").splitlines()
    run = run_from_json(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    return run, [measurement_from_json(json.loads(line)) for line in lines]


def _report(name: str) -> list[tuple[Run, list[Measurement]]]:
    runs = [_shipped(run_id) for run_id in COUNTS]
    return [(run, measurements) for run, measurements in runs if run.report == name]


def _cell(run_id: str, origin: str) -> Measurement:
    (found,) = [m for m in _shipped(run_id)[1] if m.origin == origin]
    return found


def _own_run(speedup: float, *, sweep: str = "fa2_speedup", num_heads: int = 1) -> tuple[Run, list[Measurement]]:
    """A run in which torch_naive takes a microsecond a token and triton_fa2 is that much faster."""
    blank = Measurement(
        run_id="own", case=SWEEPS[sweep].cases()[0], implementation="", metric="latency_ms", status="ok", value=1.0
    )
    measurements = []
    for case in SWEEPS[sweep].cases():
        heads = replace(case, num_heads=num_heads, num_kv_heads=num_heads)
        for implementation, factor in (("torch_naive", 1.0), ("triton_fa2", speedup), ("torch_sdpa_flash", 50.0)):
            for mode in ("fwd", "bwd", "fwd_bwd"):
                for timing, slower in (("kernel", 1.0), ("eager", 7.0)):
                    value = case.seqlen_q / 1000 / factor * slower
                    measurements.append(
                        replace(
                            blank,
                            case=heads,
                            implementation=implementation,
                            mode=mode,
                            timing=timing,
                            value=value,
                            mean=2 * value,
                            std=0.5,
                        )
                    )
    return Run(run_id="own", source="local", gpu_name="NVIDIA H200"), measurements


def test_every_report_is_found_by_its_name() -> None:
    assert reports.names() == (
        "attention_layers_a100",
        "fa2_rtx4060",
        "flashtile_a100",
        "performance_guide",
        "torch_vs_triton",
    )
    with pytest.raises(ReportError, match="Unknown report 'fa3'. Available: attention_layers_a100, fa2_rtx4060"):
        reports.get("fa3")


@pytest.mark.parametrize(("run_id", "count"), COUNTS.items())
def test_every_shipped_run_has_all_its_numbers_each_with_a_place_of_its_own(run_id: str, count: int) -> None:
    run, measurements = _shipped(run_id)
    assert (run.run_id, run.source, len(measurements)) == (run_id, "published", count)
    assert len({m.origin for m in measurements}) == len({m.measurement_id for m in measurements}) == count
    assert all(m.run_id == run_id and m.printed and m.metric in METRICS and m.timing is None for m in measurements)
    assert all(m.note for m in measurements if m.status is not Status.OK)


def test_no_other_run_calls_itself_a_report() -> None:
    runs = [run_from_json(json.loads(path.read_text(encoding="utf-8"))) for path in PUBLISHED.glob("*/run.json")]
    assert {run.run_id for run in runs if run.report} == set(COUNTS)


@pytest.mark.parametrize("name", reports.names())
def test_a_report_rendered_from_shipped_numbers_parses_to_the_same_numbers(name: str) -> None:
    runs = _report(name)
    again = reports.get(name).parse(reports.get(name).render(runs))
    assert sorted(again, key=lambda pair: pair[0].run_id) == runs


def test_shipping_the_rendered_reports_writes_the_shipped_bytes(tmp_path: Path) -> None:
    for name in reports.names():
        (tmp_path / f"{name}.md").write_text(reports.get(name).render(_report(name)), encoding="utf-8")
    folders = ship(tmp_path, tmp_path / "out")
    assert {folder.name for folder in folders} == set(COUNTS)
    for folder in folders:
        for name in ("run.json", "measurements.jsonl"):
            assert (folder / name).read_bytes() == (PUBLISHED / folder.name / name).read_bytes()


def test_shipping_an_unknown_text_names_the_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.txt").write_text("# Something else\n", encoding="utf-8")
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "other.txt is none of the reports. attention_layers_a100: Not report" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_shipping_without_texts_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="is report attention_layers_a100, fa2_rtx4060"):
        ship(tmp_path, tmp_path / "out")


def test_report_fa2_rtx4060_has_56_rows_of_9_numbers() -> None:
    ((run, measurements),) = _report("fa2_rtx4060")
    table = [m for m in measurements if m.origin.startswith("Results Table")]
    assert len({m.case for m in table}) == 56
    assert Counter(m.origin.rpartition(" / ")[2] for m in table) == dict.fromkeys(fa2_rtx4060.GRID.columns, 56)
    assert (run.gpu_name, run.gpu_memory_mb) == ("RTX 4060 Laptop", 8192.0)
    case = table[0].case
    assert (case.batch, case.num_heads, case.window_size, case.causal) == (1, None, None, True)


def test_report_fa2_rtx4060_keeps_all_21_oom_cells_as_out_of_shared_memory() -> None:
    _, measurements = _shipped("published-fa2_rtx4060")
    oom = [m for m in measurements if m.printed == "OOM"]
    assert len(oom) == 21
    assert {(m.case.head_dim, m.case.dtype, m.implementation) for m in oom} == {(128, "bfloat16", "triton_fa2")}
    assert {m.status for m in oom} == {Status.OUT_OF_RESOURCES}
    assert all("'OOM'" in m.note and "observation 5" in m.note for m in oom)
    missing = [m for m in measurements if m.printed == "—"]
    assert len(missing) == 21 and {(m.metric, m.status) for m in missing} == {("speedup", Status.SKIPPED)}


def test_report_torch_vs_triton_keeps_means_with_their_deviations() -> None:
    run, measurements = _shipped("published-torch_vs_triton")
    first = measurements[0]
    assert (first.printed, first.value, first.mean, first.std) == ("0.3546 | 0.0038", 0.3546, 0.3546, 0.0038)
    assert first.statistic == "mean" and first.origin.endswith("forward_ms_mean | forward_ms_std")
    assert Counter((m.implementation, m.mode) for m in measurements) == {
        (implementation, mode): 24 for implementation in ("torch", "triton_fa2") for mode in ("fwd", "bwd", "fwd_bwd")
    }
    assert run.gpu_name is None and "Backward" not in (run.title or "")


@pytest.mark.parametrize(
    ("run_id", "origin", "printed", "status", "value"),
    [
        ("fa2_rtx4060", "Results Table / 8192, 16, fp32 / Fwd Speedup", "**31.3x**", "ok", 31.3),
        ("fa2_rtx4060", "Key Observations / 3", "**15.8x**", "ok", 15.8),
        ("performance_guide-h100-80gb", "H100 80GB (Hopper) / Key insight / tflops", "~1.2 PFLOPS", "ok", 1200.0),
        (
            "performance_guide",
            "GPU memory consumption (batch=8, heads=32, dim=64) > Standard attention memory / 8192 / Attention Matrix",
            "2048 MB (2 GB)",
            "ok",
            2048.0,
        ),
        (
            "performance_guide",
            "GPU memory consumption (batch=8, heads=32, dim=64) > Standard attention memory / 32768 / Total",
            "34 GB",
            "ok",
            34816.0,
        ),
        (
            "performance_guide",
            "GPU memory consumption (batch=8, heads=32, dim=64) > Flash Attention 2 memory / 512 / Attention (on-chip)",
            "0 MB (recomputed)",
            "ok",
            0.0,
        ),
        (
            "performance_guide",
            "Memory scaling comparison > Llama 2 7B model memory (float16, batch=1) / 16K / Standard Attention",
            "26.3 GB (OOM)",
            "oom",
            None,
        ),
        ("performance_guide", "Training memory (Llama 2 7B, batch=4) / 8K / Standard (GB)", "OOM (>40GB)", "oom", None),
        ("performance_guide", "Training memory (Llama 2 7B, batch=4) / 8K / Reduction", "Fits!", "skipped", None),
        (
            "performance_guide-a100",
            "Training (forward + backward, Llama 2 7B, A100) / 8 × 4K / Flash Attn (samples/sec)",
            "2.4",
            "ok",
            2.4,
        ),
        (
            "attention_layers_a100",
            "Multi-Head Latent Attention > Configuration 2: Batch=1, SeqLen=4096, Heads=64, HeadDim=128, LatentDim=1024"
            " / Total / Best Speedup",
            "**2.11x** (Flash)",
            "ok",
            2.11,
        ),
        ("attention_layers_a100", "Summary / Triton Backward Speedup / high", "41.99x", "ok", 41.99),
        ("flashtile_a100", "Memory / 8,192 / Naive Memory", "61907.0 MB", "ok", 61907.0),
        ("flashtile_a100", "Correctness", "1.5e-07", "ok", 1.5e-07),
        ("flashtile_a100", "Shared memory / 64 / SRAM Required", "~128KB per block", "ok", 128.0),
    ],
)
def test_a_printed_cell_is_kept_to_the_letter(
    run_id: str, origin: str, printed: str, status: str, value: float | None
) -> None:
    cell = _cell(f"published-{run_id}", origin)
    assert (cell.printed, str(cell.status), cell.value) == (printed, status, value)


def test_numbers_that_are_not_there_keep_what_the_report_says_of_them() -> None:
    needed = _cell(
        "published-performance_guide",
        "Memory scaling comparison > Llama 2 7B model memory (float16, batch=1) / 16K / Standard Attention",
    )
    assert needed.note == "26.3 GB needed; the report prints '26.3 GB (OOM)'; Can Fit 24GB GPU?: Only Flash: Yes"


def test_cases_say_what_the_report_says_and_no_more() -> None:
    origin = "Grouped Query Attention (GQA) > Configuration 1: Batch=2, SeqLen=2048, Heads=32, KVHeads=8, HeadDim=64"
    gqa = _cell("published-attention_layers_a100", f"{origin} / Backward / Triton (ms)")
    assert (gqa.case.level, gqa.case.subject, gqa.case.num_heads, gqa.case.num_kv_heads) == ("layer", "gqa", 32, 8)
    assert (gqa.mode, gqa.case.dtype, gqa.case.causal) == ("bwd", None, None)
    llama = _cell("published-performance_guide-a100", "Inference (generation, Llama 2 7B, A100) / 2K / Speedup")
    assert (llama.case.level, llama.case.subject, llama.mode) == ("model", "llama2-7b", "decode")
    assert (llama.case.seqlen_k, llama.case.batch, llama.baseline) == (2048, None, "standard")


def test_words_of_a_report_ship_as_notes() -> None:
    features = json.loads((PUBLISHED / "published-performance_guide-a100-80gb" / "notes.json").read_text("utf-8"))
    (table,) = [note for note in features if note["header"] == ["Feature", "FA1", "FA2", "FA3"]]
    assert table["rows"][-1] == ["Work partitioning", "Basic", "Advanced", "Optimal"]
    layers = (PUBLISHED / "published-attention_layers_a100" / "notes.json").read_text("utf-8")
    assert "45 configurations across 5 attention types" in layers
    assert "machine epsilon" in (PUBLISHED / "published-flashtile_a100" / "notes.json").read_text("utf-8")


def test_an_excerpt_parses_cell_by_cell() -> None:
    ((run, measurements),) = fa2_rtx4060.parse(FA2)
    assert run.run_id == "published-fa2_rtx4060" and len(measurements) == 2 * 9 + 5
    speedup = measurements[9 + 6]
    assert (speedup.printed, speedup.value, speedup.baseline) == ("**20.3x**", 20.3, "torch")


def test_a_ragged_row_is_refused_with_its_line() -> None:
    with pytest.raises(ReportError, match="Line 10: 11 cells where the header has 12"):
        fa2_rtx4060.parse(FA2.replace("| 0.0549 | 0.1088 ", "| 0.0549 "))


def test_an_unreadable_cell_is_refused() -> None:
    with pytest.raises(ReportError, match="Cell 'fast' is neither a number nor one of OOM, N/A, —"):
        fa2_rtx4060.parse(FA2.replace("3.1648", "fast"))


@pytest.mark.parametrize("name", reports.names())
def test_a_text_of_another_report_is_refused(name: str) -> None:
    with pytest.raises(ReportError, match=f"Not report {name}"):
        reports.get(name).parse("# Some other text\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")


def test_a_header_glued_to_code_is_still_a_table() -> None:
    (table,) = tables("model = f(8)| Block Size | SRAM |\n|---|---|\n| 32 | ~32KB per block |\n")
    assert (table.header, table.rows, table.line) == (("Block Size", "SRAM"), (("32", "~32KB per block"),), 1)


def test_a_table_that_follows_another_without_a_blank_line_is_its_own() -> None:
    first, second = tables("| a | b |\n|---|---|\n| 1 | 2 |\n| c |\n|---|\n| 3 |\n")
    assert (first.rows, second.header, second.rows) == ((("1", "2"),), ("c",), (("3",),))


def test_a_written_table_reads_back() -> None:
    text = markdown_table(("a", "b"), [("x | y", "—")])
    (table,) = read(f"# Title\n\n{text}\n")
    assert (table.headings, table.header, table.rows) == (("Title",), ("a", "b"), (("x | y", "—"),))


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("2 GB", "", 2048.0), ("18.2", "GB", 18636.8), ("**3.20x**", "", 3.2), ("1,024", "", 1024.0), ("94%", "", 94.0)],
)
def test_a_cell_is_read_in_the_unit_of_its_metric(text: str, unit: str, value: float) -> None:
    assert read_cell(text, unit).value == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "inf", "nan", "1.2.3", "12 34", "-"])
def test_what_is_no_number_has_no_value(text: str) -> None:
    if text == "-":
        assert read_cell(text).status is Status.SKIPPED
    else:
        with pytest.raises(ReportError, match="neither a number"):
            read_cell(text)


def test_sequence_lengths_are_read_with_k_and_commas() -> None:
    assert [read_seqlen(text) for text in ("512", "1,024", "16K")] == [512, 1024, 16384]
    with pytest.raises(ReportError, match="Sequence length 'long'"):
        read_seqlen("long")


def test_an_own_run_stands_in_the_layout_of_fa2_rtx4060() -> None:
    (table,) = tables(fa2_rtx4060.render([_own_run(4.0)]))
    assert table.header == fa2_rtx4060.GRID.header and len(table.rows) == 56
    assert table.rows[1][:4] == ("128", "16", "fp32", "0.1280") and table.rows[1][6:] == (
        *["0.0320"] * 3,
        *["4.0x"] * 3,
    )


def test_an_own_cell_without_a_number_shows_its_status_and_no_speedup() -> None:
    run, measurements = _own_run(4.0)
    failed = [
        replace(m, status=Status.OUT_OF_RESOURCES, value=None, mean=None, std=None)
        if m.implementation == "triton_fa2" and m.case.head_dim == 128
        else m
        for m in measurements
    ]
    (table,) = tables(fa2_rtx4060.render([(run, failed)]))
    assert table.rows[6][6:] == ("OOR", "OOR", "OOR", "—", "—", "—")


def test_a_run_that_failed_everywhere_shows_so() -> None:
    run, measurements = _own_run(4.0)
    failed = [replace(m, status=Status.OOM, value=None, mean=None, std=None) for m in measurements]
    (table,) = tables(fa2_rtx4060.render([(run, failed)]))
    assert len(table.rows) == 56 and set(table.rows[0][3:]) == {"OOM", "—"}


def test_own_timings_are_never_mixed() -> None:
    run, measurements = _own_run(4.0)
    eager = [m for m in measurements if m.timing == "eager"]
    text = fa2_rtx4060.render([(run, eager)])
    assert "Timing: eager" in text and tables(text)[0].rows[0][3] == "0.8960"
    assert "Timing: kernel" in fa2_rtx4060.render([(run, measurements)])


def test_own_settings_that_the_table_does_not_tell_apart_get_a_table_each() -> None:
    run, one = _own_run(4.0)
    _, sixteen = _own_run(2.0, num_heads=16)
    text = fa2_rtx4060.render([(run, [*one, *sixteen])])
    assert [table.rows[0][9] for table in tables(text)] == ["4.0x", "2.0x"]
    assert "num_heads=16" in text


def test_an_own_run_stands_in_the_layout_of_torch_vs_triton_with_means() -> None:
    (table,) = tables(torch_vs_triton.render([_own_run(4.0, sweep="torch_vs_triton")]))
    assert len(table.rows) == 48
    assert table.rows[1] == ("triton_fa2", "bfloat16", "128", "16", "1", "True", *["0.0640", "0.5000"] * 3)


def test_a_run_that_says_no_timing_and_keeps_the_published_names_is_rendered_too() -> None:
    run, measurements = _shipped("published-torch_vs_triton")
    text = torch_vs_triton.render([(replace(run, source="upload", report=None), measurements)])
    assert "Timing: not said.\n" in text and "\n\n\n" not in text
    assert tables(text)[0].rows[0][:7] == ("torch", "bfloat16", "128", "16", "1", "True", "0.3546")


def test_an_own_layer_run_stands_in_the_layout_of_attention_layers() -> None:
    module = reports.get("attention_layers_a100")
    run, measurements = _shipped("published-attention_layers_a100")
    names = {"torch": "torch_naive", "triton": "triton_fa2", "flash": "torch_sdpa_flash"}
    own = [
        replace(m, run_id="own", implementation=names[m.implementation], origin=None, printed=None)
        for m in measurements
        if m.metric == "latency_ms"
    ]
    text = module.render([(replace(run, run_id="own", report=None), own)])
    assert len(tables(text)) == 15
    assert tables(text)[0].rows[0] == ("Forward", "1.5461", "0.9185", "0.4836", "**3.20x** (Flash)")


def test_a_run_with_other_cases_is_refused_with_what_it_needs() -> None:
    with pytest.raises(ReportError, match="no number for this report's tables .*torch_naive"):
        flashtile_a100.render([_own_run(4.0)])
