"""Sweeps of level layer: kinds of layers by shape, with several implementations of the attention inside."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from results.records import Case, layer_case
from runner.sweeps.grid import Sweep, SweepError, SweepFile, split_heads

SUBJECTS = ("mha_fused", "mha", "gqa", "mqa", "mla", "mha_fused_bias", "gqa_bias")
_FILE = SweepFile(__file__)
_MODES = ("fwd", "bwd", "fwd_bwd")
_SIZES = ("batch", "seqlen", "heads", "head_dim", "latent_dim")
_SHAPE = re.compile(
    r"(?P<subject>\w+) B(?P<batch>\d+) S(?P<seqlen>\d+) H(?P<heads>[\d/]+) D(?P<head_dim>\d+)( L(?P<latent_dim>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class LayerSweep(Sweep):
    """Layers in given shapes; every size that is set replaces the sizes of the shapes.

    A shape is written as "gqa B2 S2048 H32/8 D64", with L512 at its end for the latent of MLA. The number of key heads
    after the slash applies to GQA only: MQA has one, and the other layers have as many as query heads.
    """

    LEVEL = "layer"
    AXES = _FILE.axes(subject=SUBJECTS, modes=_MODES)
    FOLDED = "Heads, widths, mask, modes and timings"
    FOLDED_OF_A_CELL = "Sizes"

    shapes: tuple[str, ...]
    subject: tuple[str, ...] = ("mha_fused", "mha", "gqa", "mqa", "mla")
    batch: tuple[int, ...] = ()  # empty, also for the sizes below: the values of the shapes
    seqlen: tuple[int, ...] = ()
    heads: tuple[str, ...] = ()  # num_heads/num_kv_heads
    head_dim: tuple[int, ...] = ()
    latent_dim: tuple[int, ...] = ()
    causal: tuple[bool, ...] = (False,)
    dtype: tuple[str, ...] = ("bfloat16", "float16")
    modes: tuple[str, ...] = _MODES
    implementations: tuple[str, ...] = _FILE.names("torch", "ours")
    left_out: tuple[str, ...] = ()  # subject/implementation

    def takes_part(self, case: Case, implementation: str, mode: str) -> bool:
        """Return whether a combination is planned, which `left_out` decides."""
        return f"{case.subject}/{implementation}" not in self.left_out

    def _cases(self) -> Iterator[Case]:
        found: dict[Case, None] = {}  # different shapes can give the same case
        for shape in (shape for shape in map(_fields_of, self.shapes) if shape["subject"] in self.subject):
            sizes = product(*(getattr(self, name) or (shape[name],) for name in _SIZES))
            for values, dtype, causal in product(sizes, self.dtype, self.causal):
                given = dict(zip(_SIZES, values, strict=True))
                found[_case(shape["subject"], **given, dtype=dtype, causal=causal)] = None
        yield from found


def _fields_of(text: str) -> dict:
    """Return the fields of a shape from its text. Raises SweepError for other texts."""
    match = _SHAPE.fullmatch(text)
    if not match or match["subject"] not in SUBJECTS:
        raise SweepError(f"Shape {text!r} is not written like 'gqa B2 S2048 H32/8 D64'; layers: {', '.join(SUBJECTS)}.")
    sizes = {name: int(match[name] or 0) for name in _SIZES if name != "heads"}
    return {"subject": match["subject"], "heads": match["heads"], **sizes}


def _case(subject: str, heads: str, latent_dim: int, **fields: Any) -> Case:
    num_heads, fewer = split_heads(heads)
    num_kv_heads = fewer if subject.startswith("gqa") else 1 if subject == "mqa" else num_heads
    latent_dim = latent_dim if subject == "mla" else 0
    return layer_case(subject, num_heads=num_heads, num_kv_heads=num_kv_heads, latent_dim=latent_dim, **fields)


SWEEP = LayerSweep
SWEEPS = _FILE.sweeps(LayerSweep)
