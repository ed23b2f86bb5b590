"""Values in words: sizes, times, ratios, statuses, sources."""

import math
from collections.abc import Iterable
from typing import Any

from results.levels.real_shapes import RealShape
from results.paths import toml_of
from results.render.text import SOURCE_WORDS, missing, size
from results.render.text import duration as duration
from results.slice import NOT_STATED, Filters, level_in

WORDS: dict[str, dict[str, Any]] = toml_of(__file__, "words.toml")
STATUS_WORDS: dict[str | None, str] = {**WORDS["status"], None: "not measured"}
STATUS_MEANINGS = WORDS["status_meanings"]
SOURCE_ICONS = WORDS["source_icons"]
MODE_WORDS = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward and backward"}
TIMING_WORDS = WORDS["timings"]
TIMED = {name: words.split(" (")[0] for name, words in TIMING_WORDS.items()}  # such as "kernel time"


def ratio(number: float | None) -> str:
    """Write a ratio as 1.23×, with fewer decimals above ten; a missing ratio is a dash."""
    if missing(number):
        return "–"
    return f"{number:.2f}×" if number < 9.995 else f"{number:.1f}×" if number < 99.95 else f"{number:.0f}×"


def span(low: float, high: float) -> str:
    """Write a range of ratios as 1.65–35.9×."""
    return f"{ratio(low).removesuffix('×')}–{ratio(high)}"


def ms(number: float | None) -> str:
    """Write milliseconds with three significant digits, or seconds from ten seconds on."""
    if missing(number):
        return "–"
    return f"{significant(number / 1000)} s" if number >= 10_000 else f"{significant(number)} ms"


def mib(number: float | None) -> str:
    """Write memory in MiB, or in GiB from 1024 MiB on."""
    if missing(number):
        return "–"
    return f"{number / 1024:.2f} GiB" if number >= 1024 else f"{significant(number)} MiB"


def significant(number: float) -> str:
    """Write three significant digits without an exponent."""
    if number == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{decimals}f}"


def about_tokens(number: float | None) -> str:
    """Write a number of tokens, rounded down to three digits: ≈ 68,100, ≈ 9.14 million.

    A power of two is exact: it is a limit of the model, or a measured length.
    """
    if missing(number) or number < 1:
        return "–"
    if int(number).bit_count() == 1:
        return f"{int(number):,}"
    step = 10 ** max(0, math.floor(math.log10(number)) - 2)
    whole = int(number) // step * step
    rounded = f"{whole / 1e6:g} million" if whole >= 1e6 else f"{whole:,}"
    return rounded if whole == number else f"≈ {rounded}"


def status(name: str | None) -> str:
    """Return the word for a status in a cell without a number."""
    return STATUS_WORDS.get(None if missing(name) else name, str(name))


def slice_words(filters: Filters) -> str:
    """Return the slice in words, as Markdown for captions."""
    return " · ".join(map(plain, slice_parts(filters)))


def slice_parts(filters: Filters) -> list[str]:
    """Return the slice in words, one part for each filter, as plain text."""
    level = level_in(filters)
    parts = [
        "GPU not stated" if filters.gpu == NOT_STATED else filters.gpu,
        filters.workload,
        "mask not stated" if filters.mask == NOT_STATED else f"{filters.mask} mask" if filters.mask else None,
        MODE_WORDS.get(filters.mode or "", filters.mode) if len(level.modes) > 1 else None,
        filters.shape or ("all batch and head counts" if level.rows.column != "batch" else "all head counts"),
        ", ".join(filters.dtype),
        f"{level.columns.label} " + ", ".join(size(n) for n in filters.seqlen) if filters.seqlen else None,
        "head_dim " + ", ".join(str(n) for n in filters.head_dim) if filters.head_dim else None,
        "batch " + ", ".join(str(n) for n in filters.batch) if filters.batch else None,
        "heads " + ", ".join(str(n) for n in filters.num_heads) if filters.num_heads else None,
        ", ".join(SOURCE_WORDS[source] for source in filters.source),
        "run " + ", ".join(filters.run) if filters.run else None,
    ]
    return [part for part in parts if part]


def short(name: str) -> str:
    """Return the short name of an implementation: FA4 for flash_attn_4, sdpa_cudnn for torch_sdpa_cudnn."""
    for long, brief in (("flash_attn_", "FA"), ("torch_", "")):
        if name.startswith(long) and len(name) > len(long):
            return brief + name.removeprefix(long)
    return name


def statistic(names: Iterable[object], counts: Iterable[Any] = ()) -> str:
    """Describe the numbers of a slice by their statistics and numbers of samples."""
    found = {part for name in names if not missing(name) for part in str(name).split(", ")}
    known = sorted({int(count) for count in counts if not missing(count)})
    samples = "–".join(map(str, dict.fromkeys((known[0], known[-1])))) if known else "n"
    meanings = {"printed": "values as printed", "single": "single values"}
    return ", ".join(meanings.get(name, f"{name} of {samples} samples") for name in sorted(found)) or "no number"


def mask(causal: object, window_size: Any) -> str:
    """Write a mask as the filters do: causal, full window 1024, or not stated."""
    kind = NOT_STATED if missing(causal) else "causal" if causal else "full"
    return kind if missing(window_size) or not window_size else f"{kind} window {int(window_size)}"


def plain(text: object) -> str:
    """Escape Markdown in text from a file."""
    return "".join(f"\\{mark}" if mark in "\\`*_{}[]<>#$~:|!" else mark for mark in str(text))


def with_code(sentence: str) -> str:
    """Escape Markdown in a sentence with text from a file; draw what its first and last backtick enclose as code."""
    before, _, rest = sentence.partition("`")
    enclosed, _, after = rest.rpartition("`")
    code = " ".join(enclosed.replace("`", "").split())  # a backtick or a blank line would end it early
    return plain(before) + f"`{code}`" * bool(code) + plain(after)


def without_maker(gpus: Iterable[str]) -> dict[str, str]:
    """Return the names of GPUs without the maker, by name; unchanged if two would be equal."""
    short = {gpu: gpu.removeprefix("NVIDIA ") for gpu in gpus}
    return short if len(set(short.values())) == len(short) else {gpu: gpu for gpu in short}


def model_shape(shape: RealShape) -> str:
    """Name the model and layer that have a shape, as Markdown, with the address of the configuration."""
    source = f"[configuration]({shape.source})" if shape.source.startswith("https:") else shape.source
    return f"Shape of {plain(shape.name)}. {source.rstrip('.')}."


def sources(text: str | None) -> str:
    """Return the sources of a row in words."""
    return "" if missing(text) else ", ".join(SOURCE_WORDS.get(part, part) for part in str(text).split(", "))
