"""Published reports: parsed to the letter, shipped whole and rendered back."""

import json
from collections import Counter
from pathlib import Path

import pytest

from results import reports
from results.files.journal import RunFolder
from results.metrics import METRICS
from results.records import Measurement, Run, Status, run_from_json
from results.reports import ReportError, fa2_rtx4060
from results.reports.__main__ import main, ship
from tests.builders import COUNTS, PUBLISHED, shipped

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


def _report(name: str) -> list[tuple[Run, list[Measurement]]]:
    runs = [shipped(run_id) for run_id in COUNTS]
    return [(run, measurements) for run, measurements in runs if run.report == name]


def _cell(run_id: str, origin: str) -> Measurement:
    (found,) = [m for m in shipped(run_id)[1] if m.origin == origin]
    return found


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
    run, measurements = shipped(run_id)
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


def test_shipping_the_rendered_reports_writes_the_shipped_runs(tmp_path: Path) -> None:
    for name in reports.names():
        (tmp_path / f"{name}.md").write_text(reports.get(name).render(_report(name)), encoding="utf-8")
    folders = ship(tmp_path, tmp_path / "out")
    assert {folder.name for folder in folders} == set(COUNTS)
    for folder in folders:
        written, shipped = RunFolder(folder), RunFolder(PUBLISHED / folder.name)
        assert written.run_path.read_bytes() == shipped.run_path.read_bytes()
        assert written.read()[0] == shipped.read()[0]


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
    _, measurements = shipped("published-fa2_rtx4060")
    oom = [m for m in measurements if m.printed == "OOM"]
    assert len(oom) == 21
    assert {(m.case.head_dim, m.case.dtype, m.implementation) for m in oom} == {(128, "bfloat16", "triton_fa2")}
    assert {m.status for m in oom} == {Status.OUT_OF_RESOURCES}
    assert all("'OOM'" in m.note and "observation 5" in m.note for m in oom)
    missing = [m for m in measurements if m.printed == "—"]
    assert len(missing) == 21 and {(m.metric, m.status) for m in missing} == {("speedup", Status.SKIPPED)}


def test_report_torch_vs_triton_keeps_means_with_their_deviations() -> None:
    run, measurements = shipped("published-torch_vs_triton")
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
    flashtile = (PUBLISHED / "published-flashtile_a100" / "notes.json").read_text("utf-8")
    assert "machine epsilon" in flashtile
    assert "def benchmark(model, x, warmup=3, runs=10):" in flashtile and "max_memory_allocated" in flashtile


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
