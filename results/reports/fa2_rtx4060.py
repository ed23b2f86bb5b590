"""Answers to the claims of report fa2_rtx4060."""

from results.records import Status
from results.reports.own import OwnNumbers


def shared_memory(numbers: OwnNumbers) -> str | None:
    """Return how many backward passes of bfloat16 at head_dim 128 ran."""
    ours = numbers.own("triton_fa2")
    found = [
        m.status
        for m in numbers.measurements
        if (m.implementation, m.mode, m.metric) == (ours, "bwd", "latency_ms")
        if (m.case.head_dim, m.case.dtype) == (128, "bfloat16")
    ]
    return f"{found.count(Status.OK)} of {len(found)} cases ran" if found else None
