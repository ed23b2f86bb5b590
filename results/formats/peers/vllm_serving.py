"""vLLM's serving benchmarks (vllm bench serve, latency, throughput): JSON, or one object a line of --append-result.

`serve` measures a server under load: milliseconds a token and requests a second. The two offline benchmarks give
seconds. If all requests of a run failed, `serve` prints zeros. No file names the GPU; `latency` and `throughput` name
no model and no lengths either, because these are options of their commands.
"""

from __future__ import annotations

from collections.abc import Iterator

from results.formats.errors import CellError
from results.formats.peers.engine import Failure, Number, Peer, positive, refuse_unless_near
from results.formats.peers.sources import Entry, Found, Row, objects, row_of
from results.formats.upload import Upload
from results.records import Status

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


def _find(upload: Upload) -> Found | None:
    found = (objects(upload, names, unit="result") for names in (_SERVE, _LATENCY, _THROUGHPUT))
    return next(filter(None, found), None)


def _split(entry: Entry) -> Iterator[Row | str]:
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
            expected = row.need(count, positive) / row.need(seconds, positive)
            refuse_unless_near(row, rate, expected, f"{seconds} and {count}")
    return row


def _fails(row: Row) -> list[Failure]:
    if row.text("kind") != "serve" or row.text("completed") not in ("", "0"):
        return []
    note = f"none of {row.text('num_prompts'):.12} requests was completed"
    return [Failure(_COMPLETED, Status.ERROR, note, "0")]


def _implementation(row: Row) -> Iterator[str]:
    yield row.text("backend")
    yield row.text("label")
    yield f"(vllm bench {row.text('kind')})"


def _time(metric: str, name: str, mode: str | None) -> Number:
    """Return a kind of time of `serve`: the median over the requests, or the mean if there is no median."""
    return Number(
        metric, (f"median_{name}_ms", f"mean_{name}_ms"), ("median", "mean"), mean=f"mean_{name}_ms",
        std=f"std_{name}_ms", mode=mode, zero_is_none=True,
    )  # fmt: skip


PEER = Peer(
    name="vllm_serving",
    description="the JSON of vllm bench serve, latency or throughput",
    source="",
    counted="results of vLLM's benchmarks",
    find=_find,
    split=_split,
    facts={"level": "model"},
    case=lambda row: {"subject": row.need("model_id") if row.text("kind") == "serve" else None},
    implementation=_implementation,
    run=lambda row: {"key": row.place, "title": row.text("load")},
    extras=lambda row: {"note": row.value("note")},
    fails=_fails,
    numbers=(
        _time("time_to_first_token_ms", "ttft", "prefill"),
        _time("time_per_token_ms", "tpot", "decode"),
        _time("latency_ms", "e2el", None),
        Number("requests_per_s", ("request_throughput",), zero_is_none=True),
        Number("tokens_per_s", ("output_throughput",), mode="decode", zero_is_none=True),
        Number(
            "latency_ms",
            ("percentiles", "avg_latency"),
            ("median", "mean"),
            scale=1000,
            mean="avg_latency",
            std="std_latency",
            samples="latencies",
        ),
        Number("requests_per_s", ("requests_per_second",)),
    ),  # fmt: skip
    assumptions=(
        "serve: ttft is the time to the first token, queueing included; tpot the time of each further token; e2el the "
        "whole request. Medians with mean and standard deviation over the requests. Inter-token latencies are left "
        "out because they nearly equal tpot.",
        "Output tokens a second are the tokens of all requests together.",
    ),
)
