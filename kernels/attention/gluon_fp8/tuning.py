"""Which tiles a shape gets; NOTES.md holds the measurements."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 64  # query rows of each of the two consumer warpgroups: the M of one wgmma
SCALE_ROWS = 128  # queries, keys or values that share one scale
HEAD_DIMS = (64, 128, 256)  # those between are padded with zeros
L2_BYTES = 32 * 2**20  # the part of the L2 that keys and values may hold at a time


@dataclass(frozen=True)
class Tiles:
    """The constants of the kernel."""

    block_n: int  # keys of a step
    kv_slots: int  # blocks of keys and of values in shared memory


TILES = {
    64: Tiles(block_n=128, kv_slots=3),
    128: Tiles(block_n=128, kv_slots=3),
    256: Tiles(block_n=128, kv_slots=2),
}


def padded_head_dim(head_dim: int) -> int:
    """The kernel's head_dim."""
    return next(size for size in HEAD_DIMS if head_dim <= size)


def heads_together(seqlen_k: int, head_dim: int, group_size: int, n_heads: int) -> int:
    """How many query heads are worked on at a time, so that their keys and values stay in the L2."""
    fit = max(1, L2_BYTES * group_size // (2 * seqlen_k * head_dim))
    rounds = -(-n_heads // fit)
    return -(-n_heads // rounds)
