"""Liger-Kernel's long benchmark table; liger.toml describes the formats."""

from collections.abc import Iterator
from typing import Any

from results.formats import values
from results.formats.peers.engine import dtype, peers_of
from results.formats.peers.sources import Row

_METRICS = {("speed", "ms"): "latency_ms", ("memory", "MB"): "peak_memory_mb"}
_LENGTHS = ("seq_len", "L", "T")
_LAYER = "fused_neighborhood_attention"  # its module projects q, k and v from hidden_size
_EXTRA = "extra_benchmark_config_str"


def _metric(row: Row) -> str:
    metric = _METRICS.get((row.text("metric_name"), row.text("metric_unit")))
    if metric is None:
        raise row.fault("metric_name", f"in {row.text('metric_unit')[:40]} is neither speed in ms nor memory in MB")
    return metric


def _other(row: Row) -> str | None:
    return None if "attention" in row.text("kernel_name") else row.text("kernel_name")


def _implementation(row: Row) -> Iterator[str | None]:
    provider = row.need("kernel_provider")
    yield provider
    yield row.read("liger_version") if provider.startswith("liger") else None


def _case(row: Row) -> dict[str, Any]:
    """Return the case; settings that a case has no field for become part of the subject."""
    row.one_of("x_name", _LENGTHS)
    kernel, extra = row.need("kernel_name"), row.read(_EXTRA, values.strict_json) or {}
    if not isinstance(extra, dict):
        raise row.fault(_EXTRA, "is not an object")
    batch = extra.pop("batch_size", extra.pop("B", None))
    known = {"batch_size": batch, **{name: extra.pop(name, None) for name in ("num_heads", "hidden_size", "dtype")}}
    said = row.having(**known)
    heads, hidden = said.read("num_heads", values.whole), said.read("hidden_size", values.whole)
    head_dim = (hidden // heads or None) if hidden and heads else None
    rest = ", ".join(f"{name} {value}" for name, value in sorted(extra.items()))
    return {
        "level": "layer" if kernel == _LAYER else "op",
        "subject": values.words(f"{kernel} {rest}".strip()),
        "batch": said.read("batch_size", values.whole),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim,
        "dtype": said.read("dtype", dtype),
    }


(PEER,) = peers_of(__file__, globals())
