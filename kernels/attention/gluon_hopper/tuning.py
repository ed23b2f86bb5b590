"""Which tiles a shape gets, and in what order: the choices are NOTES.md's measurements."""

from dataclasses import dataclass

ROWS = 64  # query rows of a consumer warpgroup: the M of one wgmma
BLOCK_N_BACKWARD = 128  # keys of a backward program
L2_BYTES = 32 * 2**20  # the part of the L2 that keys and values may hold at a time


@dataclass(frozen=True)
class ForwardTiles:
    """The constants of the forward kernel."""

    block_n: int
    consumers: int
    q_slots: int
    kv_slots: int
    turns: bool  # two consumers take turns on the tensor cores
    registers: int  # of a consumer's thread


FORWARD = {
    64: ForwardTiles(block_n=128, consumers=3, q_slots=2, kv_slots=3, turns=False, registers=160),
    128: ForwardTiles(block_n=128, consumers=2, q_slots=2, kv_slots=2, turns=True, registers=240),
    256: ForwardTiles(block_n=64, consumers=2, q_slots=1, kv_slots=2, turns=True, registers=240),
}
WINDOW_64 = ForwardTiles(block_n=128, consumers=2, q_slots=2, kv_slots=3, turns=True, registers=240)
BACKWARD_BLOCK_M = {64: 128, 128: 64}  # query rows of a backward step; other head dims have no backward here


def padded_head_dim(head_dim: int) -> int:
    """The kernel's head_dim: the copy engine fills the columns beyond with zeros."""
    return next(size for size in FORWARD if head_dim <= size)


def forward_tiles(head_dim: int, window: bool) -> ForwardTiles:
    """Tiles for a padded head_dim. Three consumers with a window spill 2.6 KB."""
    return WINDOW_64 if head_dim == 64 and window else FORWARD[head_dim]


def heads_together(seqlen_k: int, head_dim: int, group_size: int, n_heads: int) -> int:
    """How many query heads are worked on at a time, so that their keys and values stay in the L2."""
    fit = max(1, L2_BYTES * group_size // (4 * seqlen_k * head_dim))
    rounds = -(-n_heads // fit)
    return -(-n_heads // rounds)
