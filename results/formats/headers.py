"""The meaning of column headers: words.toml lists the names used by other people."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError
from results.records import LEVELS, MODES, TIMINGS

ALIASES: dict[str, list[str]] = values.WORDS["fields"]
MODE_ALIASES = {word: mode for mode, words in values.WORDS["modes"].items() for word in words}
MODE_ALIASES |= {mode: mode for mode in MODES}
UNITS: dict[str, tuple[str, float]] = {  # unit as `_spelled` writes it -> metric, and the factor to the metric's unit
    word: (metric, unit["factor"])
    for metric, units in values.WORDS["units"].items()
    for unit in units
    for word in unit["words"]
}
IGNORED = ""
NUMBERS: dict[str, str] = values.WORDS["numbers"]  # meaning of a column of numbers -> label of the choice
FIELD_OF = {header: field for field, headers in ALIASES.items() for header in headers}
_STATISTICS = {word: statistic for statistic, words in values.WORDS["statistics"].items() for word in words}
_TIME_WORDS = values.WORDS["words"]["latency_ms"]
_TOKEN = re.compile(r"[^\W_]+")
_EMPTY_BRACKETS = re.compile(r"[(\[{][\s,;/]*[)\]}]")


@dataclass(frozen=True)
class NumberColumn:
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
class Role:
    """The meaning of one column."""

    meaning: str = IGNORED  # a key of `mapping.CHOICES`
    implementation: str = ""  # the column has its numbers; "": stated by the row
    mode: str = ""  # "": stated by the row, or unknown
    statistic: str = "printed"  # mean, median or std; std belongs to the column of the same meaning


def number_role(header: str) -> Role | None:
    """Return the role that a header such as `PyTorch fwd [µs]` or `peak memory (GB)` gives; None without a unit."""
    text = _spelled(header)
    tokens = [(match[0].lower(), match.span()) for match in _TOKEN.finditer(text)]
    words = [word for word, _ in tokens]
    unit = next((word for word in reversed(words) if word in UNITS and _is_unit(word, words)), None)
    if unit is None or not set(words).isdisjoint(values.WORDS["not_taken"]):
        return None
    meaning = next(choice for choice in NUMBERS if UNITS[choice.split("/")[1]] == UNITS[unit])
    mode = next((MODE_ALIASES[word] for word in words if word in MODE_ALIASES), "")
    statistic = next((_STATISTICS[word] for word in words if word in _STATISTICS), "printed")
    known = {unit, *values.WORDS["words"].get(UNITS[unit][0], ())}
    spans = [span for word, span in tokens if word in known or word in _STATISTICS or word in MODE_ALIASES]
    return Role(meaning, system_of(_rest(text, spans)), mode, statistic)


def _spelled(header: str) -> str:
    for pattern, word in values.WORDS["spelled"]:
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
    return values.WORDS["systems"].get(name.lower(), name)


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
