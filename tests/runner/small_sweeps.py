"""Sweeps that take seconds, and what their runs hold."""

from collections import Counter

from results.files.journal import RunFolder
from results.records import Measurement, Status

_BOTH = ("--implementations", "torch_naive,triton_fa2")
# 8 cases x 2 implementations x 3 modes x 2 timings
FAST = ("fa2_speedup", "--set", "seqlen=128,256", "--set", "head_dim=16,32", *_BOTH)
FAST_ROWS = 96
# 2 cases x 2 implementations x 3 modes
FEW = ("fa2_speedup", "--set", "seqlen=128,256", "--set", "head_dim=16", "--set", "dtype=float32", *_BOTH)
# 1 case x 3 modes x 2 timings an implementation, of which kernel is skipped on a CPU
TINY = ("quick", "--device", "cpu", "--quick", "--set", "seqlen=16", "--set", "dtype=float32", "--set", "head_dim=16")


def latencies(folder: RunFolder) -> dict[tuple, Measurement]:
    """Each latency row by implementation, mode, timing and seqlen; a row that is there twice fails."""
    rows = [m for m in folder.read()[0] if m.metric == "latency_ms"]
    assert max(Counter(row.measurement_id for row in rows).values()) == 1
    return {(m.implementation, m.mode, m.timing, m.case.seqlen_q, m.case): m for m in rows}


def statuses(folder: RunFolder, timing: str = "eager") -> dict[tuple[str, str], Status]:
    """The status of each implementation and mode in one timing."""
    return {key[:2]: row.status for key, row in latencies(folder).items() if key[2] == timing}
