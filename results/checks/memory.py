"""Memory below what the tensors alone take, above what the device has, or out of it where it cannot be."""

import math
import re
from collections.abc import Sequence
from operator import attrgetter

from results.checks.finding import Found, Numbers, printed_range, said
from results.gpus import bounds_of, find
from results.levels import level_of
from results.levels.tensors import DTYPE_BYTES, MIB, tensor_bytes
from results.records import Case, Measurement, Status, case_to_json, compatible

# Largest shared memory of one block in KiB by compute capability: CUDA C++ Programming Guide, table "Technical
# Specifications per Compute Capability".
SHARED_KB = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}
_SIZE = re.compile(r"-(\d+(?:\.\d+)?)([bm])$")
_FALLEN = 0.9  # share of the memory at half the length
_WORKSPACE_MB = 64  # workspace that a kernel may use at some lengths only
_TIMES_THE_NEED, _LIBRARIES_MB = 20, 512.0  # workspaces of libraries
_LARGER = 2  # times the bytes: less can be a conversion that only the smaller dtype needs
_OTHER_LIMIT = re.compile("shared memory|smem|register|out of resources", re.IGNORECASE)
_DEVICE, _ROUNDED = re.compile(r"GiB(?:, the device has| of) (\d+\.\d+)"), 0.02
_SMALLEST_SAID = 0.9  # "7B" is 6.74e9: parameters in a model's name are rounded up by up to a tenth


def below_floor(numbers: Numbers) -> Found:
    """Less than q, k, v and out take, or one score matrix where the algorithm keeps it."""
    for m in numbers.of("peak_memory_mb", "attention_memory_mb", "kv_cache_mb"):
        least, of_what = _floor(m, numbers.facts(m).memory.growth) or (-math.inf, "")
        if printed_range(m)[1] < least:
            times = f" ({2 * least / m.value:.3g} times that)" if m.value else ""
            usual = "" if m.case.dtype else f", {2 * least:.0f} MiB at 16 bits{times}"
            size = f" in {m.case.dtype}" if m.case.dtype else " even at one byte a number"
            yield said("below_floor", m, of_what=of_what, least=least, size=size, usual=usual)


def falls_with_seqlen(numbers: Numbers) -> Found:
    """Less memory for a longer sequence."""
    for rows in numbers.over_seqlen("peak_memory_mb"):
        for shorter, longer in zip(rows, rows[1:], strict=False):
            if shorter.value > _WORKSPACE_MB and printed_range(longer)[1] < _FALLEN * printed_range(shorter)[0]:
                yield said("memory_falls", longer, shorter)


def far_above_need(numbers: Numbers) -> Found:
    """A hundred times what every tensor and ten float32 score matrices take: another unit was read."""
    for m in numbers.of("peak_memory_mb"):
        sizes = tensor_bytes(case_to_json(m.case)) if level_of(m.case).one_attention else None
        if sizes is None:
            continue
        scores = 4.0 * m.case.batch * m.case.num_heads * m.case.seqlen_q * m.case.seqlen_k
        most = (4 * (sizes.q + sizes.k + sizes.v + sizes.out) + 10 * scores) / MIB + _LIBRARIES_MB
        if m.value > _TIMES_THE_NEED * most:
            yield said("far_above_need", m, times=m.value / most, most=most)


def above_device(numbers: Numbers) -> Found:
    """More than the device has: a peak, or a model whose weights do not fit it."""
    for m in numbers.of("peak_memory_mb", "samples_per_s", "tokens_per_s", "latency_ms"):
        chip = bounds_of(numbers.run(m).gpu_name)
        has = numbers.run(m).gpu_memory_mb or (1024 * chip.memory_gb if chip.known else math.inf)
        if m.metric == "peak_memory_mb":
            if printed_range(m)[0] > has:
                yield said("above_device", m, has=has)
            continue
        floor = _floor(m, numbers.facts(m).memory.growth) if m.case.dtype else None
        needs, of_what = floor or (weights_mb(m.case) or 0.0, "its weights alone")
        if needs > has:
            facts = {"of_what": of_what, "needs": needs / 1024, "dtype": in_dtype(m.case)}
            yield said("above_device needs", m, has=has / 1024, **facts)


def of_another_device(numbers: Numbers) -> Found:
    """The memory of the device, as the note of a cell that did not fit says it, is not that of its run."""
    for m in numbers.rows:
        has, says = numbers.run(m).gpu_memory_mb, _DEVICE.search(m.note or "")
        if has and says and m.status is not Status.OK and abs(1024 * float(says[1]) / has - 1) > _ROUNDED:
            yield said("other_memory", m, says=says[1], has=has / 1024)


def not_out_of_memory(numbers: Numbers) -> Found:
    """Out of memory where a larger case of the same implementation ran, and nothing says which other limit it was."""
    series = attrgetter("run_id", "implementation", "mode", "metric")
    ran = numbers.grouped(series, "latency_ms", "peak_memory_mb")
    for m in numbers.rows:
        of_memory = m.status is Status.OOM and not _OTHER_LIMIT.search(f"{m.note} {m.printed}")
        if larger := _largest_that_ran(ran.get(series(m), ()), m) if of_memory else None:
            yield said("not_out_of_memory", m, larger, times=_size(larger.case) / _size(m.case))


def above_shared_memory(numbers: Numbers) -> Found:
    """More shared memory a block than the device gives one."""
    for m in numbers.of("shared_memory_kb"):
        run = numbers.run(m)
        chip = find(run.gpu_name)
        capability = run.compute_capability or (chip.compute_capability if chip else None)
        limit = SHARED_KB.get(capability or "", max(SHARED_KB.values()))
        if printed_range(m)[0] > limit:
            whose = f"compute capability {capability}" if capability in SHARED_KB else "any device known here"
            yield said("above_shared_memory", m, whose=whose, limit=limit)


def _floor(m: Measurement, kind: str | None) -> tuple[float, str] | None:
    """Return the least MiB of what the metric counts, and what it is made of; one byte a number if no dtype is said.

    Deliberately low: one score matrix where the algorithm keeps one or more, one head of keys where their number is
    not said, nothing for gradients.
    """
    case = m.case
    sizes = (case.batch, case.num_heads, case.seqlen_q, case.seqlen_k, case.head_dim)
    if None in sizes or not level_of(case).one_attention:
        return None
    size = DTYPE_BYTES[case.dtype or "float8_e4m3fn"] / MIB
    keys = case.batch * (case.num_kv_heads or 1) * case.seqlen_k * (case.head_dim + (case.head_dim_v or case.head_dim))
    if m.metric == "kv_cache_mb":
        return keys * size, "keys and values together"
    if kind == "matrix":
        shape = (case.batch, case.num_heads, case.seqlen_q, case.seqlen_k)
        return math.prod(shape) * size, f"one score matrix of {' x '.join(map(str, shape))}"
    if m.metric == "attention_memory_mb":
        return None
    if kind is None:
        inputs = case.batch * case.num_heads * case.seqlen_q * case.head_dim + keys
        return inputs * size, "q, k and v together"
    queries = case.batch * case.num_heads * case.seqlen_q * (case.head_dim + (case.head_dim_v or case.head_dim))
    return (queries + keys) * size, "q, k, v and out together"


def parameters(case: Case) -> float | None:
    """Return the fewest parameters that the name of a model can mean; None if it says no number."""
    match = _SIZE.search(case.subject or "") if level_of(case).whole_model else None
    return float(match[1]) * {"b": 1e9, "m": 1e6}[match[2]] * _SMALLEST_SAID if match else None


def weights_mb(case: Case) -> float | None:
    """Return the weights by the parameters in the model's name; 16 bits each where the dtype is not said."""
    count = parameters(case)
    return count and count * DTYPE_BYTES.get(case.dtype or "float16", 2) / MIB


def in_dtype(case: Case) -> str:
    """Return the dtype in words; 16 bits where none is said."""
    return f" in {case.dtype}" if case.dtype else " at 16 bits"


def _largest_that_ran(ran: Sequence[Measurement], m: Measurement) -> Measurement | None:
    least = _LARGER * _size(m.case)
    larger = [
        other
        for other in ran
        if least
        and _size(other.case) >= least
        and compatible(m.case, other.case, but=("seqlen_q", "seqlen_k", "dtype"))
    ]
    return max(larger, key=lambda other: _size(other.case), default=None)


def _size(case: Case) -> float:
    """Return the bytes of a tensor of the case but for batch, heads and head_dim; 0 if it is not said."""
    return (case.seqlen_k or 0) * DTYPE_BYTES.get(case.dtype or "", 0)
