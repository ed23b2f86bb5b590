"""A whole model. Only published reports have results of it so far; nothing is derived from its shape yet."""

from __future__ import annotations

from dataclasses import replace

from results.levels import op
from results.levels.tensors import Fields


def not_known(case: Fields, mode: str | None) -> None:
    """Return None: the operations and bytes of a model are not counted."""


LEVEL = replace(
    op.LEVEL,
    name="model",
    subjects=("gpt2-124m", "llama2-7b"),
    modes=("prefill", "decode", "train"),
    flops=not_known,
    flops_source="Not counted.",
    bytes_moved=not_known,
    bytes_source="Not counted.",
    memory_passes={},
)
