"""Liger-Kernel's long benchmark table (linkedin/Liger-Kernel, benchmark/data/all_benchmark_data*.csv).

One number a row: `speed` in ms or `memory` in MB of 2^20 bytes, the median with the 20 % and 80 % quantiles. One file
mixes GPUs and Liger versions, so each pair of them is a run. Most kernels are no attention and are left out.
"""

from __future__ import annotations

from collections import Counter

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
    whole,
)
from results.formats.upload import Understanding, Upload
from results.records import Case

NAME = "liger"
DESCRIPTION = "Liger-Kernel's benchmark table"
SOURCE = "Liger-Kernel"
COLUMNS = (
    *("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_value"),
    *("y_value_50", "y_value_20", "y_value_80", "extra_benchmark_config_str", "gpu_name", "liger_version"),
)
METRICS = {("speed", "ms"): "latency_ms", ("memory", "MB"): "peak_memory_mb"}
MODES = {"forward": "fwd", "backward": "bwd", "full": "fwd_bwd"}

_LENGTHS = ("seq_len", "L", "T")
_MEANINGS = {
    "kernel_name": "subject",
    "kernel_provider": "implementation",
    "kernel_operation_mode": "mode",
    "metric_name": "metric",
    "metric_unit": "metric",
    "x_name": "seqlen_q and seqlen_k",
    "x_value": "seqlen_q and seqlen_k",
    "y_value_50": "median",
    "y_value_20": "p20",
    "y_value_80": "p80",
    "extra_benchmark_config_str": "batch, num_heads, dtype and subject",
    "gpu_name": "gpu_name",
    "liger_version": "run and implementation",
}
_LAYER = "fused_neighborhood_attention"  # its module projects q, k and v from hidden_size


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a table, otherwise which columns it lacks, or "" if it lacks most of them."""
    return lacking(upload, COLUMNS)


def understand(upload: Upload) -> Understanding:
    """Return the rows of attention kernels, one run for each GPU and Liger version."""
    sheet = sheet_with(upload, COLUMNS)
    assert sheet is not None  # reason_against has seen it
    collected = Collected(upload, NAME)
    others: Counter[str] = Counter()
    for line, cells in rows_of(collected, sheet):
        kernel = cells.text("kernel_name")
        if "attention" not in kernel:
            others[kernel] += 1
            continue
        with collected.row(line, ", ".join(cells.row)):
            _row(collected, line, cells)
    if others:
        named = ", ".join(sorted(others)[:40])
        collected.left_out[f"rows of kernels that are no attention: {named}"[:1000]] = others.total()
    return collected.understanding(
        f"{sheet.description}, {len(sheet.rows):,} rows of Liger-Kernel's benchmarks",
        columns=columns_of(sheet, _MEANINGS),
        assumptions=(
            "Values are medians with the 20 % and 80 % quantiles; MB are 2^20 bytes.",
            "What a kernel has beyond the fields of a case (its window, dilation, channels) stands in the subject.",
        ),
    )


def _row(collected: Collected, line: int, cells: Cells) -> None:
    said = ("metric_name", "metric_unit")
    metric = METRICS.get((cells.text(said[0]), cells.text(said[1])))
    if metric is None:
        raise CellFault("metric_name", " in ".join(map(cells.text, said)), "is neither speed in ms nor memory in MB")
    mode = MODES.get(cells.text("kernel_operation_mode"))
    if mode is None:
        raise CellFault(
            "kernel_operation_mode", cells.text("kernel_operation_mode"), f"is not one of {', '.join(MODES)}"
        )
    gpu, liger = (cells.read(name, values.words) for name in ("gpu_name", "liger_version"))
    provider = cells.need("kernel_provider", values.words)
    version = liger if provider.startswith("liger") else None
    collected.add(
        line,
        "y_value_50",
        run_id=collected.run((gpu, liger), title=f"Liger-Kernel {liger}, {gpu}", gpu_name=gpu),
        case=_case(cells),
        implementation=" ".join(part for part in (provider, version, f"({SOURCE})") if part),
        metric=metric,
        mode=mode,
        value=cells.need("y_value_50", positive),
        statistic="median",
        p20=cells.read("y_value_20", positive),
        p80=cells.read("y_value_80", positive),
        printed=cells.text("y_value_50"),
    )


def _case(cells: Cells) -> Case:
    if cells.text("x_name") not in _LENGTHS:
        raise CellFault("x_name", cells.text("x_name"), f"is not a length ({', '.join(_LENGTHS)})")
    kernel = cells.need("kernel_name", values.words)
    seqlen = cells.need("x_value", values.whole)
    extra = cells.read("extra_benchmark_config_str", values.strict_json) or {}
    if not isinstance(extra, dict):
        raise CellFault("extra_benchmark_config_str", str(extra)[:80], "is not an object")
    batch = extra.pop("batch_size", extra.pop("B", None))
    heads, hidden, dtype = (extra.pop(name, None) for name in ("num_heads", "hidden_size", "dtype"))
    layer = kernel == _LAYER
    head_dim = whole(hidden, "hidden_size") // whole(heads, "num_heads") if hidden and heads else None
    rest = ", ".join(f"{name} {value}" for name, value in sorted(extra.items()))
    return Case(
        level="layer" if layer else "op",
        subject=values.words(f"{kernel} {rest}".strip()),
        batch=whole(batch, "batch_size") if batch is not None else None,
        num_heads=whole(heads, "num_heads") if heads is not None else None,
        num_kv_heads=whole(heads, "num_heads") if heads is not None else None,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        head_dim=head_dim or None,
        head_dim_v=head_dim or None,
        dtype=values.dtype(str(dtype)) if dtype is not None else None,
    )
