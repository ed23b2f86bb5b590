"""Which tiles a shape gets, and in what order: the choices are NOTES.md's measurements."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 64  # query rows of a consumer warpgroup: the M of one wgmma
L2_BYTES = 32 * 2**20  # the part of the L2 that keys and values may hold at a time
HEAD_DIMS = (64, 128, 256)  # those between are padded: the copy engine fills the columns with zeros


@dataclass(frozen=True)
class ForwardTiles:
    """The constants of the forward kernel."""

    block_n: int
    consumers: int
    q_slots: int
    kv_slots: int
    turns: bool  # two consumers take turns on the tensor cores
    registers: int  # of a consumer's thread


@dataclass(frozen=True)
class BackwardTiles:
    """The constants of the backward kernels."""

    block_m: int  # queries of a step
    block_n: int  # keys of a program
    fragments: int = 0  # 64 x 64 pieces of dQ that a step adds


FORWARD = {
    64: ForwardTiles(block_n=128, consumers=3, q_slots=2, kv_slots=3, turns=False, registers=160),
    128: ForwardTiles(block_n=128, consumers=2, q_slots=2, kv_slots=2, turns=True, registers=240),
    256: ForwardTiles(block_n=64, consumers=2, q_slots=1, kv_slots=2, turns=True, registers=240),
}
SHORT_64 = ForwardTiles(block_n=128, consumers=2, q_slots=2, kv_slots=3, turns=True, registers=240)
BACKWARD = {
    64: BackwardTiles(block_m=128, block_n=128, fragments=2),
    128: BackwardTiles(block_m=64, block_n=128, fragments=2),
    256: BackwardTiles(block_m=64, block_n=64),
}


def padded_head_dim(head_dim: int) -> int:
    """The kernels' head_dim."""
    return next(size for size in HEAD_DIMS if head_dim <= size)


def forward_tiles(head_dim: int, seqlen_q: int, causal: bool, window: bool) -> ForwardTiles:
    """Tiles for a padded head_dim.

    At head_dim 64 tiles of 192 rows waste more at the diagonal and the end; with a window they spill 2.6 KB.
    """
    short = window or seqlen_q <= (2048 if causal else 1024)
    return SHORT_64 if head_dim == 64 and short else FORWARD[head_dim]


def heads_together(seqlen_k: int, head_dim: int, group_size: int, n_heads: int) -> int:
    """How many query heads are worked on at a time, so that their keys and values stay in the L2."""
    fit = max(1, L2_BYTES * group_size // (4 * seqlen_k * head_dim))
    rounds = -(-n_heads // fit)
    return -(-n_heads // rounds)
