"""Sweeps of level op: attention by sequence length and head_dim."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from results.records import INPUTS, Case, attention_case
from runner.sweeps.grid import DTYPE, TIMING, TORCH, GridAxis, Sweep, SweepError

OURS = ("triton_fa2", "triton_fa2_tf32", "gluon_hopper")
FP8 = ("gluon_fp8",)
PEERS = ("flash_attn_2", "flash_attn_3", "flash_attn_4", "xformers")  # measured if installed
_MODES = ("fwd", "bwd", "fwd_bwd")


@dataclass(frozen=True, kw_only=True)
class OpSweep(Sweep):
    """A grid of attention cases. `tokens` derives the batch, tokens / seqlen; `hidden` the heads, hidden / head_dim."""

    LEVEL = "op"
    PEERS = PEERS
    AXES = (
        GridAxis("seqlen", first=True, of_a_cell="one"),
        GridAxis("head_dim", first=True, of_a_cell="one"),
        GridAxis(
            "batch",
            about="Empty: the sweep's number of tokens divided by seqlen.",
            of_a_cell="any",
        ),
        GridAxis("num_heads", about="Empty: the sweep's hidden size divided by head_dim.", of_a_cell="any"),
        GridAxis("num_kv_heads", about="Empty: as many as num_heads.", of_a_cell="any"),
        GridAxis("window_size", about="Keys that a query sees to its left; 0: all of them.", of_a_cell="any"),
        dataclasses.replace(DTYPE, first=True),
        GridAxis("causal", "boolean", about="true: a query sees no later key.", of_a_cell="one"),
        GridAxis("modes", "text", _MODES, of_a_cell="one"),
        TIMING,
        GridAxis(
            "inputs", "text", INPUTS, about="Kind of data; kinds other than normal are for errors, not for speed."
        ),
    )
    FOLDED = "Mask, heads, modes, timings and inputs"
    FOLDED_OF_A_CELL = "Batch, heads and window"
    RULES = MappingProxyType({"batch": "tokens", "num_heads": "hidden"})

    seqlen: tuple[int, ...]
    head_dim: tuple[int, ...] = (64,)
    causal: tuple[bool, ...] = (True,)
    batch: tuple[int, ...] = (1,)
    num_heads: tuple[int, ...] = (1,)
    num_kv_heads: tuple[int, ...] = ()  # empty: as many as num_heads
    window_size: tuple[int, ...] = (0,)
    inputs: tuple[str, ...] = ("normal",)
    tokens: int | None = None
    hidden: int | None = None
    modes: tuple[str, ...] = _MODES
    implementations: tuple[str, ...] = TORCH + OURS

    @classmethod
    def completed(cls, case: Case, sizes: Mapping[str, Any]) -> Case:
        """Return a case of a table with unstated fields filled in."""
        whole = attention_case(seqlen=case.seqlen_q, seqlen_k=case.seqlen_k, causal=case.causal, **sizes)
        return dataclasses.replace(whole, head_dim_v=case.head_dim_v or case.head_dim)

    def _cases(self) -> Iterator[Case]:
        for seqlen, head_dim in product(self.seqlen, self.head_dim):
            yield from self._cases_of(seqlen, head_dim)

    def _cases_of(self, seqlen: int, head_dim: int) -> Iterator[Case]:
        batches = (_divide("tokens", self.tokens, "seqlen", seqlen),) if self.tokens else self.batch
        heads = (_divide("hidden", self.hidden, "head_dim", head_dim),) if self.hidden else self.num_heads
        kv_heads = self.num_kv_heads or (None,)
        grid = product(self.dtype, self.causal, batches, heads, kv_heads, self.window_size, self.inputs)
        for dtype, causal, batch, num_heads, num_kv_heads, window_size, inputs in grid:
            yield attention_case(
                batch=batch,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                seqlen=seqlen,
                head_dim=head_dim,
                dtype=dtype,
                causal=causal,
                window_size=window_size,
                inputs=inputs,
            )


SWEEP = OpSweep
SWEEPS = (
    OpSweep(
        name="quick",
        description="A first look in about a minute, on any GPU or CPU",
        seqlen=(128, 512, 1024),
        head_dim=(64,),
        dtype=("float16", "float32"),
        protocol="quick",
    ),
    OpSweep(
        name="fa2_speedup",
        description="The 56 cases of report fa2_rtx4060: one head, causal, seqlen 128 to 8192",
        seqlen=(128, 256, 512, 1024, 2048, 4096, 8192),
        head_dim=(16, 32, 64, 128),
    ),
    OpSweep(
        name="torch_vs_triton",
        description="The 24 cases of report torch_vs_triton: one head, causal, seqlen 128 to 512",
        seqlen=(128, 256, 512),
        head_dim=(16, 32, 64, 128),
    ),
    OpSweep(
        name="performance_guide",
        description="The attention tables of report performance_guide: 32 heads of 64, batch 1, 4 and 8, forward",
        seqlen=(512, 1024, 2048, 4096, 8192, 16384, 32768),
        head_dim=(64,),
        dtype=("float16",),
        causal=(False,),  # not stated in the report
        batch=(1, 4, 8),
        num_heads=(32,),
        modes=("fwd",),
        timings=("kernel",),
        implementations=("torch_naive", "flash_attn_1", "triton_fa2", "gluon_hopper") + FP8 + PEERS,
    ),
    OpSweep(
        name="long_context",
        description="The single-head shapes up to 65536 tokens",
        seqlen=(16384, 32768, 65536),
        head_dim=(16, 32, 64, 128),
    ),
    OpSweep(
        name="fa_paper",
        description="The FlashAttention papers' grid: 16k tokens, hidden 2048, causal and full",
        seqlen=(512, 1024, 2048, 4096, 8192, 16384),
        head_dim=(64, 128, 256),
        dtype=("bfloat16",),
        causal=(False, True),
        tokens=16384,
        hidden=2048,
        implementations=TORCH + OURS + FP8 + PEERS,
    ),
    OpSweep(
        name="energy",
        description="Joules a call by seqlen, in the shapes of fa_paper at head_dim 128",
        seqlen=(1024, 4096, 16384),
        head_dim=(128,),
        dtype=("bfloat16",),
        causal=(False, True),
        tokens=16384,
        hidden=2048,
        implementations=TORCH + OURS + PEERS,
        modes=("fwd", "fwd_bwd"),
        timings=("kernel",),
        energy=True,
    ),
    OpSweep(
        name="window_gqa",
        description="A sliding window of 1024 keys over 32 query heads on 8 key heads, with FlexAttention",
        seqlen=(4096, 16384),
        head_dim=(128,),
        dtype=("bfloat16",),
        num_heads=(32,),
        num_kv_heads=(8,),
        window_size=(1024,),
        implementations=TORCH + OURS + PEERS + ("torch_flex",),
        energy=True,
    ),
    OpSweep(
        name="flash_references",
        description="FlashAttention's loops in readable PyTorch and a plain implementation, on any device",
        seqlen=(256, 512, 1024, 2048),
        dtype=("float32",),
        num_heads=(4,),
        implementations=("torch_naive", "tiled_v1", "tiled_v2", "flash_attn_1", "triton_fa2"),
        protocol="quick",
    ),
    OpSweep(
        name="accuracy",
        description="Errors against float64 on plain data, outliers, large values, heavy tails, long rows; untimed",
        seqlen=(256, 1024, 16384),
        head_dim=(64, 128, 256),
        dtype=("bfloat16", "float16", "float32"),
        inputs=INPUTS,
        modes=("fwd", "bwd"),
        timings=(),
        implementations=TORCH + OURS + FP8 + PEERS,
    ),
)


def _divide(what: str, total: int, by: str, size: int) -> int:
    if total % size:
        raise SweepError(f"{what} {total} is not a multiple of {by} {size}.")
    return total // size
