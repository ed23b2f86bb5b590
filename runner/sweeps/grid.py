"""The base class of sweeps, which are grids of cases of one level, their axes, and the TOML file that declares them."""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from results import batches
from results.features import canonical
from results.records import DTYPES, TIMINGS, Case

TORCH = (
    "torch_naive", "torch_sdpa_auto", "torch_sdpa_flash", "torch_sdpa_cudnn", "torch_sdpa_efficient",
    "torch_sdpa_math",
)  # fmt: skip
_LARGEST = 999_999_999  # largest whole number in the database
_MOST_HEADS = 1024
_BOOLEANS = {"true": True, "false": False}


class SweepError(ValueError):
    """A sweep or override that does not exist or has no case; the message says what is possible."""


@dataclass(frozen=True)
class GridAxis:
    """One axis of a level's sweeps: its possible values and its place in the form of a sweep."""

    name: str  # field of the sweep
    kind: str = "whole"  # whole, boolean, text (one of `choices`), heads (64/8), batch (2q2k_32q1s4k), features (sinks)
    choices: tuple[str, ...] = ()  # possible texts
    about: str | None = None  # explanation for users
    first: bool = False  # whether the form always shows it; the other axes are folded
    of_a_cell: str = ""  # in the form of a single cell: "one": required value; "any": folded; "": not shown
    optional: bool = False  # whether it may have no value

    @property
    def options(self) -> tuple[str, ...]:
        """Return the values to select from; none if the value is typed."""
        return tuple(_BOOLEANS) if self.kind == "boolean" else self.choices

    def parse(self, text: str) -> Any:
        """Return one value from its text. Raises SweepError with the possible values."""
        if self.kind == "heads":
            split_heads(text)
            return text
        try:
            if self.kind == "features":
                return canonical(text.replace("+", ",")) or ""
            if self.kind == "batch":
                return batches.spelled(batches.parse(text))
        except ValueError as error:
            raise SweepError(str(error)) from error
        if self.kind == "boolean":
            if text not in _BOOLEANS:
                raise SweepError(f"{self.name} {text!r} is not true or false.")
            return _BOOLEANS[text]
        if self.kind == "text":
            if text not in self.choices:
                raise SweepError(f"{self.name} {text!r} is not one of {', '.join(self.choices)}.")
            return text
        try:
            value = int(text)
        except ValueError:
            raise SweepError(f"{self.name} {text!r} is not a whole number.") from None
        if value > _LARGEST:
            raise SweepError(f"{self.name} {value} is too large; at most {_LARGEST} is possible.")
        return value


STANDARD_AXES = {
    "dtype": GridAxis("dtype", "text", DTYPES, of_a_cell="one"),
    "timings": GridAxis(
        "timings",
        "text",
        TIMINGS,
        about="kernel: device time only; eager: a plain call. If empty, only errors are recorded.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Sweep(ABC):
    """A grid of cases of one level. The class of a level adds the fields of its axes."""

    LEVEL: ClassVar[str]
    AXES: ClassVar[tuple[GridAxis, ...]]  # in the order of the form
    FOLDED: ClassVar[str]  # heading of the folded axes in the form
    FOLDED_OF_A_CELL: ClassVar[str]  # heading of the folded axes in the form of a single cell
    RULES: ClassVar[Mapping[str, str]] = MappingProxyType({})  # by axis the field that, if set, derives its values
    PEERS: ClassVar[tuple[str, ...]] = ()  # implementations to add when the cases come from a table

    name: str
    description: str
    dtype: tuple[str, ...] = ("bfloat16", "float32")
    implementations: tuple[str, ...]
    baseline: str = "torch_naive"
    modes: tuple[str, ...]
    timings: tuple[str, ...] = TIMINGS  # empty: only the errors against float64 are recorded
    energy: bool = False  # whether --standard measures energy too, 0.1 s for each forward and fwd_bwd
    protocol: str = "standard"  # default sampling preset

    @property
    def extrapolates(self) -> bool:
        """Return whether models that do not fit the device are extrapolated from fewer layers."""
        return False

    @property
    def level(self) -> str:
        """Return the level of its cases."""
        return self.LEVEL

    def cases(self) -> tuple[Case, ...]:
        """Return every case of the grid, in its order. Raises SweepError for an impossible combination."""
        try:
            return tuple(self._cases())
        except SweepError:
            raise
        except ValueError as error:
            raise SweepError(f"Sweep {self.name!r}: {error}") from error

    def takes_part(self, case: Case, implementation: str, mode: str) -> bool:
        """Return whether a combination is planned; by default all are."""
        return True

    @abstractmethod
    def _cases(self) -> Iterator[Case]:
        """Yield the cases of the grid. Raises ValueError for an impossible combination."""


class SweepFile:
    """The TOML file next to the module of a level.

    It has `[groups]` of implementations, `axes`, `[defaults]` of the sweeps, and `[sweeps.NAME]`.
    """

    def __init__(self, module_file: str) -> None:
        self._read = tomllib.loads(Path(module_file).with_suffix(".toml").read_text(encoding="utf-8"))
        self._groups: dict[str, list[str]] = {"torch": list(TORCH), **self._read.get("groups", {})}

    def names(self, *names: str) -> tuple[str, ...]:
        """Return implementations, with each name of a group replaced by its members."""
        return tuple(member for name in names for member in self._groups.get(name, [name]))

    def axes(self, **choices: Sequence[str]) -> tuple[GridAxis, ...]:
        """Return the axes in the order of the form; `choices` has the possible texts of an axis by its name."""
        texts: dict[str, dict[str, Any]] = {
            name: {"kind": "text", "choices": tuple(possible)} for name, possible in choices.items()
        }
        return tuple(
            replace(STANDARD_AXES.get(each["name"], GridAxis("")), **texts.get(each["name"], {}), **each)
            for each in self._read["axes"]
        )

    def sweeps(self, kind: type[Sweep]) -> tuple[Any, ...]:
        """Return the sweeps of a level. A sweep overrides the defaults, which override the defaults of its class."""
        found = []
        for name, own in self._read["sweeps"].items():
            said = {"name": name, **self._read.get("defaults", {}), **own}
            values: dict[str, Any] = {
                field: tuple(value) if isinstance(value, list) else value for field, value in said.items()
            }
            if "implementations" in values:
                values["implementations"] = self.names(*values["implementations"])
            found.append(kind(**values))
        return tuple(found)


def split_heads(text: str) -> tuple[int, int]:
    """Return query heads and key heads of "64/8" or "32", which means 32/32. Raises SweepError for other texts."""
    first, slash, second = text.partition("/")
    counts = [part.strip() for part in ((first, second) if slash else (first, first))]
    if not all(part.isdecimal() and 0 < int(part) <= _MOST_HEADS for part in counts):
        raise SweepError(f"heads {text!r} is not query heads over key heads, each at most {_MOST_HEADS}, such as 64/8.")
    return int(counts[0]), int(counts[1])
