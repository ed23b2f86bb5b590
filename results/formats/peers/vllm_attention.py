"""vLLM's attention benchmark (vllm-project/vllm, benchmarks/attention_benchmarks): its JSON array or its CSV.

Times are the seconds of one layer's attention: CUDA events around all layers, divided by their number. `batch_spec` has
the lengths: `32q1s8k` is 32 requests of one query token and 8192 keys. The CSV has no heads, no dtype and no column
for errors; an error has throughput 0 there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from results.formats import values
from results.formats.peers.engine import Failure, Number, Peer, dtype, failure_of, not_finite, telling_line
from results.formats.peers.sources import Entry, Row, objects, row_of, table
from results.records import Status

_COLUMNS = ("backend", "batch_spec", "num_layers", "kv_cache_dtype", "mean_time", "std_time", "throughput", "memory_mb")
_FIELDS = ("config", "mean_time", "std_time", "throughput_tokens_per_sec", "error")
_MOST_TOKENS = 16  # the most query tokens of a request that counts as decoding
_SPEC = re.compile(r"(?P<count>\d{1,6})?q(?P<q>\d{1,7})(?P<qk>k?)(?:s(?P<s>\d{1,7})(?P<sk>k?))?", re.ASCII)
_TIME = Number(
    "latency_ms", ("median_time", "mean_time"), ("median", "mean"), scale=1000, unit=" s", mean="mean_time",
    std="std_time", required=True,
)  # fmt: skip


def _split(entry: Entry) -> Iterator[Row | str]:
    row = entry.value
    if not isinstance(row, Row):
        row = row_of(entry, lambda path: path.removeprefix("config."))
        row.need("num_q_heads", values.whole)
    found: dict[tuple[int, int], int] = {}
    for part in row.need("batch_spec").split("_"):
        match = _SPEC.fullmatch(part)
        if match is None:
            raise row.fault("batch_spec", "is not like 32q1s8k or 2q1k_32q1s1k")
        query = int(match["q"]) * (1024 if match["qk"] else 1)
        keys = int(match["s"]) * (1024 if match["sk"] else 1) if match["s"] else query
        found[query, keys] = found.get((query, keys), 0) + int(match["count"] or 1)
    if len(found) > 1:
        yield "batches of requests that differ in length"
    for (query, keys), count in list(found.items())[: len(found) == 1]:
        level = "decode" if query <= _MOST_TOKENS and query < keys else "op"
        yield row.having(level=level, query=query, keys=keys, count=count)


def _case(row: Row) -> dict[str, Any]:
    """Return the level and, for JSON, the heads, widths and page size of the configuration."""
    level = row.text("level")
    if "num_q_heads" not in row.places:
        return {"level": level}
    shape = {"level": level, "dtype": row.read("dtype", dtype), "window_size": 0, "latent_dim": 0}
    head_dim = row.need("head_dim", values.whole)
    rank = row.read("kv_lora_rank", values.whole)
    if rank is None:
        return shape | {"head_dim": head_dim, "head_dim_v": row.read("v_head_dim", values.whole) or head_dim}
    shape |= {"subject": "mla", "latent_dim": rank}
    if level == "decode":
        shape |= {"head_dim": head_dim, "head_dim_v": rank}
    return shape  # the widths of a prompt depend on the path that the backend takes


def _implementation(row: Row) -> Iterator[str]:
    kv_dtype = row.text("kv_cache_dtype")
    yield row.need("backend")
    yield "" if kv_dtype in ("", "auto") else f"kv {kv_dtype[:40]}"


def _fails(row: Row) -> list[Failure]:
    time, error = row.text("mean_time"), row.text("error")[:20_000]
    if error:
        return [Failure(_TIME, failure_of(error), telling_line(error), f"{time[:40]} s")]
    no_time = time in ("", "0", "0.0")
    if "throughput" in row.places and (not_finite(time) or no_time and row.text("throughput") in ("", "0", "0.0")):
        return [Failure(_TIME, Status.ERROR, "the file says no time and no reason", f"{time} s")]
    return []


PEER = Peer(
    name="vllm_attention",
    description="the JSON or CSV of vLLM's attention benchmark",
    source="vllm",
    counted="results of vLLM's attention benchmark",
    find=lambda upload: table(upload, _COLUMNS) or objects(upload, _FIELDS, ("batch_spec",), "entry"),
    split=_split,
    needs={"batch": "count", "seqlen_q": "query", "seqlen_k": "keys"},
    takes={"num_heads": "num_q_heads", "num_kv_heads": "num_kv_heads", "page_size": "block_size"},
    facts={"causal": True},
    case=_case,
    implementation=_implementation,
    mode=lambda row: "decode" if row.text("level") == "decode" else "fwd",
    fails=_fails,
    numbers=(_TIME,),
    meanings={
        "implementation": ("backend", "kv_cache_dtype"),
        "level, batch, seqlen_q and seqlen_k": ("batch_spec",),
    },
    assumptions=(
        "Times are seconds of one layer in the file and become milliseconds.",
        f"Requests of up to {_MOST_TOKENS} query tokens against a longer cache are decoding, the others a forward "
        "pass. Both are causal, aligned bottom-right.",
    ),
)
