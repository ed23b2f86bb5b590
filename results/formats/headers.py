"""Which headers mean what. The only place where the names that other people use are listed."""

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
    "seqlen": ("seqlen", "seq_len", "seq", "seq_length", "sequence_length", "n", "n_ctx", "context_length"),
    "seqlen_q": ("seqlen_q", "q_seqlen", "s_qo"),
    "seqlen_k": ("seqlen_k", "seqlen_kv", "kv_seqlen", "s_kv"),
    "head_dim": ("head_dim", "headdim", "head_size", "d_head", "d", "d_model", "head_dim_qk"),
    "head_dim_v": ("head_dim_v", "head_dim_vo"),
    "dtype": ("dtype", "data_type", "precision", "torch_dtype"),
    "batch": ("batch", "batch_size", "b", "bsz"),
    "num_heads": ("num_heads", "heads", "n_heads", "nheads", "h", "num_q_heads"),
    "num_kv_heads": ("num_kv_heads", "kv_heads", "n_kv_heads"),
    "causal": ("causal", "is_causal"),
    "window_size": ("window_size", "window", "sliding_window", "sliding_window_size"),
    "level": ("level",),
    "subject": ("subject",),
    "mode": ("mode", "pass", "direction"),
    "timing": ("timing",),
}
MODE_ALIASES = {
    "fwd": "fwd",
    "forward": "fwd",
    "bwd": "bwd",
    "backward": "bwd",
    "e2e": "fwd_bwd",
    "fwd_bwd": "fwd_bwd",
    "total": "fwd_bwd",
    **{mode: mode for mode in MODES},
}
SYSTEMS = {"pt": "torch", "tr": "triton_fa2"}  # as report fa2_rtx4060 abbreviates them

_FIELDS = {header: field for field, headers in ALIASES.items() for header in headers}
_MODES = "|".join(sorted(MODE_ALIASES, key=len, reverse=True))
_TIME = re.compile(rf"(?:(?P<mode>{_MODES})_)?(?:latency_|time_)?ms(?:_(?P<kind>mean|median|std))?")
_SYSTEM_TIME = re.compile(rf"(?P<system>[a-z0-9_]+?)_(?P<mode>{_MODES})_(?:latency_|time_)?ms")
_SPEEDUP = re.compile(rf"(?P<mode>{_MODES})_speedup")
_MEMORY = {"peak_memory_mb", "memory_mb", "peak_mb"}


@dataclass(frozen=True)
class Number:
    """A column of numbers and what is said of them."""

    at: int
    header: str
    metric: str
    implementation: str | None = None  # None: the row says it
    mode: str | None = None  # None: the row says it, or nobody
    baseline: str | None = None
    statistic: str = "printed"
    std_at: int | None = None

    @property
    def meaning(self) -> str:
        """In words, for the reader."""
        parts = (self.implementation, self.metric, self.mode, self.statistic.replace("printed", ""))
        return " ".join(part for part in parts if part)


def normalise(header: str) -> str:
    """Return a header in lower case, with one underscore for anything but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "_", header.lower()).strip("_")


def refuse_duplicates(header: Sequence[str]) -> None:
    """Raise UploadError if two columns have one name, or one has none or one that is not plain text."""
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


def fields_of(header: Sequence[str]) -> dict[str, int]:
    """Return which column holds which field. Raises UploadError if two columns hold the same."""
    found: dict[str, int] = {}
    for at, name in enumerate(header):
        field = _FIELDS.get(normalise(name))
        if field in found:
            raise UploadError(f"Columns {header[found[field]]!r} and {name!r} both mean {field}; remove one.")
        if field:
            found[field] = at
    return found


def long_numbers(header: Sequence[str]) -> list[Number]:
    """Return the columns of numbers of a table with one implementation a row."""
    names = [normalise(name) for name in header]
    times = {at: match for at, name in enumerate(names) if (match := _TIME.fullmatch(name))}
    spreads = {MODE_ALIASES.get(match["mode"]): at for at, match in times.items() if match["kind"] == "std"}
    numbers = []
    for at, match in times.items():
        if match["kind"] == "std":
            continue
        mode = MODE_ALIASES.get(match["mode"])
        statistic = match["kind"] or "printed"
        numbers.append(Number(at, header[at], "latency_ms", mode=mode, statistic=statistic, std_at=spreads.get(mode)))
    numbers += [Number(at, header[at], "peak_memory_mb") for at, name in enumerate(names) if name in _MEMORY]
    return numbers


def wide_numbers(header: Sequence[str]) -> list[Number]:
    """Return the columns of numbers of a table with one implementation a column; ratios where it has exactly two."""
    names = [normalise(name) for name in header]
    numbers = []
    for at, name in enumerate(names):
        if match := _SYSTEM_TIME.fullmatch(name):
            system = SYSTEMS.get(match["system"], match["system"])
            numbers.append(Number(at, header[at], "latency_ms", system, MODE_ALIASES[match["mode"]]))
    systems = list(dict.fromkeys(number.implementation for number in numbers))
    for at, name in enumerate(names):
        match = _SPEEDUP.fullmatch(name)
        if match and len(systems) == 2:
            baseline, system = systems
            numbers.append(Number(at, header[at], "speedup", system, MODE_ALIASES[match["mode"]], baseline))
    return numbers


def lacking(fields: Iterable[str], required: Sequence[str]) -> str | None:
    """Return which required fields are missing and what headers they may have; None if all are there."""
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
    **dict.fromkeys(("implementation", "gpu_name", "subject"), values.name),
    "dtype": values.dtype,
    "causal": values.boolean,
    "window_size": partial(values.whole, minimum=0),
    "level": partial(_one_of, LEVELS),
    "mode": _mode,
    "timing": partial(_one_of, TIMINGS),
}
