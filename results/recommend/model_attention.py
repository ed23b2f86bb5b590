"""The fastest attention kernel inside a model: the winner at the nearest measured shape of one layer.

Its time is scaled to the requested shape, by the FLOPs of a prefill or a training step and by the bytes of a decoding
step. The scaled time is good only near the measured shape, because a kernel reaches fewer FLOP/s on short sequences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from results import levels
from results.implementations import facts_of
from results.query.declared import of_rows
from results.records import Case, attention_case, decode_case
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

_PASSES = {"train": ("fwd", "bwd"), "prefill": ("fwd",), "decode": ("decode",)}
_HEADS = 0.5  # weight of a factor of two in batch times heads; in the sequence it is 1
_GROUPS = 0.5  # weight of another number of query heads per key head


@dataclass(frozen=True)
class LayerTime:
    """The fastest attention of one layer, scaled to the shape of a model."""

    implementation: str
    layer_ms: float  # all passes of one layer, at the requested shape
    measured: Case
    factor: float  # FLOPs or bytes of the requested shape over the measured one
    run_id: str
    source: str = "local"
    compared: int = 2  # implementations timed at the measured shape; the only one is no winner
    estimated_by: str | None = None  # another GPU of which the time is, scaled by the data sheets


def gpus(store: Store) -> list[str]:
    """Return the GPUs with times of attention by operator or decoding step, most numbers first."""
    return [gpu for (gpu,) in store.kept(_SQL("gpus"))]


def fastest(store: Store, gpu: str, case: Case, mode: str, without: Sequence[str] = ()) -> LayerTime | None:
    """Return the fastest attention of one layer of a model in a mode: train, prefill or decode.

    None if the GPU has no time of that dtype, mask and head_dim. Implementations that compute in less than the dtype's
    precision are left out. Training with recomputed activations has the forward twice. Shapes that compare several
    implementations come before shapes with only one. Implementations in `without` do not count.
    """
    asked, passes = _layer(case, mode), _PASSES[mode]
    counted = ("fwd", *passes) if mode == "train" and case.checkpointing else passes
    said = of_rows(store, asked.level)
    times: dict[tuple[str, str, Case], dict[str, dict[str, float]]] = {}
    for row in _rows(store, gpu, asked, passes):
        if row["implementation"] not in without and not facts_of(row["implementation"], said, row["run_id"]).reduced:
            measured = Case(**{field.name: row[field.name] for field in fields(Case)})
            of_name = times.setdefault((row["run_id"], row["source"], measured), {}).setdefault(
                row["implementation"], {}
            )
            of_name[row["mode"]] = row["value"]
    found = []
    for (run, source, measured), of_names in times.items():
        whole = {name: of_modes for name, of_modes in of_names.items() if set(passes) <= set(of_modes)}
        scaled = (_scaled(name, of_modes, counted, measured, asked, run) for name, of_modes in whole.items())
        found += [replace(time, source=source, compared=len(whole)) for time in scaled]
    return min(
        found, key=lambda time: (time.compared < 2, _distance(time.measured, asked), time.layer_ms), default=None
    )


def _layer(case: Case, mode: str) -> Case:
    """Return the case of the attention in one layer of a model."""
    sizes: dict[str, Any] = {"batch": case.batch, "num_heads": case.num_heads, "num_kv_heads": case.num_kv_heads}
    sizes |= {"head_dim": case.head_dim, "dtype": case.dtype, "window_size": case.window_size or 0}
    if mode == "decode":
        return decode_case(**sizes, context=case.seqlen_k, cache_dtype=case.cache_dtype)
    return attention_case(**sizes, seqlen=case.seqlen_k, causal=True, head_dim_v=case.head_dim_v)


def _rows(store: Store, gpu: str, asked: Case, passes: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """Return the times on a GPU of cases that differ only in sizes, in one timing: kernel time if there is any."""
    table = store.query(
        _SQL("rows"),
        [asked.level, gpu, list(passes), asked.dtype, asked.head_dim, asked.head_dim_v, asked.window_size]
        + [asked.cache_dtype or asked.dtype, asked.level],
    )
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _distance(measured: Case, asked: Case) -> float:
    """Return the distance of a measured shape from the requested one, in factors of two."""
    rows = (measured.batch * measured.num_heads) / (asked.batch * asked.num_heads)
    group = measured.num_heads * asked.num_kv_heads != asked.num_heads * measured.num_kv_heads
    return abs(math.log2(measured.seqlen_k / asked.seqlen_k)) + _HEADS * abs(math.log2(rows)) + _GROUPS * group


def _scaled(
    name: str, of_modes: Mapping[str, float], passes: Sequence[str], measured: Case, asked: Case, run: str
) -> LayerTime:
    size = levels.bytes_moved if levels.level_of(asked).memory_bound else levels.flops
    factor = size(asked, passes[0]) / size(measured, passes[0])
    return LayerTime(name, factor * sum(of_modes[each] for each in passes), measured, factor, run)
