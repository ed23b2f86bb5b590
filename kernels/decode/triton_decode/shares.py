"""The division of a request: rows into tiles, key blocks into shares of programs, and the size of their parts."""

from dataclasses import dataclass

from .tuning import DecodeTile

_TICKETS_BYTES = 1 << 20  # size of the parts of a tile, up to which the program with the last ticket combines them


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
    least = max(1, tile.least_keys // tile.block_n)
    slots = max(1, multiprocessors * tile.per_sm // row_tiles)
    expected = aligned_share(tiles, most_blocks, slots, least)
    if not ragged:
        least = expected
    slots = min(slots, -(-tiles * most_blocks // least))
    held = min(block_m, padded)
    splits = min(most_blocks, -(-most_blocks // expected) + (most_blocks % expected > 0))
    tickets = splits * held * block_dv * 4 <= _TICKETS_BYTES if tile.tickets is None else tile.tickets
    parts = slots * 2 * row_tiles * block_m * block_dv
    return Shares(block_m, block_dv, row_tiles, tiles, slots, least, expected, splits, held, tickets, parts)


def power_of_2_from(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << max(0, number - 1).bit_length()


def aligned_share(tiles: int, blocks: int, slots: int, least: int) -> int:
    """Return the blocks of a program for uniform lengths, as schedule.share_of computes them on the device."""
    share = max(least, -(-tiles * blocks // slots))
    aligned = -(-tiles // slots) * blocks if tiles > slots else max(least, -(-blocks // (slots // tiles)))
    return aligned if aligned * 10 <= share * 11 else share
