"""Common sets of filters, offered if they have numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from results.levels import level_of

Settings = dict[str, str | list[str]]  # the value of each filter
Choices = Mapping[str, Sequence[tuple[str, int]]]  # the choices of each filter with their numbers of rows


@dataclass(frozen=True)
class Preset:
    """The filters of a preset; other filters get their defaults."""

    title: str
    mode: str
    dtype: str
    seqlens: tuple[int, int] = (1, 2**31)  # shortest and longest; for decode, the context
    batches: tuple[int, int] = (1, 2**31)
    timing: str | None = None
    shape: str | None = None  # end of the name of batch and heads
    window: bool = False  # whether a query sees only the last keys
    level: str = "op"


PRESETS = (
    Preset("Forward, 16k tokens", "fwd", "bfloat16", shape="hidden 2048"),
    Preset("Training, 16k tokens", "fwd_bwd", "bfloat16", shape="hidden 2048"),
    Preset("Forward, long", "fwd", "bfloat16", (8192, 2**31)),
    Preset("Training, long", "fwd_bwd", "bfloat16", (8192, 2**31)),
    Preset("Training, short", "fwd_bwd", "bfloat16", (1, 2048)),
    Preset("With host overhead", "fwd", "bfloat16", timing="eager"),
    Preset("Window", "fwd", "bfloat16", window=True),
    Preset("Window, training", "fwd_bwd", "bfloat16", window=True),
    Preset("fp16", "fwd", "float16"),
    Preset("fp32", "fwd", "float32"),
    Preset("One head", "fwd", "bfloat16", shape="B1 H1"),
    Preset("One sequence", "decode", "bfloat16", batches=(1, 1), level="decode"),
    Preset("Many sequences", "decode", "bfloat16", batches=(32, 2**31), level="decode"),
    Preset("Long context", "decode", "bfloat16", (32768, 2**31), level="decode"),
)
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


def _within(bounds: tuple[int, int], sizes: Sequence[str]) -> list[str]:
    """Return the sizes within both bounds, in order."""
    low, high = bounds
    return [str(size) for size in sorted(map(int, sizes)) if low <= size <= high]
