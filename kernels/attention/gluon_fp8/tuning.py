"""Tiles of each shape, by the table "gluon_fp8" of `kernels.tables` (kernels/DESIGN.md has the measurements)."""

from dataclasses import dataclass

from ...tables import family

ROWS = 64  # query rows of each consumer warpgroup: the M of one wgmma
SCALE_ROWS = 128  # queries, keys or values that share one scale
_SHORT_TILE = 0.8  # the time of a tile of 128 rows over that of one of 192
_MOST_SHORT = 15  # short tiles of a head that are tried


@dataclass(frozen=True)
class Fp8Tiles:
    """Constants that the tables choose."""

    block_n: int  # keys of a step
    kv_slots: int  # blocks of keys and of values in shared memory
    consumers: int  # warpgroups that share a tile of queries: two or three (forward.py)


@dataclass(frozen=True, kw_only=True)
class Fp8Config(Fp8Tiles):
    """Compile-time constants of the kernel."""

    head_dim: int  # padded
    masked: bool  # the last block of keys needs a mask
    rows: int = ROWS  # query rows of a consumer


def tiles(head_dim: int) -> Fp8Tiles:
    """Return the tiles of a shape; `head_dim` is padded."""
    return Fp8Tiles(*family("sm_90")["gluon_fp8"].first(head_dim=head_dim))


def quantising_warps(head_dim: int) -> int:
    """Return the warps of a program that quantises 128 rows."""
    return 16 if head_dim > 128 else 4


def tiles_of_head(seqlen_q: int, n_heads: int, programs: int) -> tuple[int, int]:
    """Return how many tiles of 192 and of 128 rows each head has, where three consumers share one.

    The last round of long tiles may leave most programs idle; a few short ones then make it one of short tiles.
    """
    units = -(-seqlen_q // ROWS)
    choices = [(max(0, -(-(units - 2 * short) // 3)), short) for short in range(min(_MOST_SHORT, units) + 1)]

    def time(choice: tuple[int, int]) -> float:
        rounds = -(-n_heads * choice[0] // programs)
        return rounds + _SHORT_TILE * -(-max(0, n_heads * sum(choice) - rounds * programs) // programs)

    return min(choices, key=time)
