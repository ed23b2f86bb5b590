"""FlashTile's benchmark_results.json; flashtile.toml describes the formats."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from results.formats.errors import CellError
from results.formats.peers.engine import peers_of
from results.formats.peers.sources import Entry, Found, Row, objects, row_of
from results.formats.tables import MAX_ROWS
from results.formats.upload import Upload

_BASELINE = "Naive"
_LISTS = {"seq_lengths": True, "time_ms": True, "memory_mb": True, "time_std": False}  # whether each is required
_RATIOS = ("speedups", "reductions")


def _find(upload: Upload) -> Found | None:
    """Return one entry for each module and length."""
    found = objects(upload, ("config", "results"), ("seq_lengths", "memory_mb", "time_ms"), "entry")
    document = found.entries[0].value if found and len(found.entries) == 1 else {}
    config, results = document.get("config"), document.get("results")
    if not isinstance(config, dict) or not isinstance(results, dict):
        return None
    shared = row_of(Entry(0, config))
    pairs = ((name, at) for name, result in results.items() for at in range(_count(result)))
    numbered = enumerate(islice(pairs, MAX_ROWS), start=1)
    return replace(found, entries=[Entry(place, (shared, document, *pair), pair[0]) for place, pair in numbered])


def _count(result: Any) -> int:
    """Return how many lengths a module has; one for a malformed module, so that it is refused."""
    lengths = result.get("seq_lengths") if isinstance(result, dict) else None
    return len(lengths) if isinstance(lengths, list) else 1


def _split(entry: Entry) -> Iterator[Row | str]:
    shared, document, name, at = entry.value
    result, said = document["results"][name], {"name": name}
    for column, required in _LISTS.items():
        numbers = result.get(column) if isinstance(result, dict) else None
        if isinstance(numbers, list) and at < len(numbers):
            said[column] = numbers[at]
        elif required or isinstance(numbers, list):
            raise CellError(f"has no number {at + 1} in {column}")
    for column in _RATIOS:
        part = document.get(column)
        ratios = part.get(name) if isinstance(part, dict) and name != _BASELINE else None
        ratio = ratios[at] if isinstance(ratios, list) and at < len(ratios) else None
        if ratio == 0 or isinstance(ratio, float) and not math.isfinite(ratio):
            yield f"{column} of which one side ran out of memory"
            ratio = None
        said[column] = ratio
    yield replace(shared, place=entry.place, said=said)


def _case(row: Row) -> dict[str, Any]:
    heads, width, causal = (row.value(name) for name in ("num_heads", "embed_dim", "causal"))
    whole = all(type(number) is int and number > 0 for number in (heads, width))
    if not whole or width % heads or not (causal is None or isinstance(causal, bool)):
        raise CellError("has no width of a head in config, or causal is no boolean")
    grouped = row.text("name") == "GQA"
    return {
        "subject": "gqa_bias" if grouped else "mha_fused_bias",
        "num_kv_heads": None if grouped else heads,
        "head_dim": width // heads,
        "head_dim_v": width // heads,
        "causal": causal,
    }


(PEER,) = peers_of(__file__, globals())
