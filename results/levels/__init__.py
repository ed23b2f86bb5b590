"""Levels: the kinds of cases (operator, decoding, layer, model) and what each implies. Standard library only.

A level is a module of this folder that defines LEVEL, a `Level`, and a name in `results.records.LEVELS`. The `Level`
holds everything that plans, queries, checks and pages need to know about its cases, so that no other module branches on
the name of a level. `runner.levels` has the counterpart with tensors. `tensors` and `memory` hold shared arithmetic.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from results import features
from results.levels.memory import MemoryLaw, MemoryParts, WorkspaceLaw, memory_words
from results.levels.real_shapes import shape_of
from results.levels.tensors import Fields, known
from results.records import Case, case_to_json

LONGEST = 1 << 32  # Upper limit of the search for a length: no memory of today holds more tokens of one head.


class UnknownLevel(LookupError):
    """A level without a module; the message lists the levels that exist."""


@dataclass(frozen=True)
class Axis:
    """One axis of a level's map."""

    field: str  # field of the case, and column of the store's `measurements`
    column: str  # column in the results of queries
    label: str  # short name for table headers and legends: seqlen
    words: str  # name for titles: Sequence length


@dataclass(frozen=True)
class Mode:
    """One mode of a level, as far as plans and memory predictions need to know it."""

    memory_pass: str | None = None  # pass of the memory law that predicts its peak: "fwd", "fwd_bwd" or None
    planned_as: str | None = None  # mode whose predicted peak a plan shows, if this mode has no prediction
    measures_memory: bool = True  # also decides whether energy is measured
    backward: bool = False  # whether it needs an implementation with a backward pass
    matrix_passes: int = 6  # reads and writes of a score matrix that is kept in memory
    errors: tuple[str, ...] = ("error_out",)  # metrics of a sweep that records errors and times nothing


# The modes of an operator and of the layers around it.
ATTENTION_MODES: Mapping[str, Mode] = {
    "fwd": Mode("fwd"),
    "bwd": Mode(
        planned_as="fwd_bwd",
        measures_memory=False,
        backward=True,
        matrix_passes=8,
        errors=("error_dq", "error_dk", "error_dv"),
    ),
    "fwd_bwd": Mode("fwd_bwd", backward=True, matrix_passes=14, errors=("error_dq", "error_dk", "error_dv")),
}


@dataclass(frozen=True, kw_only=True)
class Level:
    """Everything that depends on the kind of a case. `Fields` are the fields of a case as a mapping."""

    name: str
    subjects: tuple[str, ...]  # known subjects; a published report may name others
    modes: Mapping[str, Mode]  # by names of results.records.MODES
    columns: Axis  # axis of the map with the sequence length; its column is always `seqlen`
    rows: Axis
    with_seqlen: Callable[[int], dict[str, int]]  # fields of a case with that length on `columns`
    shape_sql: str  # SQL over `measurements` and the run's `sweep`: the shape that a slice keeps apart, as text
    flops: Callable[[Fields, str | None], float | None]  # operations of one call in a mode
    flops_source: str
    bytes_moved: Callable[[Fields, str | None], float | None]  # least device memory traffic of one call
    bytes_source: str
    memory: Callable[[Fields, WorkspaceLaw, str], MemoryParts | None]  # parts of the peak of a pass
    words: Callable[[Case], str]  # stated sizes and dtype, without the mask: "batch 1, heads 16, seqlen 1024"
    short: Callable[[Case], str]  # shape, dtype and mask: B1 H16 S1024 D64 bfloat16 causal
    longest: Callable[[Fields], int | None] = lambda case: None  # most tokens of a case; None: no limit
    setup_s: Callable[[Case], float] = lambda case: 0.0  # seconds to build and compile the case, for estimates
    parts_mb: Callable[[Fields, str | None], dict[str, float]] = lambda case, mode: {}  # least memory of a call by part
    one_attention: bool = False  # whether a call is one attention on q, k and v, so that memory follows from these
    whole_model: bool = False  # whether the subject is a language model, which has weights and tokens per second
    memory_bound: bool = False  # whether reading the inputs limits the speed, rather than the operations
    first_filter: str = "mask"  # filter that pages show first: "mask" or "workload"
    open_filters: tuple[str, ...] = ()  # filters whose default is all values

    def place(self, row: Mapping[str, object]) -> tuple[object, object]:
        """Return the position of a row on the map: its values on `columns` and `rows`."""
        return row[self.columns.column], row[self.rows.column]

    def memory_pass(self, mode: str | None) -> str | None:
        """Return the pass of the memory law that predicts the peak of a mode; None if nothing predicts it."""
        found = self.modes.get(mode or "")
        return found.memory_pass if found else None


@cache
def names() -> tuple[str, ...]:
    """Return the names of the levels, which are the modules of this folder that define LEVEL."""
    return tuple(_levels())


def level_of(level: Case | Mapping[str, object] | str | None) -> Level:
    """Return the level of a case, of its fields, or of that name; op if the source did not state it.

    Raises UnknownLevel with the levels that exist.
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
    """Return the floating-point operations of one call; None if the case does not state what they depend on."""
    return level_of(case).flops(_fields(case), mode)


def bytes_moved(case: Case | Fields, mode: str | None) -> float | None:
    """Return the least bytes that one call reads and writes in device memory; None if a size is not stated."""
    return level_of(case).bytes_moved(_fields(case), mode)


def memory_parts(case: Case | Fields, law: MemoryLaw, mode: str | None) -> MemoryParts | None:
    """Return the parts of the predicted peak of one call.

    None if a size is not stated, or if the law's counts of that pass are not confirmed.
    """
    level = level_of(case)
    of_pass = level.memory_pass(mode)
    return _parts(level, _fields(case), law, of_pass) if of_pass and law.confirmed(of_pass) else None


def memory_mb(case: Case | Fields, law: MemoryLaw, mode: str | None) -> float | None:
    """Return the predicted peak of one call in MiB, inputs and results included.

    If the law's counts are not confirmed, return the minimum that its growth implies; None if that is not known.
    """
    level = level_of(case)
    of_pass = level.memory_pass(mode)
    parts = _parts(level, _fields(case), law, of_pass) if of_pass else None
    return parts.peak if parts else None


def _parts(level: Level, case: Fields, law: MemoryLaw, of_pass: str) -> MemoryParts | None:
    """Return the parts of a pass; for one attention, those of the forward if it needs more than its backward."""
    if known(case.get("features")):  # no law counts masks, lengths or other kernels
        return None
    work = law.confirmed(of_pass) or law.least(of_pass)
    parts = level.memory(case, work, of_pass) if work else None
    if parts is None or not level.one_attention or of_pass != "fwd_bwd" or law.fwd is None:
        return parts
    forward = replace(level.memory(case, law.fwd, "fwd"), given=parts.given)  # dout included
    return max(parts, forward, key=lambda each: each.peak)


def memory_formula(law: MemoryLaw, level: Level, mode: str | None) -> str | None:
    """Return in words what a predicted peak counts; None if nothing is known about the pass."""
    of_pass = level.memory_pass(mode)
    return memory_words(law, of_pass) if of_pass else None


def largest_seqlen(case: Case | Fields, law: MemoryLaw, mode: str | None, memory: float) -> int | None:
    """Return the longest sequence whose predicted peak fits `memory` MiB; 0 if none does.

    None if nothing is predicted. If the law's counts are not confirmed, the answer is a power of two.
    """
    level, fields = level_of(case), _fields(case)

    def fits(seqlen: int) -> bool:
        return memory_mb({**fields, **level.with_seqlen(seqlen)}, law, mode) <= memory

    if memory_mb({**fields, **level.with_seqlen(1)}, law, mode) is None:
        return None
    confirmed = law.confirmed(level.memory_pass(mode)) is not None
    fit, too_long = 0, 1
    while too_long <= LONGEST and fits(too_long):
        fit, too_long = too_long, 2 * too_long
    while confirmed and too_long - fit > 1:
        middle = (fit + too_long) // 2
        fit, too_long = (middle, too_long) if fits(middle) else (fit, middle)
    return min(fit, LONGEST, level.longest(fields) or LONGEST)


def words(case: Case) -> str:
    """Return the case in words: the stated shape, dtype and mask, and a model that has this shape."""
    mask = "causal" if case.causal else None
    model = shape_of(case)
    window = f"window {case.window_size}" if case.window_size else None
    of = f"as {model.name}" if model else None
    asked = features.words(case.features)
    return ", ".join(part for part in (level_of(case).words(case), mask, window, asked, of) if part)


def spelled(case: Case, **fields: str) -> Iterator[str]:
    """Yield word and number of each field that is stated and not 0: seqlen="seqlen_q" gives seqlen 1024."""
    numbers = ((word, getattr(case, field)) for word, field in fields.items())
    return (f"{word} {number}" for word, number in numbers if number)


def heads_spelled(case: Case) -> Iterator[str]:
    """Yield the query heads if they are stated, and the key heads if they differ: heads 64 over 8."""
    grouped = case.num_kv_heads and case.num_kv_heads != case.num_heads
    return (f"{heads} over {case.num_kv_heads}" if grouped else heads for heads in spelled(case, heads="num_heads"))


def _fields(case: Case | Fields) -> Fields:
    return case_to_json(case) if isinstance(case, Case) else case


@cache
def _levels() -> dict[str, Level]:
    """Return every level by name. Raises UnknownLevel if a module's LEVEL is not a Level with the module's name."""
    found: dict[str, Level] = {}
    for stem in sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")):
        level = getattr(importlib.import_module(f"{__name__}.{stem}"), "LEVEL", None)
        if level is None:
            continue
        if not isinstance(level, Level) or level.name != stem:
            raise UnknownLevel(f"results/levels/{stem}.py defines LEVEL as {level!r}; it must be the Level {stem!r}.")
        found[stem] = level
    return found
