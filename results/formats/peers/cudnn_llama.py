"""cuDNN frontend's Llama-3.2-1B training times (benchmark/Llama-3.2-1B-Training/artifacts/<gpu>_training_timing.csv).

`time` is the seconds of one training step; `speedup` is relative to the backend that `speedup_label` names.
"""

from __future__ import annotations

from collections.abc import Iterator

from results.formats.peers.cudnn_training import SOURCE
from results.formats.peers.engine import Number, Peer
from results.formats.peers.sources import Entry, Row


def _baseline(entry: Entry) -> Iterator[Row]:
    """Add the baseline, and drop the speedup of the baseline itself."""
    row = entry.value
    backend, label = row.text("backend"), row.text("speedup_label")
    system, _, baseline = label.partition(" vs ")
    if row.text("speedup") and (system != backend or not baseline):
        raise row.fault("speedup_label", "does not name the backend and the backend it is compared with")
    own = baseline == system
    yield row.having(baseline=f"{baseline} ({SOURCE})", speedup=None if own else row.text("speedup"))


PEER = Peer(
    name="cudnn_llama",
    description="the CSV of cuDNN frontend's Llama-3.2-1B training times",
    source=SOURCE,
    counted="rows of cuDNN frontend's Llama-3.2-1B training",
    columns=("backend", "batch_size", "seq_len", "time", "label", "speedup_label", "speedup"),
    split=_baseline,
    needs={"batch": "batch_size", "seqlen_q": "seq_len", "seqlen_k": "seq_len"},
    facts={"level": "model", "subject": "llama3.2-1b"},
    implementation=lambda row: (row.need("backend"),),
    mode="train",
    numbers=(
        Number("latency_ms", ("time",), scale=1000, required=True),
        Number("speedup", ("speedup",), baseline=lambda row: row.text("baseline")),
    ),
    meanings={"implementation": ("backend",), "baseline": ("speedup_label",)},
    assumptions=("Rows are training steps of Llama-3.2-1B; time is in seconds and becomes milliseconds.",),
)
