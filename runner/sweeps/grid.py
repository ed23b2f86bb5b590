"""What a sweep is: a grid of cases of one level and what to measure of them; and the axes that it can be given."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from results.records import DTYPES, TIMINGS, Case

TORCH = (
    "torch_naive",
    "torch_sdpa_auto",
    "torch_sdpa_flash",
    "torch_sdpa_cudnn",
    "torch_sdpa_efficient",
    "torch_sdpa_math",
)
_LARGEST = 999_999_999  # that the database takes
_MOST_HEADS = 1024
_BOOLEANS = {"true": True, "false": False}


class SweepError(ValueError):
    """A sweep or override that does not exist or makes no case; the message says what is possible."""


@dataclass(frozen=True)
class GridAxis:
    """One axis of a level's sweeps: which values it takes, and where the form of a sweep asks for it."""

    name: str  # the field of the sweep
    kind: str = "whole"  # whole, boolean, text (one of `choices`) or heads (64/8)
    choices: tuple[str, ...] = ()  # of a text
    about: str | None = None  # for people
    first: bool = False  # shown by the form at once; the others are folded away
    of_a_cell: str = ""  # "one": a sweep of one cell is asked for one value; "any": it has any, folded; "": none
    optional: bool = False  # whether it may have no value

    @property
    def options(self) -> tuple[str, ...]:
        """Return what can be chosen; nothing of a value that is typed."""
        return tuple(_BOOLEANS) if self.kind == "boolean" else self.choices

    def parse(self, text: str) -> Any:
        """Return one value from its text. Raises SweepError saying what is possible."""
        if self.kind == "heads":
            split_heads(text)
            return text
        if self.kind == "boolean":
            if text not in _BOOLEANS:
                raise SweepError(f"{self.name} {text!r} is not true or false.")
            return _BOOLEANS[text]
        if self.kind == "text":
            if text not in self.choices:
                raise SweepError(f"{self.name} {text!r} is not one of {', '.join(self.choices)}.")
            return text
        return self._whole(text)

    def _whole(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise SweepError(f"{self.name} {text!r} is not a whole number.") from None
        if value > _LARGEST:
            raise SweepError(f"{self.name} {value} is too large; at most {_LARGEST} is possible.")
        return value


DTYPE = GridAxis("dtype", "text", DTYPES, of_a_cell="one")
TIMING = GridAxis(
    "timings",
    "text",
    TIMINGS,
    about="kernel: on the device alone; eager: a plain call. None: only errors are taken.",
)


@dataclass(frozen=True, kw_only=True)
class Sweep(ABC):
    """A grid of cases of one level. A level's class adds the fields of its axes."""

    LEVEL: ClassVar[str]
    AXES: ClassVar[tuple[GridAxis, ...]]  # in the order of the form
    FOLDED: ClassVar[str]  # heads the axes that the form folds away
    FOLDED_OF_A_CELL: ClassVar[str]  # heads those of a sweep of one cell
    RULES: ClassVar[Mapping[str, str]] = MappingProxyType({})  # by axis the field that, if set, derives its values
    PEERS: ClassVar[tuple[str, ...]] = ()  # implementations to add when the cases come from a table

    name: str
    description: str
    dtype: tuple[str, ...] = ("bfloat16", "float32")
    implementations: tuple[str, ...]
    baseline: str = "torch_naive"
    modes: tuple[str, ...]
    timings: tuple[str, ...] = TIMINGS  # none: only the errors against float64 are taken
    energy: bool = False  # whether standard measures joules too: a tenth of a second for each forward and fwd_bwd
    protocol: str = "standard"  # the sampling preset when none is chosen

    @classmethod
    def completed(cls, case: Case, sizes: Mapping[str, Any]) -> Case:
        """Return a case of a table with unstated fields filled in; `sizes` has those that all levels share.

        Only the levels in `runner.sweeps.given.KINDS` need it.
        """
        raise NotImplementedError(f"Level {cls.LEVEL} takes no cases of tables.")

    @property
    def extrapolates(self) -> bool:
        """Return whether what does not fit a device is extrapolated from smaller models."""
        return False

    @property
    def level(self) -> str:
        """Return the level of its cases."""
        return self.LEVEL

    def cases(self) -> tuple[Case, ...]:
        """Return every case of the grid, short sequences first. Raises SweepError if a combination is impossible."""
        try:
            return tuple(self._cases())
        except SweepError:
            raise
        except ValueError as error:
            raise SweepError(f"Sweep {self.name!r}: {error}") from error

    def with_axes(self, values: dict[str, tuple[Any, ...]]) -> Sweep:
        """Return the sweep with axes replaced, which ends the rules that gave their values."""
        ended = {rule: None for axis, rule in self.RULES.items() if axis in values}
        return dataclasses.replace(self, **values, **ended)

    def takes_part(self, case: Case, implementation: str, mode: str) -> bool:
        """Tell whether a combination is planned at all; all are, unless the level knows modes apart by their case."""
        return True

    @abstractmethod
    def _cases(self) -> Iterator[Case]:
        """Yield the cases of the grid; ValueError names a combination that makes no case."""


def split_heads(text: str) -> tuple[int, int]:
    """Return query heads and key heads of "64/8", or of "32" for as many. Raises SweepError for any other text."""
    first, slash, second = text.partition("/")
    counts = [part.strip() for part in ((first, second) if slash else (first, first))]
    if not all(part.isdecimal() and 0 < int(part) <= _MOST_HEADS for part in counts):
        raise SweepError(f"heads {text!r} is not query heads over key heads of at most {_MOST_HEADS}, such as 64/8.")
    return int(counts[0]), int(counts[1])
