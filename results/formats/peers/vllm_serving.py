"""vLLM's serving benchmarks (vllm bench serve, latency, throughput): JSON, or one object a line of --append-result.

`serve` gives milliseconds a token and requests a second of a server under load; the two offline ones give seconds. A
run whose requests all failed prints zeros, which are no numbers. Neither file names the GPU; `latency` and
`throughput` name no model and no lengths either, those stood on their command lines.
"""

from __future__ import annotations

import math
from typing import Any

from results.formats.errors import CellError
from results.formats.peers.collected import CellFault, Collected, checked, document, json_lines, text
from results.formats.upload import Understanding, Upload
from results.records import Case, Status

NAME = "vllm_serving"
DESCRIPTION = "the JSON of vllm bench serve, latency or throughput"
SERVE = ("model_id", "num_prompts", "completed", "duration", "request_throughput", "mean_ttft_ms")
LATENCY = ("avg_latency", "latencies", "percentiles")
THROUGHPUT = ("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second")
TIMES = {  # name in the file, metric, mode
    "ttft": ("time_to_first_token_ms", "prefill"),
    "tpot": ("time_per_token_ms", "decode"),
    "e2el": ("latency_ms", None),
}
MAX_SAMPLES = 10_000

_ASSUMED = (
    "serve: ttft is the time to the first token, queueing included; tpot the time of each further token; e2el the "
    "whole request. Medians with mean and standard deviation over the requests. Inter-token latencies are left out: "
    "tpot says nearly as much.",
    "Output tokens a second are those of all requests together.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a file, nothing to say otherwise."""
    return None if _objects(upload) else ""


def understand(upload: Upload) -> Understanding:
    """Return what each object says, one run for each."""
    collected = Collected(upload, NAME, unit="result")
    objects = _objects(upload)
    for place, found in objects:
        with collected.row(place):
            if not isinstance(found, dict):
                raise CellError("is not an object")
            if set(SERVE) <= set(found):
                _serve(collected, place, found)
            elif set(LATENCY) <= set(found):
                _latency(collected, place, found)
            elif set(THROUGHPUT) <= set(found):
                _throughput(collected, place, found)
            else:
                raise CellError("lacks what vllm bench serve, latency or throughput write")
    nameless = any(m.case.subject is None for m in collected.measurements)
    asked = ("The file names neither the model nor the batch and its lengths.",) if nameless else ()
    return collected.understanding(
        f"{len(objects)} results of vLLM's benchmarks", assumptions=_ASSUMED, questions=asked
    )


def _objects(upload: Upload) -> list[tuple[int, Any]]:
    """Return the results of an object, an array or JSON lines, with their places."""
    for markers in (SERVE, LATENCY, THROUGHPUT):
        quoted = tuple(f'"{name}"' for name in markers)
        found = document(upload, *quoted)
        if isinstance(found, dict) and set(markers) <= set(found):
            return [(1, found)]
        if isinstance(found, list) and found and isinstance(found[0], dict) and set(markers) <= set(found[0]):
            return list(enumerate(found, start=1))
        lines = json_lines(upload, *quoted) if found is None else None
        if lines and set(markers) <= set(lines[0][1] or ()):
            return lines
    return []


def _serve(collected: Collected, place: int, found: dict[str, Any]) -> None:
    backend = text(found.get("endpoint_type") or found.get("backend"), "endpoint_type")
    label = f" {text(found['label'], 'label')}" if found.get("label") else ""
    rate, at_once = found.get("request_rate"), found.get("max_concurrency")
    load = f"request rate {rate!s:.20}" + (f", at most {at_once!s:.12} at once" if at_once else "")
    known = {
        "run_id": collected.run(place, title=load),
        "case": Case(level="model", subject=text(found.get("model_id"), "model_id")),
        "implementation": f"{backend}{label} (vllm bench serve)",
    }
    completed, failed = found.get("completed"), found.get("failed")
    if not completed:
        collected.add(
            place, "completed", metric="tokens_per_s", mode="decode", status=Status.ERROR,
            note=f"none of {found.get('num_prompts')!s:.12} requests was completed", printed="0", **known,
        )  # fmt: skip
        return
    note = f"{load}; {completed!s:.12} requests" + (f", {failed!s:.12} failed" if failed else "")
    for name, (metric, mode) in TIMES.items():
        _time(collected, place, found, name, known | {"metric": metric, "mode": mode, "note": note})
    _rates(collected, place, found, known | {"note": note})


def _time(collected: Collected, place: int, found: dict[str, Any], name: str, known: dict[str, Any]) -> None:
    """Take the median of one kind of time, with mean and standard deviation; nothing if it was not taken."""
    column = next((f"{kind}_{name}_ms" for kind in ("median", "mean") if f"{kind}_{name}_ms" in found), None)
    value = found.get(column) if column else None
    if column is None or value is None or value == 0:
        return
    spread = found.get(f"std_{name}_ms")
    mean = found.get(f"mean_{name}_ms")
    collected.add(
        place, column, value=checked(value, column), statistic=column.partition("_")[0],
        mean=checked(mean, column) if mean else None, std=checked(spread, column) if spread else None,
        printed=repr(value), **known,
    )  # fmt: skip


def _rates(collected: Collected, place: int, found: dict[str, Any], known: dict[str, Any]) -> None:
    """Take requests and output tokens a second, which the duration must give."""
    duration = checked(found.get("duration"), "duration")
    for column, metric, count, mode in (
        ("request_throughput", "requests_per_s", "completed", None),
        ("output_throughput", "tokens_per_s", "total_output_tokens", "decode"),
    ):
        value = found.get(column)
        if not value:
            continue
        rate, counted = checked(value, column), found.get(count)
        if counted and not 1 / 1.1 <= rate * duration / checked(counted, count) <= 1.1:
            raise CellFault(column, repr(value)[:80], f"is not what duration and {count} give")
        collected.add(
            place, column, metric=metric, mode=mode, value=rate, statistic="printed", printed=repr(value), **known
        )


def _latency(collected: Collected, place: int, found: dict[str, Any]) -> None:
    """Take the seconds that a batch took from prompt to last token."""
    values_of, percentiles = found["latencies"], found["percentiles"]
    if not isinstance(values_of, list) or not isinstance(percentiles, dict) or len(values_of) > MAX_SAMPLES:
        raise CellFault("latencies", "", f"is not a list of at most {MAX_SAMPLES} seconds with their percentiles")
    samples = tuple(1000 * checked(value, "latencies") for value in values_of)
    mean = 1000 * checked(found["avg_latency"], "avg_latency")
    median = percentiles.get("50")
    spread = found.get("std_latency")
    collected.add(
        place, "percentiles", run_id=collected.run(place), case=Case(level="model", subject=None),
        implementation="vllm (vllm bench latency)", metric="latency_ms",
        value=mean if median is None else 1000 * checked(median, "percentiles"),
        statistic="mean" if median is None else "median", mean=mean,
        std=1000 * checked(spread, "std_latency") if spread else None, samples=samples, n=len(samples) or None,
        printed=f"{found['avg_latency']!r} s", note="seconds in the file; the whole batch",
    )  # fmt: skip


def _throughput(collected: Collected, place: int, found: dict[str, Any]) -> None:
    """Take requests a second. Tokens a second are left out: they count the prompts too."""
    seconds, requests = (checked(found[name], name) for name in ("elapsed_time", "num_requests"))
    rate = checked(found["requests_per_second"], "requests_per_second")
    if not 1 / 1.1 <= rate * seconds / requests <= 1.1 or not math.isfinite(rate):
        raise CellFault("requests_per_second", repr(rate), "is not what elapsed_time and num_requests give")
    collected.left_out["values of tokens_per_second, which count the prompts as well"] += 1
    collected.add(
        place, "requests_per_second", run_id=collected.run(place), case=Case(level="model", subject=None),
        implementation="vllm (vllm bench throughput)", metric="requests_per_s", value=rate, statistic="printed",
        printed=repr(found["requests_per_second"]),
    )  # fmt: skip
