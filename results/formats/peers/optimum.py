"""optimum-benchmark's results; optimum.toml describes the formats."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from results.formats import values
from results.formats.errors import CellError
from results.formats.peers.engine import Failure, Number, failure_of, peers_of, telling_line
from results.formats.peers.sources import Entry, Found, Row, objects, places_of, row_of, table
from results.formats.upload import Upload
from results.paths import toml_of

_TARGETS = toml_of(__file__)["words"]["targets"]
_PREFIXES = ("report.", "config.", "benchmark_report.", "benchmark_config.")
_OLD = {"forward": "prefill", "generate": None}  # targets of 2023, with their modes
_NAMES = re.compile(r"'([^']{1,200})'|\"([^\"]{1,200})\"")
_RATES = {"tokens/s": "tokens_per_s", "samples/s": "samples_per_s"}
_FAILED = Number("latency_ms", ("traceback",))
_SCENARIO = ("scenario.", "benchmark.")


def _find(upload: Upload) -> Found | None:
    """Return the rows of a CSV, or the one report of a JSON file."""
    columns = [f"{prefix}{target}.latency.mean" for target in _TARGETS for prefix in ("", *_PREFIXES)]
    for column in (*columns, *(f"{target}.latency(s)" for target in _OLD)):
        if found := table(upload, (column,)):
            names = [_short(name) for name in found.header]
            places = places_of(names)
            rows = [replace(entry, value=replace(entry.value, places=places)) for entry in found.entries]
            return replace(found, entries=rows, names=names)
    found = objects(upload, (), ("latency", "p50"), "report")
    if found is None or len(found.entries) != 1:
        return None
    row = row_of(found.entries[0], _short)
    return found if any(f"{target}.latency.mean" in row.places for target in _TARGETS) else None


def _short(name: str) -> str:
    """Return a path without the prefix of newer versions."""
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)


def _split(entry: Entry) -> Iterator[Row]:
    """Yield a row for each measured target, or one for a failure."""
    row = entry.value if isinstance(entry.value, Row) else row_of(entry, _short)
    if row.text("traceback"):
        yield row.having(mode="prefill")
        return
    found = [row.having(f"{target}.", mode=mode) for target, mode in _TARGETS.items() if _measured(row, target)]
    found += [_of_2023(row, target) for target in _OLD if row.text(f"{target}.latency(s)")]
    if not found:
        raise CellError(f"has none of the targets {', '.join(_TARGETS)} with a latency")
    yield from found


def _measured(row: Row, target: str) -> bool:
    """Return whether a target has numbers. `forward` repeats `prefill` where both exist."""
    names = ("latency.mean", "latency.p50", "throughput.value", "memory.max_allocated", "memory.max_reserved")
    repeats = target == "forward" and row.text("prefill.latency.mean")
    return not repeats and any(row.text(f"{target}.{name}") for name in names)


def _of_2023(row: Row, target: str) -> Row:
    note = "the generation with its prompt" if target == "generate" else None
    return row.having(f"{target}.", mode=_OLD[target], note=note)


def _time(row: Row) -> str | None:
    """Return the metric of the target's latency; the latency of `decode` is left out in favor of the rate."""
    if row.prefix == "decode.":
        return None
    if row.text("latency.mean") and row.text("latency.unit") not in ("", "s"):
        raise row.fault("latency.unit", "is not s")
    return "time_per_token_ms" if row.prefix == "per_token." else "latency_ms"


def _rate(row: Row) -> str | None:
    return None if row.prefix == "per_token." else _RATES.get(row.text("throughput.unit"))


def _memory(metric: str, row: Row) -> str | None:
    return None if row.prefix in ("per_token.", "forward.") else metric


_peak, _reserved = (partial(_memory, name) for name in ("peak_memory_mb", "reserved_memory_mb"))


def _first(row: Row, *names: str) -> str:
    return next((text for name in names if (text := row.text(name)) not in ("", "None")), "")


def _run(row: Row) -> dict[str, Any]:
    cpu, device = _first(row, "environment.cpu") or None, _first(row, "backend.device", "device")
    listed = _NAMES.findall(_first(row, "environment.gpu", "environment.gpus"))
    gpus = list(dict.fromkeys(single or double for single, double in listed))
    gpu = cpu if device == "cpu" else gpus[0] if len(gpus) == 1 else None
    known = device if device in ("cpu", "cuda") else None
    return {"key": (gpu, device), "gpu_name": gpu, "cpu": cpu, "device_type": known}


def _case(row: Row) -> dict[str, Any]:
    """Return the case of a pass: the prompt, one new token at its end, or a training step."""
    mode = row.value("mode")
    batch, prompt, new = (
        row.read(next((path for path in paths if _first(row, path)), paths[0]), values.whole)
        for paths in (
            [f"{part}input_shapes.batch_size" for part in _SCENARIO],
            [f"{part}input_shapes.sequence_length" for part in _SCENARIO],
            [f"{part}{name}" for name in ("generate_kwargs.max_new_tokens", "new_tokens") for part in _SCENARIO],
        )
    )
    dtype = _first(row, "backend.torch_dtype", "backend.dtype")
    return {
        "subject": values.words(_first(row, "backend.model", "model")) or None,
        "batch": batch,
        "seqlen_q": 1 if mode == "decode" else prompt,
        "seqlen_k": prompt if mode not in ("decode", None) else prompt + new if prompt and new else None,
        "dtype": values.dtype(dtype) if dtype not in ("", "auto") else None,
    }


def _implementation(row: Row) -> Iterator[str]:
    yield _first(row, "backend.name") or "backend not said"
    yield _first(row, "backend.attn_implementation")
    yield _first(row, "backend.quantization_scheme", "backend.quantization_strategy")
    yield "compiled" if _first(row, "backend.torch_compile") == "True" else ""
    better = _first(row, "backend.bettertransformer", "backend.to_bettertransformer")
    yield "bettertransformer" if better == "True" else ""


def _fails(row: Row) -> list[Failure]:
    message = row.text("traceback")
    return [Failure(_FAILED, failure_of(message), telling_line(message))] if message else []


(PEER,) = peers_of(__file__, globals())
