"""FlashTile's benchmark_results.json (iamrahulreddy/FlashTile): attention modules by sequence length.

Out of memory stands as `Infinity` in time and memory, which is no JSON but what Python writes and reads. Times are
milliseconds, memory is in MB of 2^20 bytes.
"""

from __future__ import annotations

import math
from typing import Any

from results.formats.peers.collected import CellFault, Collected, checked, document, mapping, text, whole
from results.formats.upload import Understanding, Upload
from results.records import Case, Status

NAME = "flashtile"
DESCRIPTION = "FlashTile's benchmark_results.json"
SOURCE = "FlashTile"
BASELINE = "Naive"
MARKERS = ('"config"', '"results"', '"seq_lengths"', '"memory_mb"', '"time_ms"')

_ASSUMED = (
    "Every row is the forward pass of an attention module with its projections (level layer): FlashTile times modules "
    "by wall clock around a synchronised call.",
    "The file names no dtype; FlashTile's benchmark has none to choose and runs float32.",
    "Infinity stands for out of memory. Speedups and memory reductions are over Naive.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a document, nothing to say otherwise."""
    found = document(upload, *MARKERS)
    fits = isinstance(found, dict) and isinstance(found.get("config"), dict) and isinstance(found.get("results"), dict)
    return None if fits else ""


def understand(upload: Upload) -> Understanding:
    """Return latency, peak memory, speedup and memory reduction of each module and length."""
    found = document(upload, *MARKERS)
    collected = Collected(upload, NAME, unit="entry")
    config, entry = found["config"], 0
    for name, result in found["results"].items():
        for at in range(_count(result)):
            entry += 1
            with collected.row(entry, name):
                _row(collected, entry, config, text(name, "results"), mapping(result, name), at)
                _ratios(collected, entry, found, config, name, result, at)
    systems = len(found["results"])
    return collected.understanding(f"JSON, {entry:,} results of {systems} modules of FlashTile", assumptions=_ASSUMED)


def _count(result: Any) -> int:
    """Return how many lengths a module has; one for a malformed module, so that it is refused."""
    lengths = result.get("seq_lengths") if isinstance(result, dict) else None
    return min(len(lengths), 10_000) if isinstance(lengths, list) else 1


def _case(config: dict[str, Any], name: str, result: dict[str, Any], at: int) -> Case:
    seqlen = whole(_at(result, "seq_lengths", at), "seq_lengths")
    heads, width = whole(config.get("num_heads"), "num_heads"), whole(config.get("embed_dim"), "embed_dim")
    causal = config.get("causal")
    if width % heads or not (causal is None or isinstance(causal, bool)):
        raise CellFault("config", repr((width, heads, causal))[:80], "has no width of a head, or causal is no boolean")
    grouped = name == "GQA"
    return Case(
        level="layer",
        subject="gqa_bias" if grouped else "mha_fused_bias",
        batch=whole(config.get("batch_size"), "batch_size"),
        num_heads=heads,
        num_kv_heads=None if grouped else heads,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        head_dim=width // heads,
        head_dim_v=width // heads,
        dtype="float32",
        causal=causal,
        window_size=0,
        page_size=0,
        latent_dim=0,
    )


def _row(collected: Collected, entry: int, config: dict[str, Any], name: str, result: dict[str, Any], at: int) -> None:
    known = {"case": _case(config, name, result, at), "implementation": f"{name} ({SOURCE})", "mode": "fwd"}
    known["run_id"] = collected.run(None)
    for column, metric in (("time_ms", "latency_ms"), ("memory_mb", "peak_memory_mb")):
        number = _at(result, column, at)
        timing = "eager" if metric == "latency_ms" else None
        if isinstance(number, float) and not math.isfinite(number):
            note = f"the file says {number}"
            collected.add(
                entry, column, metric=metric, timing=timing, status=Status.OOM, note=note, printed=repr(number), **known
            )
            continue
        spread = _at(result, "time_std", at) if timing and isinstance(result.get("time_std"), list) else None
        std = checked(spread, "time_std") if spread else None
        value = checked(number, column)
        statistic = "mean" if timing else "max"
        collected.add(
            entry, column, metric=metric, timing=timing, value=value, mean=value if timing else None, std=std,
            statistic=statistic, printed=repr(number), **known,
        )  # fmt: skip


def _ratios(
    collected: Collected,
    entry: int,
    found: dict[str, Any],
    config: dict[str, Any],
    name: str,
    result: dict[str, Any],
    at: int,
) -> None:
    """Take the printed speedup and memory reduction of a module but the baseline; NaN where one ran out of memory."""
    for part, metric, timing in (("speedups", "speedup", "eager"), ("reductions", "memory_reduction", None)):
        of_part = found.get(part)
        ratios = of_part.get(name) if isinstance(of_part, dict) else None
        if name == BASELINE or not isinstance(ratios, list) or at >= len(ratios):
            continue
        ratio = ratios[at]
        if isinstance(ratio, float) and not math.isfinite(ratio) or ratio == 0:
            collected.left_out[f"{part} of which one side ran out of memory"] += 1
            continue
        collected.add(
            entry, part, metric=metric, timing=timing, value=checked(ratio, part), statistic="printed",
            baseline=f"{BASELINE} ({SOURCE})", printed=repr(ratio), case=_case(config, name, result, at), mode="fwd",
            implementation=f"{name} ({SOURCE})", run_id=collected.run(None),
        )  # fmt: skip


def _at(result: dict[str, Any], column: str, at: int) -> Any:
    numbers = result.get(column)
    if not isinstance(numbers, list) or at >= len(numbers):
        raise CellFault(column, "", f"has no number {at + 1}, although seq_lengths has one")
    return numbers[at]
