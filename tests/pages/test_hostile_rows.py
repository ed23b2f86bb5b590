"""No page can be brought down by data: each is drawn over a store of rows that are accepted and as odd as rows can be.

Every run below passes the records. Magnitudes lie at the ends of what the store takes, texts hold what Markdown, HTML
and spreadsheets read as more than text, cases leave everything open or are as large as whole numbers go.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from results.files.journal import RunFolder
from results.metrics import METRICS, SIGNED, ZERO_TOO
from results.records import LEVELS, MODES, Case, Measurement, Run, Status, attention_case, decode_case
from results.schema import LARGEST, LARGEST_WHOLE, SMALLEST
from tests.builders import TEXTS
from tests.pages.conftest import ROOT, opened

PAGES = sorted(path.stem for path in (ROOT / "pages").glob("[!_]*.py"))
GPU = "<b>GPU</b> | $x$ [a](b)"
NAMES = ("torch_naive", "triton_fa2", *TEXTS, "x" * 200)
CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
HUGE = dict.fromkeys(
    ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v"), LARGEST_WHOLE
)
CASES = (
    CASE,
    replace(CASE, **HUGE),
    replace(CASE, seqlen_q=1, seqlen_k=1, head_dim=1, head_dim_v=1, window_size=LARGEST_WHOLE),
    Case(level="op", seqlen_q=256),
    *(Case(level=level, subject=text, seqlen_q=512, seqlen_k=7) for level in LEVELS for text in (None, TEXTS[10])),
    decode_case(batch=1, num_heads=1, num_kv_heads=1, context=1, head_dim=1, dtype="float64", page_size=LARGEST_WHOLE),
    replace(CASE, inputs="large", dtype="float64"),
)


def values_of(metric: str) -> tuple[float, ...]:
    """The ends of what a metric can be."""
    of_range = {ZERO_TOO: (0.0,), SIGNED: (0.0, -LARGEST)}
    return (SMALLEST, 1.0, LARGEST, *of_range.get(METRICS[metric].range, ()))


def hostile_rows(run_id: str) -> list[Measurement]:
    """Every metric at its ends, every status, and latencies of every case, mode and name."""
    rows = []
    for case in CASES:
        modes = (None, "fwd", "decode") if case.level == "op" else MODES
        for at, mode in enumerate(modes):
            for name, value in zip(NAMES[at:], (SMALLEST, LARGEST, 1.0, 1.0), strict=False):
                spread = {"std": LARGEST, "p20": SMALLEST, "p80": LARGEST} if value == 1.0 else {"std": 0.0}
                rows += [
                    Measurement(run_id, case, name, "latency_ms", "ok", mode=mode, timing=timing, value=value, **spread)
                    for timing in (None, "kernel", "eager")
                ]
    for metric in METRICS:
        for at, value in enumerate(values_of(metric)):
            for mode in ("fwd", "fwd_bwd", None):
                rows.append(Measurement(run_id, CASE, NAMES[at], metric, "ok", mode=mode, value=value, origin="o"))
    for status, text in zip(list(Status)[1:], TEXTS, strict=False):
        rows.append(Measurement(run_id, CASE, f"name {text}", "latency_ms", status, mode="fwd", note=text))
    return list({m.measurement_id: m for m in rows}.values())


@pytest.fixture
def home(empty: Path) -> Path:
    """A home whose runs are hostile, two of one GPU and one that says nothing."""
    facts = {
        "gpu_name": GPU,
        "gpu_memory_mb": SMALLEST,
        "measured_tflops": {"float16": SMALLEST, "tf32": LARGEST},
        "measured_gbs": SMALLEST,
        "sweep": {"tokens": {"a": []}, "hidden": "<i>", "name": 7},
        "implementations": {"triton_fa2": {"memory": {"growth": 7}, "colour": "red", "level": "none"}, "": {}},
    }
    runs = (
        Run("hostile-1", "upload", created="1970-01-01", title=TEXTS[10], **facts),
        Run("hostile-2", "local", created="2200-12-31T23:59:59", sm_count=0, power_limit_w=SMALLEST, **facts),
        Run("hostile-3", "upload"),
    )
    for run in runs:
        RunFolder.create(empty, run, hostile_rows(run.run_id))
    return empty


@pytest.mark.slow
def test_no_page_is_brought_down_by_rows_that_are_accepted(home: Path) -> None:
    """Every page, and every mode, timing and workload that a page offers on one page at least."""
    failed, drawn = {}, set()
    for at, page in enumerate(PAGES):
        app = opened(page, gpu=GPU)
        views = {(): app}
        for number, choice in enumerate(_choices(app)):
            if number % 3 == at % 3 or choice not in drawn:
                views[choice] = opened(page, **{"gpu": GPU, choice[0]: choice[1]})
        failed |= {
            (page, *choice): [e.message for e in app.exception] for choice, app in views.items() if app.exception
        }
        drawn |= {*views}
    assert failed == {}
    assert {key for key, _ in drawn - {()}} == {"mode", "timing", "workload"}


def _choices(app: AppTest) -> list[tuple[str, str]]:
    keys = ("mode", "timing", "workload")
    return [(key, option) for key in keys for box in app.radio if box.key == key for option in box.options[1:]]
