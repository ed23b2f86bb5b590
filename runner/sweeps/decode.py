"""Sweeps of level decode: context by batch, pairs of heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from results.records import Case, decode_case
from runner.sweeps.grid import DTYPE, TIMING, TORCH, Axis, Sweep, split_heads

OURS = ("triton_split_kv",)


@dataclass(frozen=True, kw_only=True)
class DecodeSweep(Sweep):
    """A grid of decoding cases."""

    LEVEL = "decode"
    AXES = (
        Axis("context", about="Tokens in each sequence's cache.", first=True, of_a_cell="one"),
        Axis("batch", first=True, of_a_cell="one"),
        Axis("heads", "heads", about="Query heads over key heads, such as 64/8.", first=True, of_a_cell="one"),
        Axis("head_dim", of_a_cell="one"),
        DTYPE,
        Axis("query_tokens", of_a_cell="any"),
        Axis("window_size", about="Keys that a query sees to its left; 0: all of them.", of_a_cell="any"),
        TIMING,
    )
    FOLDED = "Head_dim, dtype, window and timings"
    FOLDED_OF_A_CELL = "Query tokens and window"

    context: tuple[int, ...]  # tokens in each sequence's cache
    batch: tuple[int, ...]
    heads: tuple[str, ...]  # num_heads/num_kv_heads
    head_dim: tuple[int, ...]
    query_tokens: tuple[int, ...] = (1,)
    window_size: tuple[int, ...] = (0,)
    modes: tuple[str, ...] = ("decode",)
    implementations: tuple[str, ...] = TORCH + OURS

    def _cases(self) -> Iterator[Case]:
        shapes = product(self.context, self.batch, self.heads, self.head_dim, self.dtype, self.query_tokens)
        for context, batch, heads, head_dim, dtype, query_tokens in shapes:
            num_heads, num_kv_heads = split_heads(heads)
            for window_size in self.window_size:
                yield decode_case(
                    batch=batch,
                    num_heads=num_heads,
                    num_kv_heads=num_kv_heads,
                    context=context,
                    head_dim=head_dim,
                    dtype=dtype,
                    query_tokens=query_tokens,
                    window_size=window_size,
                )


SWEEP = DecodeSweep
SWEEPS = (
    DecodeSweep(
        name="decode",
        description="One query token against contiguous KV caches: context by batch, 64 heads on 8, 32 on 8, 32",
        context=(2048, 8192, 32768, 131072),
        batch=(1, 8, 32, 128),
        heads=("64/8", "32/8", "32/32"),
        head_dim=(128,),
        dtype=("bfloat16",),
    ),
    DecodeSweep(
        name="decode_quick",
        description="A first look at decoding in seconds, on any GPU or CPU",
        context=(128, 1024),
        batch=(1, 4),
        heads=("8/2",),
        head_dim=(64,),
        dtype=("float16", "float32"),
        protocol="quick",
    ),
)
