"""Sweeps of level layer: kinds of layers by shape, with several implementations of the attention inside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from results.records import Case, layer_case
from runner.sweeps.grid import DTYPE, TIMING, TORCH, GridAxis, Sweep, SweepError, split_heads

SUBJECTS = ("mha_fused", "mha", "gqa", "mqa", "mla", "mha_fused_bias", "gqa_bias")
OURS = ("triton_fa2", "gluon_hopper")
_MODES = ("fwd", "bwd", "fwd_bwd")
_SIZES = ("batch", "seqlen", "heads", "head_dim", "latent_dim")
_SHAPE = re.compile(
    r"(?P<subject>\w+) B(?P<batch>\d+) S(?P<seqlen>\d+) H(?P<heads>[\d/]+) D(?P<head_dim>\d+)( L(?P<latent_dim>\d+))?"
)
_AS_SHAPES = "Empty: the value of each of the sweep's layers."


@dataclass(frozen=True, kw_only=True)
class LayerSweep(Sweep):
    """Layers in given shapes; every size that is set replaces the sizes of the shapes.

    A shape is written as "gqa B2 S2048 H32/8 D64", with L512 at its end for the latent of MLA. The number of key heads
    after the slash applies to GQA only: MQA has one, and the other layers have as many as query heads.
    """

    LEVEL = "layer"
    AXES = (
        GridAxis("subject", "text", SUBJECTS, about="Kinds of layers.", first=True, of_a_cell="one"),
        GridAxis("batch", about=_AS_SHAPES, first=True, of_a_cell="any"),
        GridAxis("seqlen", about=_AS_SHAPES, first=True, of_a_cell="any"),
        GridAxis("heads", "heads", about="Query heads over the key heads of GQA, such as 32/8.", of_a_cell="any"),
        GridAxis("head_dim", about=_AS_SHAPES, of_a_cell="any"),
        GridAxis("latent_dim", about="Width of the latent of MLA.", of_a_cell="any"),
        DTYPE,
        GridAxis("causal", "boolean", about="true: a query sees no later key.", of_a_cell="one"),
        GridAxis("modes", "text", _MODES, of_a_cell="one"),
        TIMING,
    )
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
    implementations: tuple[str, ...] = TORCH + OURS
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


_MULTI_HEAD = ("B2 S2048 H12 D64", "B1 S4096 H32 D128", "B1 S2048 H40 D128")
_OF_THE_REPORT = {
    "mha_fused": _MULTI_HEAD,
    "mha": _MULTI_HEAD,
    "gqa": ("B2 S2048 H32/8 D64", "B1 S4096 H32/8 D128", "B1 S2048 H40/8 D128"),
    "mqa": ("B2 S2048 H16 D64", "B1 S4096 H32 D128", "B1 S2048 H40 D128"),
    "mla": ("B2 S2048 H32 D128 L512", "B1 S4096 H64 D128 L1024", "B1 S2048 H128 D128 L2048"),
}

_FLASHTILE_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)

SWEEP = LayerSweep
SWEEPS = (
    LayerSweep(
        name="attention_layers",
        description="The 15 layers of report attention_layers_a100, with a full mask, in two dtypes",
        shapes=tuple(f"{subject} {shape}" for subject, shapes in _OF_THE_REPORT.items() for shape in shapes),
    ),
    LayerSweep(
        name="attention_layers_quick",
        description="A first look at layers in seconds, on any GPU or CPU",
        shapes=tuple(f"{subject} B1 S128 H4/2 D64 L128" for subject in _OF_THE_REPORT),
        seqlen=(128, 256),
        dtype=("float16", "float32"),
        protocol="quick",
    ),
    LayerSweep(
        name="flashtile",
        description="The layers of report flashtile_a100: biases, float32, causal, forward, timed as plain calls",
        shapes=("mha_fused_bias B4 S256 H12 D64", "gqa_bias B4 S256 H12/3 D64"),
        subject=("mha_fused_bias", "gqa_bias"),
        seqlen=_FLASHTILE_LENGTHS,
        dtype=("float32",),
        causal=(True,),
        modes=("fwd",),
        timings=("eager",),
        implementations=("torch_naive", "tiled_v1", "tiled_v2", "triton_fa2", "torch_sdpa_auto"),
        left_out=("gqa_bias/tiled_v1",),  # the report has grouped heads for one version only
        protocol="quick",
    ),
)
