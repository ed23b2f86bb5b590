"""Single cells of an upload, checked: text in, a value out, or CellError with the reason."""

import json
import math
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

from results.formats.errors import CellError
from results.paths import toml_of
from results.records import DTYPES, Status
from results.schema import LARGEST, LARGEST_WHOLE, SMALLEST, magnitude_fits

# Names that other people give to columns, units and values.
WORDS: dict[str, Any] = toml_of(__file__, "words.toml")
DTYPE_ALIASES = {word: name for name, words in WORDS["dtypes"].items() for word in words}
DTYPE_ALIASES |= {name: name for name in DTYPES}
MISSING = {word: Status(status) for status, words in WORDS["missing"].items() for word in words}
MAX_TEXT = 200

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+)(?:\.0+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_SPACED = re.compile(r"(?<=\d)[ '\u00a0\u2009\u202f\u2019](?=\d{3}(?!\d))")  # between groups of three digits
_POINT_NUMBER = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_COMMA_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d*)(?:,\d+)?", re.ASCII)
_EITHER = re.compile(r"[1-9]\d{0,2},\d{3}", re.ASCII)  # its comma can separate thousands or decimals
_SHOWS = {  # by decimal mark numbers that can only have that one, such as 0.35 or 1,024.5 with a point
    mark: re.compile(
        rf"[+-]?(?:0?{one}\d+|\d+{one}(?:\d{{1,2}}|\d{{4,}})|\d{{4,}}{one}\d+|\d{{1,3}}(?:{other}\d{{3}})+{one}\d+)",
        re.ASCII,
    )
    for mark, one, other in ((".", r"\.", ","), (",", ",", r"\."))
}
_MARKUP = re.compile(r"\]\(|\]\[|<[A-Za-z/!?]|://|&#?\w+;")
_NOT_FINITE = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}


def missing(text: str) -> Status | None:
    """Return the status for a word in place of a number; None for other words."""
    return MISSING.get(text.lower())


def number(text: str, *, minimum: float = -math.inf, above: float = -math.inf) -> float:
    """Return a finite number with a decimal point."""
    if text.lower() in _NOT_FINITE:
        raise CellError("must be finite; write OOM, N/A or leave the cell empty where there is no number")
    if _COMMA.fullmatch(text):
        raise CellError(f"has a decimal comma; write {text.replace(',', '.')}")
    if not _NUMBER.fullmatch(text):
        raise CellError("is not a number")
    value = float(text)
    if not magnitude_fits(value):
        raise CellError(f"is neither 0 nor between {SMALLEST:g} and {LARGEST:g}")
    if value <= above:
        raise CellError(f"must be above {above:g}")
    if value < minimum:
        raise CellError(f"must be at least {minimum:g}")
    return value


positive, number_from_0 = partial(number, above=0), partial(number, minimum=0)


def ratio(text: str) -> float:
    """Return a ratio such as 3.8, 3.8x or 3.8×."""
    return number(text.removesuffix("x").removesuffix("×").rstrip(), above=0)


@lru_cache(maxsize=4096)
def whole(text: str, minimum: int = 1) -> int:
    """Return a whole number such as 1024, 1,024 or 1024.0."""
    match = _WHOLE.fullmatch(text)
    if not match:
        hint = f"; write {int(text[:-1]) * 1024}" if re.fullmatch(r"\d{1,6}[kK]", text, re.ASCII) else ""
        raise CellError(f"is not a whole number{hint}")
    digits = match[1].replace(",", "").lstrip("0")
    value = int(digits or 0) if len(digits) <= len(str(LARGEST_WHOLE)) else LARGEST_WHOLE + 1
    if not minimum <= value <= LARGEST_WHOLE:
        raise CellError(f"must be between {minimum} and {LARGEST_WHOLE}")
    return value


def localised(text: str, decimal: str) -> str:
    """Return a number written with thousands separators or a decimal comma as `number` reads it.

    `decimal` is the file's decimal mark, "" if it shows none. Other text is returned as it is.
    """
    text = _SPACED.sub("", text)
    if decimal == "," and _COMMA_NUMBER.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    if decimal == "." and _POINT_NUMBER.fullmatch(text):
        return text.replace(",", "")
    return text


def decimal_of(cells: Iterable[str]) -> str:
    """Return the decimal mark of the numbers in cells; "" if all of them are ambiguous."""
    texts = [cell.strip() for cell in cells]
    points, commas = (sum(_SHOWS[mark].fullmatch(text) is not None for text in texts) for mark in ".,")
    if points == commas:
        return "" if commas or any(map(_EITHER.fullmatch, texts)) else "."
    return "." if points > commas else ","


@lru_cache(maxsize=256)
def dtype(text: str) -> str:
    """Return a data type by its name or a usual short one."""
    name = text.lower().removeprefix("torch.")
    if name not in DTYPE_ALIASES:
        raise CellError(f"is not one of {', '.join(DTYPES)} (bf16, fp16, fp32 and fp64 also do)")
    return DTYPE_ALIASES[name]


def boolean(text: str) -> bool:
    """Return the boolean of True or False, yes or no, 1 or 0."""
    value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
    if value is None:
        raise CellError("is not one of True, False, yes, no, 1, 0")
    return value


@lru_cache(maxsize=4096)
def name(text: str) -> str:
    """Return the name of an implementation, a model or a device: `words` without markup."""
    refuse_markup(text)
    return words(text)


def refuse_markup(text: str) -> None:
    """Raise CellError if part of a name could be rendered as a link, an image or a tag."""
    if found := _MARKUP.search(text):
        raise CellError(f"has {found[0]!r}, which is markup; write the name in plain text")


@lru_cache(maxsize=4096)
def words(text: str) -> str:
    """Return the text unchanged. Raises CellError if it has control characters or is too long."""
    if len(text) > MAX_TEXT:
        raise CellError(f"has {len(text)} characters; at most {MAX_TEXT} are taken")
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            raise CellError(f"has the control character U+{ord(character):04X}")
    return text


def strict_json(text: str) -> Any:
    """Return the value of a JSON text. Raises CellError for invalid JSON, NaN, infinity and too deep nesting."""
    try:
        return json.loads(text, parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        raise CellError(f"is not JSON: {error}") from error


def _not_finite(name: str) -> None:
    raise ValueError(f"{name} is not finite")
