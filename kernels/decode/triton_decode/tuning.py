"""The tiles of the split-KV kernel: the table "triton_decode" of `kernels.tables`.

By the format of the cache, padded head_dim, rows of a tile, how a request fills the GPU, keys of a page (0: a
contiguous cache), and whether the cache holds latents. And the division of a request: rows into tiles, key blocks into
shares of programs, and the size of their parts.
"""

from dataclasses import dataclass

from ...tables import family

# How a request fills the GPU. "many": many tiles. "brief": many tiles with few keys. "whole": about one tile for each
# multiprocessor, with a moderate number of keys. "doubled": about two. "whole_brief": whole with few keys. "uneven":
# whole, if that were not so much more than an equal share. "few": tiles that many programs share. "short": few
# tiles with few keys. "shortest": short even if a tile had 16 rows. "single": short, for callers of one launch.
SPREADS = ("many", "brief", "whole", "whole_brief", "uneven", "doubled", "few", "short", "shortest", "single")
_NEAR_BLOCKS = 4  # take less time than to combine two parts, where a multiprocessor has one program
_TICKETS_BYTES = 1 << 20  # size of the parts of a tile, up to which the program with the last ticket combines them


@dataclass(frozen=True)
class DecodeTile:
    """The shape of a program and the number of programs."""

    block_n: int  # keys of a step
    num_warps: int
    num_stages: int
    per_sm: int = 2  # programs on a multiprocessor
    least_keys: int = 128  # fewest keys of a share; 0: those of a tile, if lengths are uniform
    rows: int = 64  # most rows of a tile; more rows are several tiles
    least_rows: int = 16
    tickets: bool | None = None  # whether programs combine parts, rather than a second kernel; None: decided by size
    form: str = "triton"  # or "gluon": the kernel of latent attention on Hopper


def tile(
    chip: str, cache: str, rows: int, block_d: int, *, spread: str = "many", page: int = 0, latent: bool = False
) -> DecodeTile:
    """Return the tile for `rows` rows of head_dim (block_d, padded) over a cache.

    spread: a name of SPREADS; page: keys of a page, 0 for a contiguous cache; latent: keys and values are one tensor.
    """
    table = family(chip)["triton_decode"]
    return DecodeTile(*table.first(cache=cache, block_d=block_d, rows=rows, spread=spread, page=page, latent=latent))


@dataclass(frozen=True)
class Shares:
    """The division of a request; schedule.py computes the same shares on the device."""

    block_m: int
    block_dv: int
    row_tiles: int  # tiles of the rows of one sequence and key head
    tiles: int  # sequences times key heads
    slots: int  # number of shares
    least: int  # key blocks of a share: exact for uniform lengths, otherwise the minimum
    expected: int  # key blocks of a share if all lengths are the capacity
    near: int  # by how many key blocks a share may be longer to be a part of a tile
    splits: int  # shares of a tile if all lengths are the capacity
    rows: int  # rows of a part, padded
    tickets: bool  # whether programs combine their parts
    parts: int  # float32 values of all parts

    @property
    def room(self) -> int:
        """Float32 values of all parts and their logsumexp."""
        return self.parts + self.slots * 2 * self.row_tiles * self.block_m


def divide(
    tile: DecodeTile, *, rows: int, tiles: int, most_keys: int, head_dim_v: int, ragged: bool, multiprocessors: int
) -> Shares:
    """Divide a request with `rows` query rows for each of `tiles` sequences and key heads that see up to most_keys."""
    padded = power_of_2_from(rows)
    block_m = max(tile.least_rows, min(tile.rows, max(16, padded)))
    block_dv = max(16, power_of_2_from(head_dim_v))
    row_tiles = -(-rows // block_m)
    most_blocks = max(1, -(-most_keys // tile.block_n))
    least = most_blocks if tile.least_keys == 0 and not ragged else max(1, tile.least_keys // tile.block_n)
    slots = max(1, multiprocessors * tile.per_sm // row_tiles)
    near = _NEAR_BLOCKS if tile.per_sm == 1 and tile.form == "triton" else 0
    expected = aligned_share(tiles, most_blocks, slots, least, near)
    if not ragged and tiles > slots and expected % most_blocks == 0 and tile.form == "triton" and tile.per_sm <= 2:
        expected, slots = most_blocks, tiles  # the chip deals them out more evenly
    least = least if ragged else expected
    slots = min(slots, -(-tiles * most_blocks // least))
    held = min(block_m, padded)
    splits = min(most_blocks, -(-most_blocks // expected) + (most_blocks % expected > 0))
    tickets = splits * held * block_dv * 4 <= _TICKETS_BYTES if tile.tickets is None else tile.tickets
    shared = ragged or splits > 1 or tile.form == "gluon"
    parts = slots * 2 * row_tiles * block_m * block_dv if shared else 0
    return Shares(block_m, block_dv, row_tiles, tiles, slots, least, expected, near, splits, held, tickets, parts)


def power_of_2_from(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << max(0, number - 1).bit_length()


def aligned_share(tiles: int, blocks: int, slots: int, least: int, near: int = 0) -> int:
    """Return the blocks of a program for uniform lengths, as schedule.share_of computes them on the device."""
    share = max(least, -(-tiles * blocks // slots))
    aligned = -(-tiles // slots) * blocks if tiles > slots else max(least, -(-blocks // (slots // tiles)))
    return aligned if aligned * 10 <= share * 11 or (tiles <= slots and aligned <= share + near) else share
