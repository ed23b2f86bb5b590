"""Sweeps of level op: attention by sequence length and head_dim."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from results.records import INPUTS, Case, attention_case
from runner.sweeps.grid import Sweep, SweepError, SweepFile

_FILE = SweepFile(__file__)
_MODES = ("fwd", "bwd", "fwd_bwd")
_SIZES = (
    "dtype", "causal", "batch", "num_heads", "num_kv_heads", "head_dim_v", "window_size", "features", "inputs",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OpSweep(Sweep):
    """A grid of attention cases. `tokens` derives the batch, tokens / seqlen; `hidden` the heads, hidden / head_dim."""

    LEVEL = "op"
    PEERS = _FILE.names("peers")
    AXES = _FILE.axes(modes=_MODES, inputs=INPUTS)
    FOLDED = "Mask, heads, modes, timings and inputs"
    FOLDED_OF_A_CELL = "Batch, heads and window"
    RULES = MappingProxyType({"batch": "tokens", "num_heads": "hidden"})

    seqlen: tuple[int, ...]
    head_dim: tuple[int, ...] = (64,)
    causal: tuple[bool, ...] = (True,)
    batch: tuple[int, ...] = (1,)
    num_heads: tuple[int, ...] = (1,)
    num_kv_heads: tuple[int, ...] = ()  # empty: as many as num_heads
    head_dim_v: tuple[int, ...] = ()  # empty: as head_dim
    window_size: tuple[int, ...] = (0,)
    features: tuple[str, ...] = ()  # texts of results.features; empty: no features
    inputs: tuple[str, ...] = ("normal",)
    tokens: int | None = None
    hidden: int | None = None
    modes: tuple[str, ...] = _MODES
    implementations: tuple[str, ...] = _FILE.names("torch", "ours")

    @classmethod
    def completed(cls, case: Case, sizes: Mapping[str, Any]) -> Case:
        """Return a case of a table with unstated fields filled in; `sizes` has those that both levels share."""
        whole = attention_case(seqlen=case.seqlen_q, seqlen_k=case.seqlen_k, causal=case.causal, **sizes)
        return dataclasses.replace(whole, head_dim_v=case.head_dim_v or case.head_dim, features=case.features)

    def _cases(self) -> Iterator[Case]:
        for seqlen, head_dim in product(self.seqlen, self.head_dim):
            batches = (_divide("tokens", self.tokens, "seqlen", seqlen),) if self.tokens else self.batch
            heads = (_divide("hidden", self.hidden, "head_dim", head_dim),) if self.hidden else self.num_heads
            keys_and_values = (self.num_kv_heads or (None,), self.head_dim_v or (None,))
            masks = (self.window_size, self.features or (None,))
            for values in product(self.dtype, self.causal, batches, heads, *keys_and_values, *masks, self.inputs):
                sizes: dict[str, Any] = dict(zip(_SIZES, values, strict=True))
                yield attention_case(seqlen=seqlen, head_dim=head_dim, **sizes)


SWEEP = OpSweep
SWEEPS = _FILE.sweeps(OpSweep)


def _divide(what: str, total: int, by: str, size: int) -> int:
    if total % size:
        raise SweepError(f"{what} {total} is not a multiple of {by} {size}.")
    return total // size
