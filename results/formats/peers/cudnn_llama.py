"""cuDNN frontend's Llama-3.2-1B training times (benchmark/Llama-3.2-1B-Training/artifacts/<gpu>_training_timing.csv).

`time` is seconds for one training step; `speedup` is over the backend that `speedup_label` names.
"""

from __future__ import annotations

from results.formats import values
from results.formats.peers.collected import (
    CellFault,
    Cells,
    Collected,
    columns_of,
    lacking,
    positive,
    rows_of,
    sheet_with,
)
from results.formats.peers.cudnn_training import SOURCE
from results.formats.upload import Understanding, Upload
from results.records import Case

NAME = "cudnn_llama"
DESCRIPTION = "the CSV of cuDNN frontend's Llama-3.2-1B training times"
COLUMNS = ("backend", "batch_size", "seq_len", "time", "label", "speedup_label", "speedup")

_MEANINGS = {
    "backend": "implementation",
    "batch_size": "batch",
    "seq_len": "seqlen_q and seqlen_k",
    "time": "latency_ms, from seconds",
    "speedup_label": "baseline",
    "speedup": "speedup",
}


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a table, otherwise which columns it lacks, or "" if it lacks most of them."""
    return lacking(upload, COLUMNS)


def understand(upload: Upload) -> Understanding:
    """Return each row as the latency of a training step with its printed speedup."""
    sheet = sheet_with(upload, COLUMNS)
    assert sheet is not None  # reason_against has seen it
    collected = Collected(upload, NAME)
    for line, cells in rows_of(collected, sheet):
        with collected.row(line, ", ".join(cells.row)):
            _row(collected, line, cells)
    return collected.understanding(
        f"{sheet.description}, {len(sheet.rows):,} rows of cuDNN frontend's Llama-3.2-1B training",
        columns=columns_of(sheet, _MEANINGS),
        assumptions=["Rows are training steps of Llama-3.2-1B; time is in seconds and becomes milliseconds."],
    )


def _row(collected: Collected, line: int, cells: Cells) -> None:
    seqlen = cells.need("seq_len", values.whole)
    known = {
        "run_id": collected.run(None),
        "case": Case(
            level="model",
            subject="llama3.2-1b",
            batch=cells.need("batch_size", values.whole),
            seqlen_q=seqlen,
            seqlen_k=seqlen,
        ),
        "implementation": f"{cells.need('backend', values.words)} ({SOURCE})",
        "mode": "train",
    }
    seconds = cells.need("time", positive)
    collected.add(
        line,
        "time",
        metric="latency_ms",
        value=seconds * 1000,
        statistic="printed",
        printed=cells.text("time"),
        **known,
    )
    speedup = cells.read("speedup", positive)
    if speedup is None:
        return
    label = cells.text("speedup_label")
    system, _, baseline = label.partition(" vs ")
    if system != cells.text("backend") or not baseline:
        raise CellFault("speedup_label", label, "does not name the backend and what it is compared with")
    if baseline != system:
        collected.add(
            line, "speedup", metric="speedup", value=speedup, baseline=f"{values.words(baseline)} ({SOURCE})",
            statistic="printed", printed=cells.text("speedup"), **known,
        )  # fmt: skip
