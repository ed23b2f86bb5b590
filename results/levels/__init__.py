"""Levels: what a case is a case of, and what follows from that. Standard library only.

A level is a module of this folder that defines LEVEL. It names the axes of a map, the modes, the fields that a slice
keeps apart, and the formulas for operations, bytes, memory and words. Everything else asks `level_of`. `tensors` and
`memory` hold the arithmetic that levels share.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from results.levels.memory import MemoryLaw, MemoryParts, WorkspaceLaw, memory_words
from results.levels.real_shapes import shape_of
from results.levels.tensors import Fields
from results.records import Case, case_to_json

__all__ = [
    *("Axis", "Level", "UnknownLevel", "bytes_moved", "flops", "largest_seqlen", "level_of", "memory_formula"),
    *("heads_spelled", "memory_mb", "memory_parts", "names", "spelled", "words"),
]


LONGEST = 1 << 32  # where the search for a length ends: beyond what any memory of today holds of one head


class UnknownLevel(LookupError):
    """A level that has no module; the message names those that exist."""


@dataclass(frozen=True)
class Axis:
    """One axis of a level's map."""

    field: str  # of the case, and the column of the store's `measurements`
    column: str  # of the rows that queries answer with
    label: str  # in headers of tables and legends: seqlen
    words: str  # in titles: Sequence length


@dataclass(frozen=True)
class Level:
    """What a kind of case has in common. `Fields` are those of a case, as a mapping."""

    name: str
    subjects: tuple[str, ...]  # that are known; a published report may name others
    modes: tuple[str, ...]
    columns: Axis  # of a map, from left to right or top to bottom as the page draws it; always the column `seqlen`
    rows: Axis
    with_seqlen: Callable[[int], dict[str, int]]  # the fields of a case that is so long on `columns`
    shape_sql: str  # over `measurements` and the run's `sweep`: the workload's shape that a slice keeps apart, as text
    flops: Callable[[Fields, str | None], float | None]  # of one call in a mode
    flops_source: str
    bytes_moved: Callable[[Fields, str | None], float | None]  # the least traffic to device memory of one call
    bytes_source: str
    memory_passes: Mapping[str, str]  # by mode that has a predicted peak, the pass of the memory law that it is
    memory: Callable[[Fields, WorkspaceLaw, str], MemoryParts | None]  # what the peak of a pass is made of
    words: Callable[[Case], str]  # the shape as far as it is said, without the mask: "batch 1, heads 16, seqlen 1024"
    short: Callable[[Case], str]  # shape, dtype and mask: B1 H16 S1024 D64 bfloat16 causal
    longest: Callable[[Fields], int | None] = lambda case: None  # tokens that a case can have; None: any number

    def place(self, row: Mapping[str, object]) -> tuple[object, object]:
        """Return where a row stands on the map: its values on `columns` and `rows`."""
        return row[self.columns.column], row[self.rows.column]


@cache
def names() -> tuple[str, ...]:
    """Return the names of the levels, found by listing this folder for modules with a LEVEL."""
    return tuple(_levels())


def level_of(level: Case | Mapping[str, object] | str | None) -> Level:
    """Return the level of a case, of its fields, or of that name; op where the source did not say.

    Raises UnknownLevel naming those that exist.
    """
    if isinstance(level, Case):
        level = level.level
    elif isinstance(level, Mapping):
        level = level.get("level")  # type: ignore[assignment]
    name = "op" if level is None or str(level) in ("nan", "<NA>") else str(level)
    try:
        return _levels()[name]
    except KeyError:
        raise UnknownLevel(f"Unknown level {name!r}. Available: {', '.join(names())}.") from None


def flops(case: Case | Fields, mode: str | None) -> float | None:
    """Return the floating-point operations of one call; None if the case leaves something open."""
    return level_of(case).flops(_fields(case), mode)


def bytes_moved(case: Case | Fields, mode: str | None) -> float | None:
    """Return the least bytes that one call reads and writes in device memory; None if the case leaves a size open."""
    return level_of(case).bytes_moved(_fields(case), mode)


def memory_parts(case: Case | Fields, law: MemoryLaw, mode: str | None) -> MemoryParts | None:
    """Return what the predicted peak of one call is made of.

    None if the case leaves a size open, or if the law's counts of that pass were not confirmed.
    """
    level = level_of(case)
    of_pass = level.memory_passes.get(mode or "")
    return _parts(level, _fields(case), law, of_pass) if of_pass and law.confirmed(of_pass) else None


def memory_mb(case: Case | Fields, law: MemoryLaw, mode: str | None) -> float | None:
    """Return the predicted peak of one call in MiB, inputs and results included.

    Where the law's counts were not confirmed, return what its growth says must be kept; None if that is not known.
    """
    level = level_of(case)
    of_pass = level.memory_passes.get(mode or "")
    parts = _parts(level, _fields(case), law, of_pass) if of_pass else None
    return parts and parts.peak


def _parts(level: Level, case: Fields, law: MemoryLaw, of_pass: str) -> MemoryParts | None:
    """Return the parts of a pass; of the operator forward and backward, those of the forward where it needs more."""
    work = law.confirmed(of_pass) or law.least(of_pass)
    parts = level.memory(case, work, of_pass) if work else None
    if parts is None or level.name != "op" or of_pass != "fwd_bwd" or law.fwd is None:
        return parts
    forward = replace(level.memory(case, law.fwd, "fwd"), given=parts.given)  # with dout
    return max(parts, forward, key=lambda each: each.peak)


def memory_formula(law: MemoryLaw, level: Level, mode: str | None) -> str | None:
    """Return what a predicted peak counts; None if nothing is known of the pass."""
    of_pass = level.memory_passes.get(mode or "")
    return memory_words(law, of_pass) if of_pass else None


def largest_seqlen(case: Case | Fields, law: MemoryLaw, mode: str | None, memory: float) -> int | None:
    """Return the most tokens on the map's axis of sequences whose predicted peak fits `memory` MiB; 0 if none do.

    None if nothing is predicted. Where the law's counts were not confirmed, the answer is a power of two.
    """
    level, fields = level_of(case), _fields(case)

    def fits(seqlen: int) -> bool:
        return memory_mb({**fields, **level.with_seqlen(seqlen)}, law, mode) <= memory

    if memory_mb({**fields, **level.with_seqlen(1)}, law, mode) is None:
        return None
    confirmed = law.confirmed(level.memory_passes.get(mode or "")) is not None
    fit, too_long = 0, 1
    while too_long <= LONGEST and fits(too_long):
        fit, too_long = too_long, 2 * too_long
    while confirmed and too_long - fit > 1:
        middle = (fit + too_long) // 2
        fit, too_long = (middle, too_long) if fits(middle) else (fit, middle)
    return min(fit, LONGEST, level.longest(fields) or LONGEST)


def words(case: Case) -> str:
    """Return the case in words: its shape, dtype and mask as far as they are said, and the model that has the shape."""
    mask = "causal" if case.causal else None
    model = shape_of(case)
    window = f"window {case.window_size}" if case.window_size else None
    of = f"as {model.name}" if model else None
    return ", ".join(part for part in (level_of(case).words(case), mask, window, of) if part)


def spelled(case: Case, **fields: str) -> Iterator[str]:
    """Yield word and number of those fields of a case that are said and not 0: seqlen="seqlen_q" gives seqlen 1024."""
    numbers = ((word, getattr(case, field)) for word, field in fields.items())
    return (f"{word} {number}" for word, number in numbers if number)


def heads_spelled(case: Case) -> Iterator[str]:
    """Yield the query heads if they are said, over the key heads if those are others: heads 64 over 8."""
    grouped = case.num_kv_heads and case.num_kv_heads != case.num_heads
    return (f"{heads} over {case.num_kv_heads}" if grouped else heads for heads in spelled(case, heads="num_heads"))


def _fields(case: Case | Fields) -> Fields:
    return case_to_json(case) if isinstance(case, Case) else case


@cache
def _levels() -> dict[str, Level]:
    """Return every level by name. Raises UnknownLevel if a module's LEVEL is not a Level of the module's name."""
    found: dict[str, Level] = {}
    for stem in sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")):
        level = getattr(importlib.import_module(f"{__name__}.{stem}"), "LEVEL", None)
        if level is None:
            continue
        if not isinstance(level, Level) or level.name != stem:
            raise UnknownLevel(f"results/levels/{stem}.py defines LEVEL as {level!r}; it must be the Level {stem!r}.")
        found[stem] = level
    return found
