"""vLLM's attention benchmark, and its serving benchmarks; vllm.toml describes the formats."""

from collections.abc import Iterator
from typing import Any

from results import batches
from results.formats import values
from results.formats.errors import CellError
from results.formats.peers import engine
from results.formats.peers.engine import Failure, Number, peers_of
from results.formats.peers.sources import Entry, Found, Row, objects, row_of
from results.formats.upload import Upload
from results.records import Status

_MOST_TOKENS = 16  # the most query tokens of a request whose latents are absorbed


def _attention_rows(entry: Entry) -> Iterator[Row | str]:
    row = entry.value
    if not isinstance(row, Row):
        row = row_of(entry, lambda path: path.removeprefix("config."))
        row.need("num_q_heads", values.whole)
    try:
        found = batches.fields_of(row.need("batch_spec"))
    except ValueError as error:
        raise row.fault("batch_spec", f"cannot be read: {error}") from error
    yield row.having(**found)


def _attention_case(row: Row) -> dict[str, Any]:
    """Return the lengths and, for JSON, the heads, widths and page size of the configuration."""
    lengths = {"lengths": row.text("lengths")}
    if "num_q_heads" not in row.places:
        return lengths
    shape = lengths | {"dtype": row.read("dtype", engine.dtype), "window_size": 0, "latent_dim": 0}
    head_dim = row.need("head_dim", values.whole)
    rank = row.read("kv_lora_rank", values.whole)
    if rank is None:
        return shape | {"head_dim": head_dim, "head_dim_v": row.read("v_head_dim", values.whole) or head_dim}
    shape |= {"subject": "mla", "latent_dim": rank}
    if int(row.text("seqlen_q")) <= _MOST_TOKENS:
        shape |= {"head_dim": head_dim, "head_dim_v": rank}
    return shape  # the widths of a prompt depend on the path that the backend takes


def _attention_failure(row: Row) -> list[Failure]:
    time, error = row.text("mean_time"), row.text("error")[:20_000]
    if error:
        return [Failure(ATTENTION.numbers[0], engine.failure_of(error), engine.telling_line(error), f"{time[:40]} s")]
    no_time = time in ("", "0", "0.0")
    if "throughput" in row.places and (
        engine.not_finite(time) or no_time and row.text("throughput") in ("", "0", "0.0")
    ):
        return [Failure(ATTENTION.numbers[0], Status.ERROR, "the file says no time and no reason", f"{time} s")]
    return []


_SERVE = ("model_id", "num_prompts", "completed", "duration", "request_throughput", "mean_ttft_ms")
_LATENCY = ("avg_latency", "latencies", "percentiles")
_THROUGHPUT = ("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second")
_RATES = {  # rate, count, seconds: the first is the second over the third
    "serve": (
        ("request_throughput", "completed", "duration"),
        ("output_throughput", "total_output_tokens", "duration"),
    ),
    "throughput": (("requests_per_second", "num_requests", "elapsed_time"),),
}
_COMPLETED = Number("tokens_per_s", ("completed",), mode="decode")


def _find_serving(upload: Upload) -> Found | None:
    found = (objects(upload, names, unit="result") for names in (_SERVE, _LATENCY, _THROUGHPUT))
    return next(filter(None, found), None)


def _serving_rows(entry: Entry) -> Iterator[Row | str]:
    row = row_of(entry)
    said = set(entry.value)
    if said >= set(_SERVE):
        yield _loaded(row)
    elif said >= set(_LATENCY):
        if not isinstance(entry.value["latencies"], list) or not isinstance(entry.value["percentiles"], dict):
            raise row.fault("latencies", "is not a list of seconds with percentiles")
        median = row.value("percentiles.50")
        note = "seconds in the file; the whole batch"
        yield row.having(
            kind="latency", backend="vllm", percentiles=median, printed=f"{row.text('avg_latency')} s", note=note
        )
    elif said >= set(_THROUGHPUT):
        yield "values of tokens_per_second, which count the prompts as well"
        yield _checked(row.having(kind="throughput", backend="vllm"))
    else:
        raise CellError("lacks the fields that vllm bench serve, latency or throughput write")


def _loaded(row: Row) -> Row:
    """Return a result of `serve` with its load."""
    rate, at_once = row.text("request_rate") or "None", row.text("max_concurrency")
    load = f"request rate {rate:.20}" + (f", at most {at_once:.12} at once" if at_once else "")
    failed = row.text("failed")
    note = f"{load}; {row.text('completed'):.12} requests" + (
        f", {failed:.12} failed" if failed not in ("", "0") else ""
    )
    backend = row.read("endpoint_type") or row.need("backend")
    return _checked(row.having(kind="serve", backend=backend, load=load, note=note))


def _checked(row: Row) -> Row:
    """Return the row. Raises CellFault if a rate is not its count over its seconds."""
    for rate, count, seconds in _RATES[row.text("kind")]:
        if row.text(rate) not in ("", "0", "0.0") and row.text(count) not in ("", "0"):
            expected = row.need(count, values.positive) / row.need(seconds, values.positive)
            engine.refuse_unless_near(row, rate, expected, f"{seconds} and {count}")
    return row


def _model(row: Row) -> dict[str, str | None]:
    return {"subject": row.need("model_id") if row.text("kind") == "serve" else None}


def _load(row: Row) -> dict[str, Any]:
    return {"key": row.place, "title": row.text("load")}


def _serving_failure(row: Row) -> list[Failure]:
    if row.text("kind") != "serve" or row.text("completed") not in ("", "0"):
        return []
    note = f"none of {row.text('num_prompts'):.12} requests was completed"
    return [Failure(_COMPLETED, Status.ERROR, note, "0")]


ATTENTION, SERVING = peers_of(__file__, globals())
