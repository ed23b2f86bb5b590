"""The choices of the shared filters on a device, workload and mask, their presets, and the slice of a first visit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pages.ui.filters.words import ALL, SOURCE_ORDER
from results.capabilities import CAPABILITIES, declares
from results.capabilities import declaring as names_declaring
from results.levels import Level, level_of
from results.paths import toml_of
from results.query import pages
from results.query.declared import declared
from results.slice import Filters, in_order, is_on_map, leading_shape
from results.store.database import Store

SIZES = ("seqlen", "head_dim", "batch", "num_heads")
Scope = dict[str, str | None]  # gpu, mask, and the workload or, for all workloads of a level, the level
Devices = dict[str, tuple[tuple[str, ...], int]]  # by name: the sources of its numbers, and how many it has
Settings = dict[str, str | list[str]]  # the value of each filter
Choices = Mapping[str, Sequence[tuple[str, int]]]  # the choices of each filter with their numbers of rows


def gpus(store: Store, level_name: str) -> Devices:
    """Return the devices with numbers on the level's map: measured here first, then shipped, uploaded, published."""
    pairs = store.rows("SELECT DISTINCT gpu, workload FROM choices")
    there = {gpu for gpu, workload in pairs if is_on_map(workload, level_name)}
    known = pages.gpus(store)
    rows = zip(known["gpu"], known["sources"], known["numbers"], strict=True)
    found = {gpu: (tuple((sources or "").split(", ")), int(numbers)) for gpu, sources, numbers in rows if gpu in there}

    def place(gpu: str) -> int:
        return min(SOURCE_ORDER.index(source) for source in found[gpu][0] if source in SOURCE_ORDER)

    return {gpu: found[gpu] for gpu in sorted(found, key=place)}


def first_gpu(store: Store, level_name: str) -> str | None:
    """Return the device of a first visit: the GPU with most numbers, or a processor if there is none."""
    there = gpus(store, level_name)
    return next((gpu for gpu in pages.gpus(store)["gpu"] if gpu in there), None)


def workloads(store: Store, gpu: str, level_name: str) -> list[str]:
    """Return the workloads of a device on the level's map, most numbers first."""
    return [workload for workload in options(store, "workload", gpu=gpu) if is_on_map(workload, level_name)]


def options(store: Store, name: str, **scope: str | None) -> list[str]:
    """Return the choices of one filter, most numbers first."""
    return pages.options(store, name, **scope)["choice"].tolist()


def choices(store: Store, **scope: str | None) -> Choices:
    """Return the choices of every filter within a device, workload and mask, most numbers first."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name, choice, numbers in pages.choices(store, **scope).itertuples(index=False):
        found.setdefault(name, []).append((choice, numbers))
    return found | {"baseline": found.get("implementation", [])}


def features(store: Store, names: tuple[str, ...], level_name: str) -> list[tuple[str, int]]:
    """Return the features that these implementations declare, in words, each with the number of implementations."""
    said = declared(store, level_name)
    counts = {words: sum(declares(said.get(name, {}), each) for name in names) for each, words in CAPABILITIES.items()}
    return [(words, count) for words, count in counts.items() if count]


def declaring(store: Store, features: tuple[str, ...], level_name: str) -> list[str]:
    """Return the implementations that declare all of these features, given in words."""
    wanted = [name for name, words in CAPABILITIES.items() if words in features]
    return names_declaring(declared(store, level_name), wanted)


def shapes_of_dtypes(store: Store, dtypes: tuple[str, ...], **scope: str | None) -> set[str]:
    """Return the shapes within a device, workload and mask with numbers of one of the dtypes."""
    rows = store.rows(
        """SELECT DISTINCT shape FROM slices JOIN numbers USING (slice_id)
           WHERE status = 'ok' AND gpu = ? AND (workload = ? OR level = ?) AND mask = ? AND dtype IN ?""",
        [scope["gpu"], scope.get("workload"), scope.get("level"), scope["mask"], list(dtypes)],
    )
    return {shape for (shape,) in rows}


def shapes(found: Choices, level: Level) -> tuple[list[str], str]:
    """Return the shapes, with `all` as the last choice, and the default."""
    there = found.get("shape", [])
    return [*(shape for shape, _ in there), ALL], leading_shape(level, there) or ALL


def ordered(name: str, found: Choices) -> list:
    """Return the choices of a filter in their usual order; sizes by size, runs with the newest first."""
    numbers = dict(found.get(name, ()))
    if name in SIZES:
        return sorted(int(choice) for choice in numbers)
    if name in ("implementation", "run"):
        return sorted(numbers, reverse=name == "run")
    return in_order(name, numbers)


def presets_of(ask: Callable[..., Any], scope: Scope, level_name: str) -> dict[str, Settings]:
    """Return the presets that have numbers on this device, in this mask or another."""
    masks = ask(options, "mask", **{name: value for name, value in scope.items() if name != "mask"})
    shown_first = sorted(masks, key=lambda mask: mask != scope["mask"])
    return offered(level_name, shown_first, lambda mask: ask(choices, **scope | {"mask": mask}))


def first_settings(ask: Callable[..., Any], level_name: str = "op", gpu: str | None = None) -> Settings:
    """Return the filters of a first visit: the preset of a realistic shape on the device, if it has numbers."""
    gpu = gpu or ask(first_gpu, level_name)
    if gpu is None:
        return {}
    scope = _first_scope(ask, gpu, level_name)
    offered = presets_of(ask, scope, level_name)
    return {"gpu": gpu} | offered.get(FIRST.get(level_name, ""), {})


def at_first(ask: Callable[..., pd.DataFrame]) -> Filters:
    """Return the slice of a first visit."""
    set_ = first_settings(ask)
    if not set_:
        return Filters()
    ask(gpus, "op")
    scope = _first_scope(ask, str(set_["gpu"]), "op") | ({"mask": set_["mask"]} if "mask" in set_ else {})
    found = ask(choices, **scope)
    first = {name: next(iter(ordered(name, found)), None) for name in ("mode", "baseline", "timing")}
    dtypes = tuple(set_.get("dtype", ()))
    if dtypes:
        there = ask(shapes_of_dtypes, dtypes, **scope)
        found = {**found, "shape": [(shape, numbers) for shape, numbers in found.get("shape", []) if shape in there]}
    _, shape = shapes(found, level_of("op"))
    chosen = {**scope, **first, "shape": shape} | {name: value for name, value in set_.items() if value}
    sizes = {name: tuple(map(int, chosen.get(name, ()))) for name in SIZES}
    return Filters(**chosen | sizes | {"dtype": dtypes, "shape": None if chosen["shape"] == ALL else chosen["shape"]})


def _first_scope(ask: Callable[..., Any], gpu: str, level_name: str) -> Scope:
    workload = next(iter(ask(workloads, gpu, level_name)), None)
    return {
        "gpu": gpu,
        "workload": workload,
        "mask": next(iter(ask(options, "mask", gpu=gpu, workload=workload)), None),
    }


@dataclass(frozen=True)
class Preset:
    """The filters of a preset; other filters get their defaults."""

    title: str
    mode: str
    dtype: str
    seqlens: Sequence[int] = (1, 2**31)  # shortest and longest; for decode, the context
    batches: Sequence[int] = (1, 2**31)
    timing: str | None = None
    shape: str | None = None  # end of the name of batch and heads
    window: bool = False  # whether a query sees only the last keys
    level: str = "op"


PRESETS = tuple(Preset(title, **said) for title, said in toml_of(__file__, "presets.toml").items())
FIRST = {"op": PRESETS[0].title}  # the preset of a first visit, by level


def offered(level: str, masks: Sequence[str], choices_of: Callable[[str], Choices]) -> dict[str, Settings]:
    """Return the filters of each preset that has numbers, by title.

    The first mask that suits a preset is used; `choices_of` returns the choices of the filters for a mask.
    """
    found: dict[str, Settings] = {}
    for preset in (preset for preset in PRESETS if preset.level == level):
        mask = next((mask for mask in masks if ("window" in mask) == preset.window), None)
        settings = _settings(preset, choices_of(mask)) if mask else None
        if settings:
            found[preset.title] = {"mask": mask, **settings}
    return found


def _settings(preset: Preset, choices: Choices) -> Settings | None:
    there = {name: [choice for choice, numbers in found if numbers] for name, found in choices.items()}
    sizes = {"seqlen": _within(preset.seqlens, there.get("seqlen", ()))}
    if level_of(preset.level).rows.field == "batch":
        sizes["batch"] = _within(preset.batches, there.get("batch", ()))
    wanted = {"mode": preset.mode, "dtype": preset.dtype} | ({"timing": preset.timing} if preset.timing else {})
    if preset.shape:
        shapes = [name for name in there.get("shape", ()) if name.endswith(preset.shape)]
        wanted |= {"shape": shapes[0] if shapes else preset.shape}
    if not all(sizes.values()) or any(value not in there.get(name, ()) for name, value in wanted.items()):
        return None
    chosen = {name: [] if len(found) == len(there[name]) else found for name, found in sizes.items()}
    return wanted | {"dtype": [preset.dtype]} | chosen


def _within(bounds: Sequence[int], sizes: Sequence[str]) -> list[str]:
    """Return the sizes within both bounds, in order."""
    low, high = bounds
    return [str(size) for size in sorted(map(int, sizes)) if low <= size <= high]
