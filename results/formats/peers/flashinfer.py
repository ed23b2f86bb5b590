"""FlashInfer's benchmark table, and the traces of flashinfer-bench; flashinfer.toml describes the formats."""

import re
from collections.abc import Iterator
from typing import Any

from results.formats import values
from results.formats.peers.engine import Failure, peers_of, telling_line, whole_from_0
from results.formats.peers.sources import Entry, Row, row_of
from results.paths import toml_of
from results.records import Status

_WORDS = toml_of(__file__)["words"]
_ROUTINES = _WORDS["routines"]  # level, subject


def _other(row: Row) -> str | None:
    return None if row.text("routine") in _ROUTINES else row.text("routine")


def _timing(row: Row) -> str | None:
    return "kernel" if row.read("use_cupti", values.boolean) else None


def _is_random(row: Row) -> bool:
    return bool(row.read("random_actual_seq_len", values.boolean))


def _note(row: Row) -> dict[str, str | None]:
    said = f"lengths are random up to {row.text('s_kv')}, {row.text('avg_actual_seq_len')} on average"
    return {"note": said if _is_random(row) else None}


def _table_case(row: Row) -> dict[str, Any]:
    level, subject = _ROUTINES[row.text("routine")]
    tokens, keys = row.need("s_qo", values.whole), row.need("s_kv", values.whole)
    said: dict[str, Any] = {"level": level, "subject": subject, "seqlen_q": tokens, "seqlen_k": keys}
    if _is_random(row):
        mean = row.need("avg_actual_seq_len", values.whole)
        single = mean if row.text("batch_size") == "1" else None
        said |= {"seqlen_k": mean} if level == "decode" else {"seqlen_q": single, "seqlen_k": single}
    if level == "decode" and tokens == 1:
        said["causal"] = True
    return said | _widths(row, subject)


def _widths(row: Row, subject: str) -> dict[str, int]:
    if subject == "attention":
        columns = {"num_kv_heads": "num_kv_heads", "head_dim": "head_dim_qk", "head_dim_v": "head_dim_vo"}
        return {name: row.need(column, values.whole) for name, column in columns.items()} | {"latent_dim": 0}
    latent, rope = row.need("head_dim_ckv", values.whole), row.need("head_dim_kpe", values.whole)
    return {"num_kv_heads": 1, "head_dim": latent + rope, "head_dim_v": latent, "latent_dim": latent}


_STATUSES = {said: Status(status) for said, status in _WORDS["statuses"].items()}
_ATTENTION = re.compile(
    r"(?P<kind>gqa|mla)_(?P<layout>paged|ragged)_(?P<step>prefill|decode)(?P<rest>[a-z0-9_]{0,200})"
)
_SIZE = re.compile(r"_(ckv|kpe|kv|ps|h|d)(\d{1,6})(?![a-z0-9])")
_PERFORMANCE, _ENVIRONMENT = "evaluation.performance.", "evaluation.environment."


def _split(entry: Entry) -> Iterator[Row | str]:
    row = row_of(entry)
    shape = _ATTENTION.fullmatch(row.need("definition"))
    if shape is None:
        yield "traces of definitions that are neither gqa nor mla, paged or ragged"
    elif not row.text("solution") or entry.value.get("evaluation") is None:
        yield "lines with a workload and no evaluation"
    else:
        numbers = {name: row.value(_PERFORMANCE + name) for name in ("latency_ms", "speedup_factor")}
        yield row.having(**shape.groupdict(), **numbers)


def _fails(row: Row) -> list[Failure]:
    status = row.one_of("evaluation.status", _STATUSES)
    note = f"{status}: {telling_line(row.text('evaluation.log')[:20_000])}"[:500]
    return [Failure(TRACES.numbers[0], _STATUSES[status], note)] if status != "PASSED" else []


def _run(row: Row) -> dict[str, str]:
    hardware = row.need(f"{_ENVIRONMENT}hardware").replace("_", " ")
    libraries = {name: row.read(f"{_ENVIRONMENT}libs.{name}") for name in ("torch", "triton", "cuda")}
    return {"gpu_name": hardware, **{name: version for name, version in libraries.items() if version}}


def _trace_case(row: Row) -> dict[str, Any]:
    """Return what the name of the definition and the axes of the workload say."""
    sizes = {name: int(number) for name, number in _SIZE.findall(row.text("rest"))}
    decode, latent = row.text("step") == "decode", row.text("kind") == "mla"
    batch = _axis(row, "batch_size") or (_axis(row, "len_indptr") or 1) - 1 or None
    page = sizes.get("ps") if row.text("layout") == "paged" else 0
    width = width_v = sizes.get("d")
    if latent and "ckv" in sizes:
        width, width_v = sizes["ckv"] + sizes.get("kpe", 0), sizes["ckv"]
    keys = _axis(row, "total_kv") or (_axis(row, "num_kv_indices") if page == 1 else None)
    context = keys // batch or None if keys and batch else None  # the mean of the sequences
    single = batch == 1 and not decode
    return {
        "level": "decode" if decode else "op",
        "subject": f"{'mla' if latent else 'attention'} workload {row.need('workload.uuid')[:12]}",
        "batch": batch,
        "num_heads": sizes.get("h"),
        "num_kv_heads": 1 if latent else sizes.get("kv"),
        "seqlen_q": 1 if decode else _axis(row, "total_q") if single else None,
        "seqlen_k": context if decode or single else None,
        "head_dim": width,
        "head_dim_v": width_v,
        "causal": True if decode or "causal" in row.text("rest") else None,
        "page_size": page,
        "latent_dim": width_v if latent else 0,
    }


def _axis(row: Row, name: str) -> int | None:
    return row.read(f"workload.axes.{name}", whole_from_0)


TABLE, TRACES = peers_of(__file__, globals())
