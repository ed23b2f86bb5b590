"""Sets of filters that many come for, offered where there are numbers for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Choices = Mapping[str, Sequence[tuple[str, int]]]  # by filter: what it can be set to, and how many numbers that has


@dataclass(frozen=True)
class Preset:
    """What a preset sets; what it leaves out goes back to its default."""

    title: str
    mode: str
    dtype: str
    seqlens: tuple[int, int] = (1, 2**31)  # shortest and longest
    timing: str | None = None
    shape: str | None = None  # how the name of batch and heads ends


PRESETS = (
    Preset("bf16 training, 16k tokens, hidden 2048", "fwd_bwd", "bfloat16", shape="hidden 2048"),
    Preset("bf16 forward, 16k tokens, hidden 2048", "fwd", "bfloat16", shape="hidden 2048"),
    Preset("bf16 training, long context", "fwd_bwd", "bfloat16", (8192, 2**31)),
    Preset("bf16 training, short context", "fwd_bwd", "bfloat16", (1, 2048)),
    Preset("bf16 forward, long context", "fwd", "bfloat16", (8192, 2**31)),
    Preset("bf16 forward with host overhead", "fwd", "bfloat16", timing="eager"),
    Preset("fp16 forward", "fwd", "float16"),
    Preset("fp32 forward", "fwd", "float32"),
)


def offered(choices: Choices) -> dict[str, dict[str, str | list[str]]]:
    """By title, what the presets that have numbers set the filters to."""
    return {preset.title: found for preset in PRESETS if (found := _settings(preset, choices))}


def _settings(preset: Preset, choices: Choices) -> dict[str, str | list[str]] | None:
    there = {name: [choice for choice, numbers in found if numbers] for name, found in choices.items()}
    shortest, longest = preset.seqlens
    lengths = sorted(int(text) for text in there.get("seqlen", ()))
    seqlens = [str(length) for length in lengths if shortest <= length <= longest]
    wanted = {"mode": preset.mode, "dtype": preset.dtype} | ({"timing": preset.timing} if preset.timing else {})
    if preset.shape:
        shapes = [name for name in there.get("shape", ()) if name.endswith(preset.shape)]
        wanted |= {"shape": shapes[0] if shapes else preset.shape}
    if not seqlens or any(value not in there.get(name, ()) for name, value in wanted.items()):
        return None
    return wanted | {"dtype": [preset.dtype], "seqlen": [] if len(seqlens) == len(lengths) else seqlens}
