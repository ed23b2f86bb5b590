"""Level softmax: the softmax of each row of a matrix. A made-up level, copied to results/levels/softmax.py."""

from results.levels import Axis, Level, Mode
from results.levels.memory import MemoryParts, WorkspaceLaw
from results.levels.tensors import DTYPE_BYTES, MIB, Fields, numbers_of
from results.records import Case


def softmax_case(rows: int, columns: int, dtype: str) -> Case:
    """Return the softmax of a matrix."""
    return Case(level="softmax", subject="softmax", seqlen_q=rows, head_dim=columns, dtype=dtype)


def elements(case: Fields) -> float | None:
    found = numbers_of(case, "seqlen_q", "head_dim")
    return found and found[0] * found[1]


def flops(case: Fields, mode: str | None) -> float | None:
    count = elements(case)
    return count and 5 * count


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    count = elements(case)
    return count and 2 * count * DTYPE_BYTES[case["dtype"]]


def memory(case: Fields, work: WorkspaceLaw, of_pass: str) -> MemoryParts | None:
    half = bytes_moved(case, "fwd") / 2 / MIB
    return MemoryParts(half, half, 0.0, 0.0)


def words(case: Case) -> str:
    return f"rows {case.seqlen_q}, columns {case.head_dim}, {case.dtype}"


LEVEL = Level(
    name="softmax",
    subjects=("softmax",),
    modes={"fwd": Mode("fwd")},
    columns=Axis("seqlen_q", "seqlen", "rows", "Rows"),
    rows=Axis("head_dim", "head_dim", "columns", "Columns"),
    shape_sql="'matrix'",
    flops=flops,
    flops_source="Five operations per element.",
    bytes_moved=bytes_moved,
    bytes_source="Every element read once and written once.",
    memory=memory,
    words=words,
    short=words,
)
