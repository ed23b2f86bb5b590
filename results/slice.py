"""A slice of the results: what the shared filters choose, as SQL, and how it is cut into cells.

Speeds are compared within one run: one run counts for each case (results/counting.py), and all implementations of
the case come from it. Text columns made here (`workload`, `mask`, `shape`) name what a slice keeps apart; where the
source did not state it, they say so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from results.levels import Level, level_of, names
from results.records import CASE_FIELDS

Offered = TypeVar("Offered")
NOT_STATED = "not stated"
# The first that is there is what others are compared with.
BASELINES = (
    "torch_naive", "torch", "standard", "naive", "naive_attention", "torch_sdpa_math", "torch_flex",
    "torch_sdpa_auto",
)  # fmt: skip
_FAMILIAR = ("torch", "sdpa", "naive", "reference", "eager")  # in the name of what others are compared with
AS_PUBLISHED = "as published"  # the timing of rows whose source did not say how time was taken
ORDER = {  # by filter what leads where nothing was chosen
    "mode": ("fwd", "bwd", "fwd_bwd", "prefill", "decode", "train", "step"),
    "timing": ("kernel", "eager", AS_PUBLISHED),
    "baseline": BASELINES,
    "dtype": ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn"),
}
_ONE_HEAD = "B1 H1"
_ONE_LEADS = 0.6  # a shape with more than this share of the numbers is shown alone
RESULTS = (
    "(SELECT results.*, runs.sweep, code_age, age FROM results JOIN runs USING (run_id) JOIN run_ages USING (run_id))"
)

WORKLOAD = (
    f"CASE WHEN coalesce(level, 'op') = 'op' THEN coalesce(subject, '{NOT_STATED}') "
    f"ELSE level || ' ' || coalesce(subject, '{NOT_STATED}') END "
    "|| CASE WHEN features IS NULL THEN '' ELSE ' with ' || features END "
    "|| CASE WHEN inputs <> 'normal' THEN ', ' || inputs || ' inputs' ELSE '' END"
)
MASK = (
    f"CASE WHEN causal IS NULL THEN '{NOT_STATED}' WHEN causal THEN 'causal' ELSE 'full' END "
    "|| CASE WHEN window_size > 0 THEN ' window ' || window_size ELSE '' END"
)


def _by_level(sql_of: Callable[[Level], str]) -> str:
    """Return what each level answers for its rows, as one expression."""
    op = sql_of(level_of("op"))
    others = {name: sql for name in names() if (sql := sql_of(level_of(name))) != op}
    cases = " ".join(f"WHEN '{name}' THEN {sql}" for name, sql in others.items())
    return f"(CASE level {cases} ELSE {op} END)"


LEVEL = "coalesce(level, 'op')"
SEQLEN = _by_level(lambda level: level.columns.field)  # the length that a level's map has on one axis
SHAPE = _by_level(lambda level: level.shape_sql)
TIMING = f"coalesce(timing, '{AS_PUBLISHED}')"
MODE = f"coalesce(mode, '{NOT_STATED}')"
GPU = f"coalesce(gpu_name, '{NOT_STATED}')"
# Inputs that a source did not name are taken as normal ones, so that runs from before they were said are the same case.
CASE_KEY = ", ".join("nullif(inputs,'normal')" if name == "inputs" else name for name in CASE_FIELDS)


class SliceError(ValueError):
    """A slice that holds nothing, or that does not exist; the message says what is possible."""


@dataclass(frozen=True)
class Filters:
    """The slice of the results a page shows. An empty tuple means all; None means nothing was chosen yet."""

    gpu: str | None = None
    level: str | None = None  # None: that of the workload, or all
    workload: str | None = None
    mask: str | None = None
    mode: str | None = None
    timing: str | None = None
    baseline: str | None = None
    implementation: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    head_dim: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    num_heads: tuple[int, ...] = ()
    seqlen: tuple[int, ...] = ()  # on the axis that the level calls so: of decode the context
    shape: str | None = None  # None: all shapes
    source: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # names of features of a case, all of which it needs to have


COLUMNS = {
    "gpu": GPU,
    "level": LEVEL,
    "workload": WORKLOAD,
    "mask": MASK,
    "mode": MODE,
    "timing": TIMING,
    "dtype": "dtype",
    "head_dim": "head_dim",
    "batch": "batch",
    "num_heads": "num_heads",
    "seqlen": SEQLEN,
    "shape": SHAPE,
    "source": "source",
    "run": "run_id",
}


def level_in(filters: Filters) -> Level:
    """Return the level of a slice: the one that is chosen, or that of its workload; op where neither says."""
    word, _, subject = (filters.workload or "").partition(" ")
    return level_of(filters.level or (word if subject and word in names() else None))


def in_order(name: str, numbers: Mapping[Offered, int]) -> list[Offered]:
    """Return what a filter can be set to, the default first; what has no number comes last.

    `numbers` counts the numbers of each choice, and says their order where the filter's own does not. Of unknown
    baselines, implementations of PyTorch by their name lead.
    """
    rank: dict[Any, int] = {choice: place for place, choice in enumerate(ORDER.get(name, ()))}
    own = {choice: name == "baseline" and not _is_familiar(str(choice)) for choice in numbers}
    return sorted(numbers, key=lambda choice: (not numbers[choice], rank.get(choice, len(rank)), own[choice]))


def _is_familiar(name: str) -> bool:
    return any(word in name.lower() for word in _FAMILIAR)


def best_baseline(times: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return what the others are best compared with, of the times of each implementation by case.

    The order is that of BASELINES, then implementations of PyTorch by their name, then the slowest of the others.
    Only implementations that share a case with another one are considered.
    """
    shared = [
        name for name in times if any(times[name].keys() & times[other].keys() for other in times if other != name)
    ]

    def place(name: str) -> tuple:
        known = BASELINES.index(name) if name in BASELINES else len(BASELINES)
        return known, not _is_familiar(name), -len(times[name]), -sum(times[name].values()), name

    return min(shared, key=place, default=None)


def leading_shape(level: Level, shapes: Sequence[tuple[str, int]]) -> str | None:
    """Return the shape that is shown where none was chosen, of shapes with their numbers, most first; None: all.

    Where the map has an axis for the batch, a shape is one model's heads, and the first is shown alone. Else a single
    head, which no model has, leads only where there is nothing else. Layers of all shapes are shown together.
    """
    if not shapes or level.rows.column == "num_heads":
        return None
    if level.rows.column == "batch":
        return shapes[0][0]
    real = [(shape, numbers) for shape, numbers in shapes if shape != _ONE_HEAD] or shapes
    (first, most), total = real[0], sum(numbers for _, numbers in real)
    return first if most > _ONE_LEADS * total else None if len(real) == len(shapes) else first


def is_on_map(workload: str, level_name: str) -> bool:
    """Return whether a workload has the map of a level, so that a page of that level shows it."""
    return level_in(Filters(workload=workload)).rows == level_of(level_name).rows


def on_map_of(level: Level) -> str:
    """Return the condition for rows of levels with the same map as a level."""
    same = (f"'{name}'" for name in names() if level_of(name).rows == level.rows)
    return f"{LEVEL} IN ({', '.join(same)})"


def of_mask(mask: str | None) -> dict[str, bool | int | None]:
    """Return causal and window_size of a mask in MASK's words; None for what it does not say."""
    kind, _, window = (mask or "").partition(" window ")
    return {"causal": {"causal": True, "full": False}.get(kind), "window_size": int(window) if window else None}


def having(column: str) -> str:
    """Return the condition, with a feature's name as parameter, that a text or workload has this feature."""
    return f"regexp_matches({column}, '(^|[ ,])' || ? || '([=,]|$)')"


def where(
    filters: Filters, *, without: tuple[str, ...] = (), columns: Mapping[str, str] = COLUMNS, features: str = "features"
) -> tuple[str, list[object]]:
    """Return the filters of some columns as a condition and its parameters; implementations always keep the baseline.

    `features` is the column that names the features of a row.
    """
    conditions = ["TRUE"]
    params: list[object] = []
    for name, column in columns.items():
        value = getattr(filters, name)
        if name in without or value in (None, ()):
            continue
        several = value if isinstance(value, tuple) else (value,)
        # A list parameter would prevent filter pushdown.
        conditions.append(f"({column}) IN ({', '.join('?' * len(several))})")
        params += several
    for name in filters.features:
        conditions.append(having(features))
        params.append(name)
    if filters.implementation and "implementation" not in without:
        conditions.append("implementation IN ?")
        params.append([*filters.implementation, filters.baseline])
    return " AND ".join(conditions), params


NEWEST_FIRST = "created DESC NULLS LAST, run_id"  # runs that do not say when they were made are older than any
