"""The meaning of column headers: the only place that lists the names used by other people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError
from results.records import LEVELS, MODES, TIMINGS

# field -> headers, normalised: lower case, anything but letters and digits as one underscore
ALIASES: dict[str, tuple[str, ...]] = {
    "implementation": ("implementation", "impl", "kernel", "provider", "kernel_provider", "backend"),
    "gpu_name": ("gpu_name", "gpu", "device_name", "device"),
    "seqlen": ("seqlen", "seq_len", "seq", "seq_length", "sequence_length", "n", "n_ctx", "x_val", "context_length"),
    "seqlen_q": ("seqlen_q", "q_seqlen", "s_qo"),
    "seqlen_k": ("seqlen_k", "seqlen_kv", "kv_seqlen", "s_kv"),
    "head_dim": ("head_dim", "headdim", "head_size", "d_head", "d", "head_dim_qk"),
    "head_dim_v": ("head_dim_v", "head_dim_vo"),
    "embed_dim": ("embed_dim", "d_model", "hidden_size", "hidden_dim", "model_dim"),  # head_dim x num_heads
    "dtype": ("dtype", "data_type", "precision", "torch_dtype"),
    "batch": ("batch", "batch_size", "b", "bsz"),
    "num_heads": ("num_heads", "heads", "n_heads", "nheads", "h", "num_q_heads"),
    "num_kv_heads": ("num_kv_heads", "kv_heads", "n_kv_heads"),
    "causal": ("causal", "is_causal"),
    "window_size": ("window_size", "window", "sliding_window", "sliding_window_size"),
    "features": ("features",),
    "level": ("level",),
    "subject": ("subject",),
    "mode": ("mode", "pass", "direction"),
    "timing": ("timing",),
}
MODE_ALIASES = {
    "forward": "fwd", "backward": "bwd", "e2e": "fwd_bwd", "total": "fwd_bwd", **{mode: mode for mode in MODES},
}  # fmt: skip
SYSTEMS = {"pt": "torch", "tr": "triton_fa2"}  # abbreviations of report fa2_rtx4060
UNITS: dict[str, tuple[str, float]] = {  # unit as `_spelled` writes it -> metric, and the factor to the metric's unit
    **dict.fromkeys(("ns", "nanoseconds"), ("latency_ms", 1e-6)),
    **dict.fromkeys(("us", "usec", "microseconds"), ("latency_ms", 1e-3)),
    **dict.fromkeys(("ms", "msec", "milliseconds"), ("latency_ms", 1.0)),
    **dict.fromkeys(("s", "sec", "seconds"), ("latency_ms", 1e3)),
    **dict.fromkeys(("tflops", "tflop"), ("tflops", 1.0)),
    **dict.fromkeys(("gflops", "gflop"), ("tflops", 1e-3)),
    "gbps": ("gb_per_s", 1.0),
    "tbps": ("gb_per_s", 1e3),
    **dict.fromkeys(("kb", "kib"), ("peak_memory_mb", 1 / 1024)),
    **dict.fromkeys(("mb", "mib"), ("peak_memory_mb", 1.0)),
    **dict.fromkeys(("gb", "gib"), ("peak_memory_mb", 1024.0)),
    "tokensps": ("tokens_per_s", 1.0),
    "speedup": ("speedup", 1.0),
    "peakpercent": ("peak_percent", 1.0),
}

FIELD_OF = {header: field for field, headers in ALIASES.items() for header in headers}
_SPELLED = (  # pattern -> canonical word
    (r"[µμ]s", "us"),
    (r"(tflop|gflop)s?(?:/s|ps)?\b", r"\1s"),
    (r"\b([gt])i?b/s(?:ec)?\b", r"\1bps"),
    (r"\btok(?:en)?s?(?:/s|_per_s| per second)\b", "tokensps"),
    (r"\b(?:fwd|forward) ?(?:\+|and|&) ?(?:bwd|backward)\b", "total"),
    (r"\bspeed-?up\b", "speedup"),
    (r"% ?(?:of )?peak|peak ?[(\[]?%[)\]]?|\bmfu\b(?: ?[(\[]?%[)\]]?)?", "peakpercent"),
)
_TIME_WORDS = (
    "latency", "time", "runtime", "duration", "elapsed", "in", "zeit", "laufzeit", "dauer", "temps", "tiempo",
)  # fmt: skip
_WORDS_OF = {  # metric -> words that add nothing to its unit
    "latency_ms": _TIME_WORDS,
    "peak_memory_mb": ("peak", "memory", "mem", "vram", "max", "gpu", "in"),
    "tflops": ("throughput", "performance", "in"),
    "gb_per_s": ("bandwidth", "throughput", "memory", "in"),
    "tokens_per_s": ("throughput",),
    "speedup": ("x",),
}
_STATISTICS = {
    **dict.fromkeys(("mean", "avg", "average"), "mean"),
    **dict.fromkeys(("median", "p50"), "median"),
    **dict.fromkeys(("std", "stdev", "stddev", "sd"), "std"),
}
_NOT_TAKEN = {"min", "p10", "p20", "p25", "p75", "p80", "p90", "p95", "p99", "best", "worst", "warmup", "total_time"}
_TOKEN = re.compile(r"[^\W_]+")
_EMPTY_BRACKETS = re.compile(r"[(\[{][\s,;/]*[)\]}]")


@dataclass(frozen=True)
class Number:
    """A column of numbers with its metric, unit and implementation."""

    at: int
    header: str
    metric: str
    implementation: str | None = None  # None: stated by the row
    mode: str | None = None  # None: stated by the row, or unknown
    baseline: str | None = None
    statistic: str = "printed"
    std_at: int | None = None
    scale: float = 1.0  # from the column's unit to the metric's

    @property
    def meaning(self) -> str:
        """Return the description of the column."""
        parts = (self.implementation, self.metric, self.mode, self.statistic.replace("printed", ""))
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class NumberHeader:
    """The parts of the header of a column of numbers."""

    metric: str
    scale: float
    mode: str | None
    statistic: str  # printed, mean, median or std
    name: str  # the remaining words: an implementation, or ""


def number_header(header: str) -> NumberHeader | None:
    """Return the parts of a header such as `PyTorch fwd [µs]` or `peak memory (GB)`; None if it names no unit."""
    text = _spelled(header)
    tokens = [(match[0].lower(), match.span()) for match in _TOKEN.finditer(text)]
    words = [word for word, _ in tokens]
    unit = next((word for word in reversed(words) if word in UNITS and _is_unit(word, words)), None)
    if unit is None or _NOT_TAKEN.intersection(words):
        return None
    metric, scale = UNITS[unit]
    mode = next((MODE_ALIASES[word] for word in words if word in MODE_ALIASES), None)
    statistic = next((_STATISTICS[word] for word in words if word in _STATISTICS), "printed")
    known = {unit, *_WORDS_OF.get(metric, ())}
    spans = [span for word, span in tokens if word in known or word in _STATISTICS or word in MODE_ALIASES]
    return NumberHeader(metric, scale, mode, statistic, _rest(text, spans))


def _spelled(header: str) -> str:
    for pattern, word in _SPELLED:
        header = re.sub(pattern, word, header, flags=re.IGNORECASE)
    return header


def _is_unit(word: str, words: Sequence[str]) -> bool:
    """Return whether a word that can be a unit is one here: `s` alone is also the length of a sequence."""
    return word != "s" or not set(_TIME_WORDS).isdisjoint(words)


def _rest(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text without those parts and the punctuation around them."""
    for first, last in reversed(spans):
        text = text[:first] + text[last:]
    return " ".join(_EMPTY_BRACKETS.sub("", text).split()).strip(" _-,:;/|.%")


def normalise(header: str) -> str:
    """Return a header in lower case, with one underscore for anything but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "_", header.lower()).strip("_")


def refuse_duplicates(header: Sequence[str]) -> None:
    """Raise UploadError if two columns have the same name, or if a name is empty or not plain text."""
    seen: dict[str, str] = {}
    for number, name in enumerate(header, start=1):
        try:
            key = normalise(values.words(name))
        except CellError as error:
            raise UploadError(f"The name of column {number} {error}.") from error
        if not key:
            raise UploadError(f"Column {number} has no name.")
        if key in seen:
            raise UploadError(f"Two columns are called {name!r}; rename or remove one.")
        seen[key] = name


def field_of(name: str, header: Sequence[str]) -> str | None:
    """Return the field of a header, None for other headers. `d_model` is head_dim unless there is a heads column."""
    heads = any(FIELD_OF.get(normalise(each)) == "num_heads" for each in header)
    return FIELD_OF.get(normalise(name)) if heads or normalise(name) != "d_model" else "head_dim"


def fields_of(header: Sequence[str]) -> dict[str, int]:
    """Return the column of each field. Raises UploadError if two columns have the same field."""
    found: dict[str, int] = {}
    for at, name in enumerate(header):
        field = field_of(name, header)
        if field in found:
            raise UploadError(f"Columns {header[found[field]]!r} and {name!r} both mean {field}; remove one.")
        if field:
            found[field] = at
    return found


def system_of(name: str) -> str:
    """Return the implementation of a column, with the abbreviations of a published report expanded."""
    return SYSTEMS.get(name.lower(), name)


def lacking(fields: Iterable[str], required: Sequence[str]) -> str | None:
    """Return the missing required fields with their possible headers; None if there is no missing field."""
    missing = [field for field in required if field not in fields]
    parts = [f"a column for {field} ({', '.join(ALIASES[field])})" for field in missing]
    return f"It lacks {' and '.join(parts)}." if parts else None


def _mode(text: str) -> str:
    if text.lower() not in MODE_ALIASES:
        raise CellError(f"is not one of {', '.join(MODE_ALIASES)}")
    return MODE_ALIASES[text.lower()]


def _one_of(possible: tuple[str, ...], text: str) -> str:
    if text not in possible:
        raise CellError(f"is not one of {', '.join(possible)}")
    return text


PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(ALIASES, values.whole),
    **dict.fromkeys(("implementation", "gpu_name", "subject", "features"), values.name),
    "dtype": values.dtype,
    "causal": values.boolean,
    "window_size": partial(values.whole, minimum=0),
    "level": partial(_one_of, LEVELS),
    "mode": _mode,
    "timing": partial(_one_of, TIMINGS),
}
