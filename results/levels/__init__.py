"""Levels: the kinds of cases (operator, decoding, layer, model) and what each implies. Standard library only.

A level is a module of this folder that defines LEVEL, a `Level`, and a name in `results.records.LEVELS`. The `Level`
holds everything that plans, queries, checks and pages need to know about its cases, so that no other module branches on
the name of a level. `runner.levels` has the counterpart with tensors. `tensors` and `memory` hold shared arithmetic.

A module may keep everything but its functions in a TOML file (`declared`): axes, modes, sources and texts. A text has
parts, each with alternatives after " | ". The first alternative whose fields are all stated and not 0 is written;
`{num_kv_heads!num_heads}` is also left out where it equals the other field.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from results import features
from results.levels.memory import MemoryLaw, MemoryParts, WorkspaceLaw, memory_words
from results.levels.real_shapes import shape_of
from results.levels.tensors import Fields, known
from results.paths import toml_of
from results.records import Case, case_to_json

_Part = Sequence[tuple[str, Sequence[tuple[str, str]]]]  # alternatives: text, its fields with what each differs from
_FIELD = re.compile(r"\{(\w+)!?(\w+)?\}")
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
    also: str = ""  # a field that has the same value where nothing else is said


@dataclass(frozen=True)
class Mode:
    """One mode of a level, as far as plans and memory predictions need to know it."""

    memory_pass: str | None = None  # pass of the memory law that predicts its peak: "fwd", "fwd_bwd" or None
    planned_as: str | None = None  # mode whose predicted peak a plan shows, if this mode has no prediction
    measures_memory: bool = True  # also decides whether energy is measured
    backward: bool = False  # whether it needs an implementation with a backward pass
    matrix_passes: int = 6  # reads and writes of a score matrix that is kept in memory
    errors: tuple[str, ...] = ("error_out",)  # metrics of a sweep that records errors and times nothing


@dataclass(frozen=True, kw_only=True)
class Level:
    """Everything that depends on the kind of a case. `Fields` are the fields of a case as a mapping."""

    name: str
    subjects: tuple[str, ...]  # known subjects; a published report may name others
    modes: Mapping[str, Mode]  # by names of results.records.MODES
    columns: Axis  # axis of the map with the sequence length; its column is always `seqlen`
    rows: Axis
    shape_sql: str  # SQL over `measurements` and the run's `sweep`: the shape that a slice keeps apart, as text
    flops: Callable[[Fields, str | None], float | None]  # operations of one call; None if a size is not stated
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

    def with_seqlen(self, seqlen: int) -> dict[str, int]:
        """Return the fields of a case with that length on `columns`."""
        return dict.fromkeys(filter(None, (self.columns.field, self.columns.also)), seqlen)

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


def declared(module_file: str, said: Callable[[Case], Mapping[str, object]] | None = None, **functions: Any) -> Level:
    """Return the level of the TOML file next to a module, which may read more from it.

    `said` has words of a case beyond its fields.
    """
    path = Path(module_file)
    read = toml_of(module_file)
    modes = {name: Mode(**about) for name, about in read.pop("modes").items()}
    axes = {name: Axis(**read.pop(name)) for name in ("columns", "rows")}
    joints = {"words": ", ", "short": " "}
    texts = {name: partial(_written, [*map(_parsed, read.pop(name))], joint, said) for name, joint in joints.items()}
    # The other entries are read by the level's module.
    known = {name: value for name, value in read.items() if name in Level.__dataclass_fields__}
    return Level(**known | axes | texts | {"name": path.stem, "modes": modes, **functions})


def _written(
    parts: Sequence[_Part], joint: str, more: Callable[[Case], Mapping[str, object]] | None, case: Case
) -> str:
    """Return a text of a case from its parts; see the module. A field that is true is written as its name."""
    fields = {**vars(case), "mask": {True: "causal", False: "full"}.get(case.causal), **(more(case) if more else {})}
    texts = []
    for part in parts:
        for text, names in part:
            found = {name: name if fields[name] is True else fields[name] for name, _ in names}
            if all(
                value and value != fields.get(other) for (_, other), value in zip(names, found.values(), strict=True)
            ):
                texts.append(text.format_map(found))
                break
    return joint.join(texts)


def _parsed(part: str) -> _Part:
    """Return the alternatives of a part, each with its fields and the field that each must differ from."""
    return tuple((_FIELD.sub(r"{\1}", text), tuple(_FIELD.findall(text))) for text in part.split(" | "))


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
