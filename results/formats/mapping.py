"""The meaning of each column of a plain table: guessed from its header, corrected by the user, remembered.

words.toml lists the names that other people use. `mappings.json` in the home keeps a correction under a key of the
header, so that the next table with the same header is read in the same way.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from results.files import durable
from results.formats import values
from results.formats.errors import CellError, UploadError
from results.formats.tables import LOOKED_AT, MAX_COLUMNS, Sheet
from results.records import LEVELS, MODES, TIMINGS

ALIASES: dict[str, tuple[str, ...]] = values.WORDS["fields"]
MODE_ALIASES = {word: mode for mode, words in values.WORDS["modes"].items() for word in words}
MODE_ALIASES |= {mode: mode for mode in MODES}
UNITS: dict[str, tuple[str, float]] = {  # spelled unit -> metric, and the factor to its unit
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
    text = header
    for pattern, word in values.WORDS["spelled"]:
        text = re.sub(pattern, word, text, flags=re.IGNORECASE)
    tokens = [(match[0].lower(), match.span()) for match in _TOKEN.finditer(text)]
    words = [word for word, _ in tokens]
    timed = not set(_TIME_WORDS).isdisjoint(words)  # `s` alone is also the length of a sequence
    unit = next((word for word in reversed(words) if word in UNITS and (word != "s" or timed)), None)
    if unit is None or not set(words).isdisjoint(values.WORDS["not_taken"]):
        return None
    meaning = next(choice for choice in NUMBERS if UNITS[choice.split("/")[1]] == UNITS[unit])
    mode = next((MODE_ALIASES[word] for word in words if word in MODE_ALIASES), "")
    statistic = next((_STATISTICS[word] for word in words if word in _STATISTICS), "printed")
    known = {unit, *values.WORDS["words"].get(UNITS[unit][0], ())}
    spans = [span for word, span in tokens if word in known or word in _STATISTICS or word in MODE_ALIASES]
    name = _rest(text, spans)
    system = values.WORDS["systems"].get(name.lower(), name)  # an abbreviation of a published report
    return Role(meaning, system, mode, statistic)


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


CHOICES = {IGNORED: "ignored", **{name: name for name in ALIASES}, **NUMBERS}
DECIMALS = {"": "not clear", ".": "1,024.5", ",": "1.024,5"}  # by decimal mark
# Fields that a user can set to one value for all rows.
CONSTANTS = ("implementation", "dtype", "head_dim", "batch", "num_heads", "causal", "mode", "timing")
_FILE = "mappings.json"
_MAX_REMEMBERED = 1000


@dataclass(frozen=True)
class TableMapping:
    """The meaning of every column of a table, and the decimal mark of its numbers."""

    roles: tuple[Role, ...]
    decimal: str = "."
    constants: Mapping[str, str] = field(default_factory=dict)  # field -> its value in all rows

    @property
    def fields(self) -> dict[str, int]:
        """Return which column holds which field."""
        return {role.meaning: at for at, role in enumerate(self.roles) if role.meaning in ALIASES}

    def numbers(self, header: Sequence[str]) -> list[NumberColumn]:
        """Return the columns of numbers. The baseline of a speedup is the first implementation among the columns."""
        said = {at: role for at, role in enumerate(self.roles) if role.meaning in NUMBERS}
        spreads = {_spread_key(role): at for at, role in said.items() if role.statistic == "std"}
        first = next((r.implementation for r in said.values() if r.implementation and "speedup" not in r.meaning), "")
        found = []
        for at, role in said.items():
            metric, unit = role.meaning.split("/")
            if role.statistic == "std":
                continue
            found.append(
                NumberColumn(
                    at,
                    header[at],
                    metric,
                    role.implementation or None,
                    role.mode or None,
                    (first or None) if metric == "speedup" else None,
                    role.statistic,
                    spreads.get(_spread_key(role)),
                    UNITS[unit][1],
                )
            )
        return found

    def problem(self) -> str | None:
        """Return the missing part for reading a table; None if nothing is missing."""
        numbers = [role for role in self.roles if role.meaning in NUMBERS and role.statistic != "std"]
        if not numbers:
            return "No column of times or other numbers was found. Which one is it?"
        fields = {*self.fields, *self.constants}
        if "implementation" not in fields and not all(role.implementation for role in numbers):
            return "No column for the implementation was found. Choose one, or name it for all rows."
        if not fields & {"seqlen", "seqlen_q"}:
            return "No column for the sequence length was found. Which one is it?"
        return None


def guess(sheet: Sheet) -> TableMapping:
    """Return the mapping that header and cells suggest. If two columns have the same field, the first counts."""
    roles: list[Role] = []
    for name in sheet.header:
        meaning = field_of(name, sheet.header) or IGNORED
        said = None if meaning else number_role(name)
        taken = meaning and any(role.meaning == meaning for role in roles)
        roles.append(said or Role(IGNORED if taken else meaning))
    rows_say = any(role.meaning == "implementation" for role in roles)
    systems = {role.implementation for role in roles if role.meaning in NUMBERS and role.implementation}
    settled = [_settled(role, rows_say, list(systems), roles) for role in roles]
    times = [role for role in settled if role.meaning.startswith("latency_ms/")]
    # With a single column of times, a column `std` belongs to it, and a speedup without a mode has its mode.
    for at, role in enumerate(settled if len(times) == 1 else ()):
        if role.meaning == IGNORED and normalise(sheet.header[at]) in values.WORDS["statistics"]["std"]:
            settled[at] = replace(times[0], statistic="std")
        elif role.meaning.startswith("speedup") and not role.mode:
            settled[at] = replace(role, mode=times[0].mode)
    return TableMapping(tuple(settled), values.decimal_of(cell for _, row in sheet.rows[:LOOKED_AT] for cell in row))


def key_of(header: Sequence[str]) -> str:
    """Return the name under which a mapping of that header is remembered."""
    return hashlib.sha256("\x1f".join(map(normalise, header)).encode()).hexdigest()[:20]


def remembered(home: Path) -> dict[str, TableMapping]:
    """Return the corrected mappings by `key_of`; unreadable ones are ignored."""
    try:
        records = json.loads((Path(home) / _FILE).read_bytes())
        items = list(records.items())[-_MAX_REMEMBERED:]
    except (OSError, ValueError, RecursionError, AttributeError):
        return {}
    found = {}
    for key, record in items:
        try:
            found[key] = from_json(record)
        except UploadError:
            continue
    return found


def remember(home: Path, header: Sequence[str], mapping: TableMapping) -> None:
    """Keep a mapping for tables with that header. Raises UploadError if the home cannot be written."""
    known = {key: to_json(each) for key, each in remembered(home).items()} | {key_of(header): to_json(mapping)}
    try:
        Path(home).mkdir(parents=True, exist_ok=True)
        durable.replace_file(Path(home) / _FILE, json.dumps(known, indent=1))
    except OSError as error:
        raise UploadError(f"The mapping cannot be kept in {home}: {error.strerror}.") from error


def changed(
    mapping: TableMapping, header: Sequence[str], columns: Sequence[str], constants: Sequence[str], decimal: str | None
) -> TableMapping:
    """Return the mapping with corrections as typed: `NAME=MEANING[:IMPLEMENTATION[:MODE]]` and `FIELD=VALUE`.

    Raises UploadError that says what is possible.
    """
    roles = list(mapping.roles)
    for text in columns:
        name, _, said = text.rpartition("=")
        if name not in header:
            raise UploadError(f"There is no column {name!r}. Columns: {', '.join(header)}.")
        meaning, implementation, mode, *_ = (*said.split(":"), "", "")
        if meaning not in CHOICES or mode not in ("", *MODE_ALIASES):
            raise UploadError(f"{said!r} is no meaning of a column. Possible: {', '.join(filter(None, CHOICES))}.")
        roles[header.index(name)] = Role(meaning, implementation, MODE_ALIASES.get(mode, ""))
    fixed = dict(text.partition("=")[::2] for text in constants)
    check_constants(fixed)
    return TableMapping(tuple(roles), decimal or mapping.decimal, {**mapping.constants, **fixed})


def to_json(mapping: TableMapping) -> dict[str, Any]:
    """Return the mapping as plain data; `from_json` is its inverse."""
    return asdict(mapping) | {"constants": dict(mapping.constants)}


def from_json(record: Any) -> TableMapping:
    """Return the mapping of plain data. Raises UploadError if it is none."""
    try:
        roles = tuple(Role(**role) for role in record["roles"])
        mapping = TableMapping(roles, record["decimal"], dict(record["constants"]))
    except (TypeError, KeyError, ValueError) as error:
        raise UploadError(f"This is no mapping of columns: {error}.") from error
    statistics = ("printed", *_STATISTICS.values())
    wrong = [role for role in roles if role.meaning not in CHOICES or role.statistic not in statistics]
    wrong += [role for role in roles if role.mode and role.mode not in MODE_ALIASES.values()]
    if wrong or mapping.decimal not in DECIMALS or len(roles) > MAX_COLUMNS:
        raise UploadError("This is no mapping of columns: it has a meaning that does not exist.")
    check_constants(mapping.constants)
    return mapping


def check_constants(constants: Mapping[str, str]) -> dict[str, Any]:
    """Return the parsed values that are the same in all rows. Raises UploadError that names the field."""
    found = {}
    for name, text in constants.items():
        if name not in CONSTANTS:
            raise UploadError(f"{name[:40]!r} cannot be said for all rows; possible are {', '.join(CONSTANTS)}.")
        try:
            found[name] = PARSERS[name](text)
        except CellError as error:
            raise UploadError(f"{name} {text[:80]!r} {error}.") from error
    return found


def _settled(role: Role, rows_say: bool, systems: Sequence[str], roles: Sequence[Role]) -> Role:
    """Return the role, or an ignored one if its implementation is unknown."""
    if role.meaning not in NUMBERS:
        return role
    if rows_say:
        return Role() if role.implementation else role
    if not role.meaning.startswith("speedup"):
        return role if role.implementation or not systems else Role()
    if role.implementation or len(systems) != 2:
        return role if role.implementation and len(systems) > 1 else Role()
    order = [each.implementation for each in roles if each.meaning in NUMBERS and each.implementation]
    return Role(role.meaning, next(name for name in order if name != order[0]), role.mode, role.statistic)


def _spread_key(role: Role) -> tuple[str, str, str]:
    return role.meaning.partition("/")[0], role.implementation, role.mode
