"""Common sets of filters, offered if they have numbers."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.levels import level_of

Settings = dict[str, str | list[str]]  # the value of each filter
Choices = Mapping[str, Sequence[tuple[str, int]]]  # the choices of each filter with their numbers of rows


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


_READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PRESETS = tuple(Preset(title, **said) for title, said in _READ.items())
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
