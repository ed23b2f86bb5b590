"""vLLM's attention benchmark (vllm-project/vllm, benchmarks/attention_benchmarks): its JSON array or its CSV.

Times are seconds of one layer's attention: CUDA events around all layers, divided by their number. `batch_spec` says
the lengths: `32q1s8k` is 32 requests of one query token and 8192 keys. The CSV has no heads, no dtype and no column
for errors; an error has throughput 0 there.
"""

from __future__ import annotations

import math
import re
from typing import Any

from results.formats import values
from results.formats.errors import CellError
from results.formats.peers.collected import (
    CellFault,
    Cells,
    Collected,
    checked,
    columns_of,
    document,
    failure_of,
    mapping,
    not_finite,
    positive,
    rows_of,
    sheet_with,
    telling_line,
    text,
    whole,
)
from results.formats.upload import Understanding, Upload
from results.records import Case, Status

NAME = "vllm_attention"
DESCRIPTION = "the JSON or CSV of vLLM's attention benchmark"
SOURCE = "vllm"
COLUMNS = ("backend", "batch_spec", "num_layers", "kv_cache_dtype", "mean_time", "std_time", "throughput", "memory_mb")
FIELDS = ("config", "mean_time", "std_time", "throughput_tokens_per_sec", "error")
MOST_TOKENS = 16  # query tokens of a sequence up to which a request is decoding

_SPEC = re.compile(r"(?P<count>\d{1,6})?q(?P<q>\d{1,7})(?P<qk>k?)(?:s(?P<s>\d{1,7})(?P<sk>k?))?", re.ASCII)
_MEANINGS = {
    "backend": "implementation",
    "batch_spec": "level, batch, seqlen_q and seqlen_k",
    "kv_cache_dtype": "implementation",
    "mean_time": "latency_ms, from seconds",
    "std_time": "standard deviation of mean_time",
}
_ASSUMED = (
    "Times are seconds of one layer in the file and become milliseconds.",
    f"Requests of up to {MOST_TOKENS} query tokens against a longer cache are decoding, the others a forward pass. "
    "Both are causal, aligned bottom-right.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a file, nothing to say otherwise."""
    return None if sheet_with(upload, COLUMNS) or _entries(upload) else ""


def understand(upload: Upload) -> Understanding:
    """Return the mean time of each row, or its failure."""
    entries = _entries(upload)
    collected = Collected(upload, NAME, unit="entry" if entries else "line")
    columns = ()
    for place, entry in enumerate(entries, start=1):
        with collected.row(place):
            _entry(collected, place, mapping(entry, "entry"))
    if not entries:
        sheet = sheet_with(upload, COLUMNS)
        assert sheet is not None  # reason_against has seen it
        columns = columns_of(sheet, _MEANINGS)
        for line, cells in rows_of(collected, sheet):
            with collected.row(line, ", ".join(cells.row)):
                _line(collected, line, cells)
    return collected.understanding("results of vLLM's attention benchmark", columns=columns, assumptions=_ASSUMED)


def _entries(upload: Upload) -> list[Any]:
    found = document(upload, *(f'"{name}"' for name in FIELDS), '"batch_spec"')
    fits = isinstance(found, list) and found and isinstance(found[0], dict) and set(FIELDS) <= set(found[0])
    return found if fits else []


def _lengths(spec: str) -> tuple[int, int, int] | None:
    """Return batch, query tokens and keys of a spec; None if its requests differ. Raises CellFault."""
    found: dict[tuple[int, int], int] = {}
    for part in spec.split("_"):
        match = _SPEC.fullmatch(part)
        if match is None:
            raise CellFault("batch_spec", spec[:80], "is not like 32q1s8k or 2q1k_32q1s1k")
        query = int(match["q"]) * (1024 if match["qk"] else 1)
        keys = int(match["s"]) * (1024 if match["sk"] else 1) if match["s"] else query
        found[query, keys] = found.get((query, keys), 0) + int(match["count"] or 1)
    if len(found) > 1:
        return None
    ((query, keys), count) = next(iter(found.items()))
    return count, query, keys


def _case(spec: str, **shape: Any) -> Case | None:
    """Return the case of a spec with what else is known of the shape; None if the requests differ."""
    lengths = _lengths(spec)
    if lengths is None:
        return None
    batch, query, keys = lengths
    decode = query <= MOST_TOKENS and query < keys
    return Case(
        level="decode" if decode else "op",
        batch=batch,
        seqlen_q=query,
        seqlen_k=keys,
        causal=True,
        **shape,
    )


def _add(collected: Collected, place: int, case: Case | None, known: dict[str, Any]) -> None:
    if case is None:
        collected.left_out["batches of requests that differ in length"] += 1
        return
    mode = "decode" if case.level == "decode" else "fwd"
    collected.add(place, "mean_time", case=case, mode=mode, metric="latency_ms", run_id=collected.run(None), **known)


def _name(backend: str, kv_dtype: str) -> str:
    other = f" kv {kv_dtype}" if kv_dtype not in ("", "auto") else ""
    return values.words(f"{backend}{other} ({SOURCE})")


def _line(collected: Collected, line: int, cells: Cells) -> None:
    """Take a row of the CSV."""
    case = _case(cells.need("batch_spec", values.words))
    printed = cells.text("mean_time")
    known: dict[str, Any] = {
        "implementation": _name(cells.need("backend", values.words), cells.text("kv_cache_dtype")),
        "printed": f"{printed} s",
    }
    failed = cells.text("throughput") in ("0", "0.0", "")
    if not_finite(printed) or (failed and printed in ("0", "0.0", "")):
        _add(collected, line, case, known | {"status": Status.ERROR, "note": "the file says no time and no reason"})
        return
    mean = 1000 * cells.need("mean_time", positive)
    spread = cells.read("std_time", lambda cell: values.number(cell, minimum=0))
    known |= {"value": mean, "mean": mean, "statistic": "mean", "std": None if spread is None else spread * 1000}
    _add(collected, line, case, known)


def _entry(collected: Collected, place: int, entry: dict[str, Any]) -> None:
    """Take an entry of the JSON."""
    config = mapping(entry.get("config"), "config")
    spec = text(config.get("batch_spec"), "batch_spec")
    case = _case(spec, **_shape(config, spec))
    seconds = entry.get("mean_time")
    known: dict[str, Any] = {
        "implementation": _name(text(config.get("backend"), "backend"), str(config.get("kv_cache_dtype", ""))[:40]),
        "printed": f"{seconds!r:.40} s",
    }
    if entry.get("error") is not None:
        message = str(entry["error"])[:20_000]
        _add(collected, place, case, known | {"status": failure_of(message), "note": telling_line(message)})
        return
    mean, median, spread = (entry.get(name) for name in ("mean_time", "median_time", "std_time"))
    value = 1000 * checked(mean if median is None else median, "median_time")
    std = 1000 * checked(spread, "std_time") if spread and math.isfinite(checked(spread, "std_time")) else None
    known |= {"value": value, "mean": 1000 * checked(mean, "mean_time"), "std": std}
    _add(collected, place, case, known | {"statistic": "mean" if median is None else "median"})


def _shape(config: dict[str, Any], spec: str) -> dict[str, Any]:
    """Return the heads, widths, dtype and page size of a configuration."""
    lengths = _lengths(spec)
    decode = lengths is not None and lengths[1] <= MOST_TOKENS and lengths[1] < lengths[2]
    latent = config.get("kv_lora_rank")
    head_dim = whole(config.get("head_dim"), "head_dim")
    width_v = config.get("v_head_dim")
    shape: dict[str, Any] = {
        "num_heads": whole(config.get("num_q_heads"), "num_q_heads"),
        "num_kv_heads": whole(config.get("num_kv_heads"), "num_kv_heads"),
        "dtype": _dtype(config.get("dtype")),
        "page_size": whole(config.get("block_size"), "block_size"),
        "window_size": 0,
    }
    if latent is None:
        width = whole(width_v, "v_head_dim") if width_v else head_dim
        return shape | {"head_dim": head_dim, "head_dim_v": width, "latent_dim": 0}
    rank = whole(latent, "kv_lora_rank")
    if decode:
        return shape | {"subject": "mla", "head_dim": head_dim, "head_dim_v": rank, "latent_dim": rank}
    return shape | {"subject": "mla", "latent_dim": rank}  # a prompt's widths depend on the backend's path


def _dtype(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return values.dtype(str(value)[:40])
    except CellError as error:
        raise CellFault("dtype", str(value)[:40], str(error)) from error
