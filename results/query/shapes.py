"""Shapes of attention in models: the fastest of our kernels and the fastest other, by shape, dtype and mode."""

from dataclasses import replace

import pandas as pd

from results import levels
from results.counting import MEASURED, counting_run
from results.derive import geometric_mean
from results.levels.real_shapes import SHAPES
from results.query.declared import with_facts
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

LEVEL = "op"
_SIZES = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "causal")
_CELL = "place, dtype, mode"
_OPTIONAL = {"num_kv_heads": "num_heads", "head_dim_v": "head_dim", "seqlen_k": "seqlen_q", "window_size": "0"}
_NUMBERS = ("place", "dtype", "mode", "implementation", "latency_ms", "status", "note", "run_id", "own")


DUELS = (
    "place", "domain", "shape", "sizes", "dtype", "mode", "ours", "ours_ms", "other", "other_ms", "ratio", "run_id",
)  # fmt: skip


def there(store: Store) -> list[tuple[str, str]]:
    """Return GPU and timing of each slice that has a time of a model's shape, most times first."""
    return store.rows(_SQL("there", named=_named(), joined=_joined(), counted=_counted()))


def numbers(store: Store, gpu: str, timing: str) -> pd.DataFrame:
    """Return a row a shape, dtype, mode and implementation: its time or why there is none.

    All rows of a cell come from one run (`counting_run`), if there is one, in which our kernels and another have a
    time. `place` is the shape's in SHAPES; `own` holds for our kernels in the precision of their inputs.
    """
    own = with_facts(store, LEVEL, lambda facts: facts.family == "own" and facts.precision is None)
    pair = "bool_or(own AND status = 'ok') OVER one AND bool_or(NOT own AND status = 'ok') OVER one"
    return store.query(
        _SQL(
            "numbers",
            named=_named(),
            cell=_CELL,
            joined=_joined(),
            counted=_counted(),
            pair=pair,
            measured=MEASURED.format(of=_CELL),
            numbers=", ".join(_NUMBERS),
            counting=counting_run(_CELL, "pair"),
        ),
        [own, gpu, timing],
    )


def duels(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return a row a shape, dtype and mode of `numbers`, in the columns DUELS: the fastest on either side.

    `place` is in SHAPES, `shape` is model and layer, `ratio` is the other's time over ours; a missing time is None.
    """
    groups = numbers.groupby(["place", "dtype", "mode"], sort=True)
    found = [_duel(place, dtype, mode, of_cell) for (place, dtype, mode), of_cell in groups]
    return pd.DataFrame(found, columns=[*DUELS])


def summed_up(duels: pd.DataFrame) -> dict[str, float] | None:
    """Return how many shapes were compared, in how many ours is faster, and mean, lowest and highest ratio."""
    ratios = duels["ratio"].dropna().tolist()
    if not ratios:
        return None
    ahead = sum(ratio > 1 for ratio in ratios)
    return {
        "shapes": len(ratios),
        "ahead": ahead,
        "mean": geometric_mean(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def _duel(place: int, dtype: str, mode: str, of_cell: pd.DataFrame) -> tuple[object, ...]:
    shape = SHAPES[place]
    timed = of_cell[(of_cell["status"] == "ok") & of_cell["latency_ms"].notna()]
    (ours, ours_ms), (other, other_ms) = (_fastest(timed[timed["own"] == own]) for own in (True, False))
    ratio = other_ms / ours_ms if ours_ms and other_ms else None
    sizes = levels.level_of(LEVEL).short(replace(shape.case, dtype=None))
    run_id = of_cell["run_id"].iloc[0]
    return place, shape.domain, shape.name, sizes, dtype, mode, ours, ours_ms, other, other_ms, ratio, run_id


def _fastest(rows: pd.DataFrame) -> tuple[str | None, float | None]:
    if rows.empty:
        return None, None
    best = rows.loc[rows["latency_ms"].idxmin()]
    return str(best["implementation"]), float(best["latency_ms"])


def _named() -> str:
    """Return the common table `shapes`: the sizes of each shape, and its place."""
    rows = (
        ", ".join(str(value) for value in (place, *(getattr(shape.case, name) for name in (*_SIZES, "window_size"))))
        for place, shape in enumerate(SHAPES)
    )
    columns = ", ".join(("place", *(f"of_{name}" for name in (*_SIZES, "window_size"))))
    return f"shapes({columns}) AS (VALUES {', '.join(f'({row})' for row in rows)})"


def _joined() -> str:
    given = (f"coalesce({name}, {_OPTIONAL[name]})" if name in _OPTIONAL else name for name in (*_SIZES, "window_size"))
    return " AND ".join(f"{value} = of_{name}" for value, name in zip(given, (*_SIZES, "window_size"), strict=True))


def _counted() -> str:
    plain = "features IS NULL AND coalesce(inputs, 'normal') = 'normal'"
    return f"coalesce(level, '{LEVEL}') = '{LEVEL}' AND metric = 'latency_ms' AND {plain}"
