"""What computes a combination of features, and what is fastest, on each GPU: from stored results and GPU checks."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pandas as pd

from results.capabilities import CAPABILITIES, checked, declaring, record
from results.features import FEATURES
from results.query.declared import declared
from results.query.pages import gpus, options
from results.recommend.winners import contests, decide
from results.records import Case
from results.slice import Filters
from results.store.database import Store

WANTS: Mapping[str, str] = {name: words for name, words in CAPABILITIES.items() if name != "paged"}
NOT_MEASURED = "nobody has measured it"
COLUMNS = ("gpu", "winner", "next", "ratio", "standing", "mode", "cases", "run", "checked")
_OF_SIZES: Mapping[str, Callable[[Case], bool]] = {
    "causal": lambda case: bool(case.causal),
    "window": lambda case: bool(case.window_size),
    "gqa": lambda case: (case.num_kv_heads or 0) < (case.num_heads or 0),
    "head_dim_v": lambda case: case.head_dim_v not in (None, case.head_dim),
    "backward": lambda case: True,  # the mode says it
}
# What `command` sets in the sweep that it starts from, by what is wanted and by what is not.
_WITH = {"window": "window_size=1024", "gqa": "num_kv_heads=8", "causal": "causal=true"}
_IMPLIES = {"two_windows": "window", "prefix_lengths": "causal"}
_WITHOUT = {"window": "window_size=0", "gqa": "num_kv_heads=32", "causal": "causal=false"}


def has(case: Case, wanted: Collection[str]) -> bool:
    """Return whether a case needs everything that is wanted, by names of WANTS."""
    return all(_OF_SIZES[name](case) if name in _OF_SIZES else name in case.asked for name in wanted)


def able(store: Store, wanted: Collection[str]) -> list[str]:
    """Return the implementations that declare everything that is wanted in a run of this store."""
    return declaring(declared(store), wanted)


def found(store: Store, wanted: tuple[str, ...]) -> pd.DataFrame:
    """Return a row a GPU: the fastest in the cases that have everything, the next, and what was checked there.

    Forward and backward together count where a GPU has them, else the backward, and kernel times before eager ones.
    Without a case the winner is None.
    """
    texts = tuple(feature.name for feature in FEATURES if feature.capability in wanted)
    modes = ("fwd_bwd", "bwd") if "backward" in wanted else ("fwd",)
    right = {gpu: checked(entry) for gpu, entry in record().items()}
    rows = []
    for gpu in gpus(store)["gpu"]:
        there = options(store, "timing", gpu=gpu, level="op")["choice"].tolist()
        timings = [timing for timing in ("kernel", "eager") if timing in there]
        shared: dict[str, Any] = {"gpu": gpu, "level": "op", "features": texts, "baseline": "torch_naive"}
        slices = (Filters(mode=mode, timing=timing, **shared) for mode in modes for timing in timings)
        of_slices = (
            [each for each in contests(store, one) if has(next(iter(each.values())).measurement.case, wanted)]
            for one in slices
        )
        cases = next((each for each in of_slices if each), [])
        sets = [
            set(right.get(gpu, {}).get(name, ())) for name in wanted if name not in _OF_SIZES or name == "head_dim_v"
        ]
        row = {"gpu": gpu, "checked": ", ".join(sorted(set.intersection(*sets))) if sets else ""}
        rows.append(row | _result(cases))
    return pd.DataFrame(rows, columns=[*COLUMNS]).astype({"winner": object})


def command(wanted: Collection[str]) -> str:
    """Return the command that measures a combination: 32 heads of 128, or of 192 and 128; 4k and 16k tokens."""
    asked = [feature for feature in FEATURES if feature.capability in wanted]
    examples = {feature.name: feature.example for feature in asked}
    examples |= {feature.needs.partition("=")[0]: feature.needs for feature in asked if feature.needs}
    texts = "+".join(examples.values())
    wants = {*wanted, *(_IMPLIES[name] for name in wanted if name in _IMPLIES)}
    sets = [(_WITH if name in wants else _WITHOUT)[name] for name in _WITH]
    sets += ["head_dim=192", "head_dim_v=128"] if "head_dim_v" in wanted else []
    sets += [f"features={texts}"] if texts else []
    sets += ["modes=fwd,bwd,fwd_bwd" if "backward" in wanted else "modes=fwd"]
    return " ".join(["python -m runner run window_gqa", *(f"--set {each}" for each in sets)])


def _result(cases: list[Any]) -> dict[str, Any]:
    result = decide(cases) if cases else None
    if result is None or result.winner is None:
        return {"winner": None, "standing": NOT_MEASURED, "cases": len(cases)}
    rival = result.rivals[0] if result.rivals else None
    return {
        "winner": result.winner,
        "next": rival and rival.name,
        "ratio": rival and rival.ratio,
        "standing": str(result.standing) if rival else "alone",
        "mode": next(iter(cases[0].values())).measurement.mode,
        "cases": result.cases,
        "run": ", ".join(sorted({next(iter(each.values())).measurement.run_id for each in cases})),
    }
