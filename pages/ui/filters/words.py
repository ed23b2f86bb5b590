"""Short words on the chips of filters for devices, masks, dtypes, modes and shapes."""

import re
from collections.abc import Sequence

from pages.ui.draw.text import MODE_WORDS, TIMING_WORDS, WORDS, plain
from results.levels import Level
from results.render.text import SOURCE_WORDS, size
from results.slice import NOT_STATED

ALL = "all"  # the value of a filter that selects everything
SHAPE_LABELS = {"decode": "Heads and cache", "layer": "Batch and widths"}  # by level, if it is not batch and heads
SOURCE_ORDER = ("local", "shipped", "upload", "published")
_DTYPES, _TIMINGS, _MASKS = (WORDS[f"short_{name}"] for name in ("dtypes", "timings", "masks"))
_PLURALS = {"workload": "kinds", "mode": "modes"}


def shape_label(level: Level) -> str:
    """Return the label of the filter of shapes at a level."""
    return SHAPE_LABELS.get(level.name, "Batch and heads")


def chip(name: str, value: str, level: Level) -> str:
    """Return a filter of one value in a few words, as Markdown."""
    if value == ALL:
        words = f"all {_PLURALS.get(name) or shape_label(level).lower()}"
    elif name == "gpu":
        words = "GPU not stated" if value == NOT_STATED else value.removeprefix("NVIDIA ")
    elif name == "mask":
        words = {"full": "full mask", NOT_STATED: "mask not stated"}.get(value, value)
    elif name == "mode":
        words = MODE_WORDS.get(value, value)
    elif name == "timing":
        words = _TIMINGS.get(value, f"time {value}")
    elif name == "shape":
        words = re.sub(r"^(\d+) tokens", lambda m: f"{size(m[1])} tokens", value)
    elif name == "baseline":
        words = f"vs {value}"
    else:
        words = value
    return plain(words)


def several(name: str, label: str, values: Sequence[str]) -> str:
    """Return the chosen values of a filter in a few words, as Markdown; no value means all."""
    if name == "dtype":
        short = [_DTYPES.get(value, value) for value in values]
        return ", ".join(short) if 0 < len(short) < 3 else f"{len(short) or 'all'} dtypes"
    if name in ("source", "run", "implementation"):
        return f"{len(values)} {label.lower().rstrip('s')}{'' if len(values) == 1 else 's'}"
    sizes = ", ".join(size(int(value)) if value.isdigit() else value for value in values)
    return plain(f"{label} {sizes}" if len(values) < 4 else f"{len(values)} of {label}")


def caption(name: str, value: str) -> str:
    """Return the meaning of a choice; empty if its name is clear."""
    if name == "mask":
        return _MASKS.get(value, "Of those keys, a query sees the nearest.")
    if name == "mode":
        return MODE_WORDS.get(value, "")
    if name == "timing":
        return TIMING_WORDS.get(value, "").partition(" (")[2].rstrip(")")
    return ""


def gpu_caption(sources: Sequence[str], numbers: int) -> str:
    """Return the sources and the number of the numbers of a device."""
    words = [SOURCE_WORDS[source] for source in SOURCE_ORDER if source in sources]
    return f"{', '.join(words)}: {numbers:,} numbers" if words else ""
