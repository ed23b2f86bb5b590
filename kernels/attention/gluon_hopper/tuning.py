"""The forms of the kernels and the order of their tiles, by the tables "gluon_hopper …" of `kernels.tables`.

kernels/DESIGN.md has the reasons.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from ...tables import family
from .configs import HALVED, MOST_BLOCKS, ROWS, WIDE_KEYS, BackwardTiles, ForwardTiles, narrow_columns, stores_rows

_FLAGS = tuple(field.name for field in fields(ForwardTiles) if field.type is bool)


@cache
def number(name: str) -> Any:
    """Return a number of the table "gluon_hopper numbers"."""
    return _first("numbers", name=name)[0]


def _first(table: str, **facts: Any) -> tuple[Any, ...]:
    return family("sm_90")[f"gluon_hopper {table}"].first(**facts)


@cache
def _forward(row: tuple[Any, ...], whole_rows: bool = True) -> ForwardTiles:
    """Return the tiles of a row, whose last column has the names of what holds; registers store whole rows only."""
    *sizes, names = row
    tiles = ForwardTiles(*sizes, **{flag: flag in names.split() for flag in _FLAGS})
    return replace(tiles, store_from_registers=tiles.store_from_registers and whole_rows)


@cache
def backward_tiles(kernel: str, size: int, values: int = 0, causal_rows: int = 0) -> BackwardTiles:
    """Return the tiles of a backward kernel: "sums" of dQ in memory, or one kernel for "keys" and one for "queries"."""
    return BackwardTiles(*_first("backward", kernel=kernel, size=size, values=values, causal_rows=causal_rows))


def heads_by_length(heads: int, key_tiles: int, programs: int, causal: bool, window: bool) -> tuple[int, int]:
    """Return how many key heads the backward takes one by one, and the size of the groups behind them.

    The tiles of a group are taken by length. A group is about as many heads as are worked on at a time; of short
    sequences only the last heads are a group, as the others' keys would leave the L2.
    """
    at_once = programs // key_tiles
    if not causal or window or at_once < 2:
        return heads, 1
    heads_per_group = 1 << at_once.bit_length() - 1  # rounded down: heads come in powers of two
    return 0 if key_tiles >= number("long_heads_key_tiles") else max(0, heads - heads_per_group), heads_per_group


def dq_delay(heads: int, key_tiles: int, programs: int, causal: bool, window: bool, in_order: bool = False) -> int:
    """Return after how many key heads dQ of one is complete: as many as are worked on at a time.

    Half as many more where some tiles take longer than others; where all come by length, two groups of heads, or more
    where a group has far fewer tiles than there are programs. `in_order`: they come head by head.
    """
    heads_in_order, heads_per_group = heads_by_length(heads, key_tiles, programs, causal, window)
    nearly = programs - programs // 8
    if not window and not in_order and (heads_in_order == 0 or key_tiles >= nearly):
        return heads_per_group * (1 + -(-nearly // (heads_per_group * key_tiles)))
    at_once = programs + programs // 2 if causal or window else programs
    return -(-at_once // key_tiles) + 1


def heads_taking_turns(key_tiles: int, heads: int) -> int:
    """Return how many of the causal heads, of `key_tiles` tiles each, take turns, so that all groups have one size.

    About two rounds of tiles; short heads are faster one after the other.
    """
    most = number("key_tiles_taking_turns") // key_tiles if key_tiles >= number("long_heads_key_tiles") else 1
    return next(group for group in range(max(1, most), 0, -1) if heads % group == 0)


def tiles_to_split(n_tiles: int, seqlen_q: int, programs: int) -> int:
    """Return how many tiles of keys are split: the last round's, where it has too few; short ones would not gain.

    Of a first round only where it has far too few: programs that walk the same queries side by side share the L2.
    """
    rounds, left_over = divmod(n_tiles, programs)
    idle = (programs - left_over) / programs / (rounds + 1) if left_over else 0
    least = number("split_idle" if rounds else "split_idle_first_round")
    return left_over if seqlen_q >= number("split_queries") and idle > least else 0


def fits_in_ring(fragments: int) -> bool:
    """Return whether so many float32 fragments of 64 x 64 are not more than was timed."""
    return fragments * 4 * ROWS**2 <= number("ring_bytes")


def computes_next_delta(size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: bool) -> bool:
    """Return whether programs of earlier key heads compute delta, where that was measured to be faster."""
    return not window and bool(_first("next delta", size=size, causal=causal, least=min(seqlen_q, seqlen_k)))


def sums_outgrow_memory(size: int, n_heads: int, seqlen_q: int, key_tiles: int, l2_bytes: int) -> bool:
    """Return whether a full mask's backward at head_dim 128 is faster in two kernels, without sums of dQ in memory.

    With few tiles of keys and many queries, the bytes of the sums take longer than two more products. `n_heads` is
    batch x num_heads; `l2_bytes` identifies the chip, 0 if unknown.
    """
    is_large = n_heads * seqlen_q * size * 4 >= number("most_sums_bytes")
    few_tiles, small_l2 = key_tiles <= number("most_sums_key_tiles"), 0 < l2_bytes <= number("small_l2_bytes")
    return size == 128 and is_large and few_tiles and small_l2


def has_dq_warpgroup(
    size: int, n_kv_heads: int, group_size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: bool, programs: int
) -> bool:
    """Return whether dQ has a separate warpgroup; `n_kv_heads` is batch x num_kv_heads.

    At head_dim 128 only where lengths and ring are not larger than what was timed: a ring of 33.5 MiB took 24 times as
    long, for unknown reasons (DESIGN.md, "dQ ring").
    """
    is_timed = bool(_first("dq warpgroup", size=size, causal=causal, longest=max(seqlen_q, seqlen_k)))
    if size != 128 or window or not is_timed:
        return is_timed and size != 128
    tiles = backward_tiles("sums", size)
    delay = dq_delay(n_kv_heads, -(-seqlen_k // tiles.block_n), programs, causal, window)
    per_head = group_size * -(-seqlen_q // tiles.block_m) * tiles.fragments
    return fits_in_ring(min(n_kv_heads, 2 * delay) * per_head)


@dataclass(frozen=True)
class SharedKeys:
    """A backward in which groups of query heads share keys: what its time depends on."""

    size: int  # head_dim, padded
    n_kv_heads: int  # batch x num_kv_heads
    group_size: int
    seqlen_q: int
    seqlen_k: int
    causal: bool
    window_size: int  # 0: none

    def microseconds(self, splits: int, programs: int) -> float:
        """Estimate the time on an H100 or H200, with a group split into so many parts.

        A program owns a tile of keys and walks the heads of a part. The last program ends when the work is dealt
        evenly, or when the longest walk ends. Causal walks drift apart, so that programs at work spread over all heads
        of their parts: where these are more than the L2 holds, steps wait for memory. dK and dV of parts are written
        and read once more.
        """
        keys = backward_tiles("keys" if self.size == 256 else "sums", self.size).block_n
        tiles, heads = -(-self.seqlen_k // keys), -(-self.group_size // splits)
        longest, shortest = (number("program_rows") + rows for rows in self._rows_seen(keys))
        work = (longest + shortest) / 2 * tiles * self.n_kv_heads * self.group_size / programs
        if shortest > longest / 2:
            work = longest * heads * -(-tiles * self.n_kv_heads * splits // programs)
        rows = max(work, longest * heads)
        at_once = heads * min(programs / tiles, self.n_kv_heads * splits)
        is_near = at_once * number("programs_near") <= programs and at_once * self.seqlen_q <= number("rows_near")
        if shortest <= longest / 2 and at_once * self.seqlen_q > number("rows_at_once") and not is_near:
            rows *= number("from_memory")
        time = rows * keys * self.size * programs / number("products_a_us")
        if splits == 1:
            return time
        parts = self.n_kv_heads * splits * self.seqlen_k * self.size
        return time + parts / number("parts_a_us") + number("launch_us")

    def _rows_seen(self, keys: int) -> tuple[int, int]:
        """Return how many queries of a head see the tile of keys that most see, and that fewest see."""
        if self.window_size:
            seen = min(self.seqlen_q, keys + self.window_size * (1 if self.causal else 2))
            return seen, seen
        return self.seqlen_q, min(self.seqlen_q, keys) if self.causal else self.seqlen_q


def group_splits(shape: SharedKeys, programs: int, uneven: bool = False) -> int:
    """Return into how many parts, of as many heads each, the backward splits a group of query heads.

    The fewest whose time is within an eighth of the shortest. At head_dim 256 only whole groups and single heads were
    timed. Where keys are wider than values, each query head has its own keys, and nothing is split; nor at head_dim
    512, where the backward is triton_fa2's. `uneven`: the last part of a prime number of heads may have fewer.
    """
    size, heads = shape.size, shape.group_size
    if size in (WIDE_KEYS, HALVED):
        return 1
    timed = (1, heads) if size == 256 else range(1, heads + 1)
    fits = [n for n in timed if heads % n == 0]
    if uneven and len(fits) == 2 and heads >= number("uneven_group"):
        fits = [*sorted({-(-heads // most) for most in timed[number("uneven_part") - 1 :]}), heads]
    times = {n: shape.microseconds(n, programs) for n in fits}
    most = number("near_shortest") * min(times.values())
    return next(splits for splits, time in times.items() if time <= most)


def forward_tiles(
    size: int, head_dim: int, seqlen_q: int, causal: bool, window: bool, bfloat16: bool = True, seqlen_k: int = 0
) -> ForwardTiles:
    """Return the tiles for a head_dim that is padded to `size`.

    Overflow flags need bfloat16, which has the exponents of float32.
    """
    asked = {"size": size, "head_dim": head_dim, "causal": causal, "window": window}
    row = _first("forward", **asked, queries=seqlen_q, keys=seqlen_k, bfloat16=bfloat16)
    return _forward(row, stores_rows(head_dim, size))


def packed_length(longest: int) -> int:
    """Return the first length of the table that is at least `longest`, of queries or of keys, or else 0."""
    found = _first("packed lengths", longest=longest)
    return found[0] if found else 0


def packed_forward_tiles(size: int, length: int, keys: int, causal: bool, window: bool) -> ForwardTiles:
    """Return the tiles for packed sequences of head_dim `size`, padded; `length` and `keys`: each a `packed_length`."""
    return _forward(_first("packed forward", size=size, causal=causal, window=window, length=length, keys=keys))


@dataclass(frozen=True)
class Lengths:
    """What the form of a forward without a window depends on in addition to head_dim and mask."""

    seqlen_q: int
    seqlen_k: int
    n_heads: int  # batch x num_heads
    programs: int
    l2_bytes: int = 0  # L2 of the chip, 0 if unknown
    group_size: int = 1  # query heads of a key head

    def tiles(self, consumers: int) -> int:
        """Return how many tiles of so many consumers' rows there are."""
        return -(-self.seqlen_q // (ROWS * consumers)) * self.n_heads

    def tiles_across_heads(self, consumers: int) -> int:
        """Return how many there are if a tile's rows go on to the next query head that has the same keys."""
        parts = -(-self.seqlen_q // ROWS) * self.group_size
        return -(-parts // consumers) * (self.n_heads // self.group_size)

    def rounds(self, consumers: int) -> int:
        """Return how many tiles the program has that has most."""
        return -(-self.tiles(consumers) // self.programs)


def full_mask_form(tiles: ForwardTiles, size: int, head_dim: int, mask: Lengths) -> tuple[ForwardTiles, bool]:
    """Return what becomes of `forward_tiles` at these lengths, and whether programs split the last round's keys.

    They do only if rows are whole: head_dim is not padded. Of fewer tiles than programs they do at 129 to 192 alone.
    """
    whole_rows = stores_rows(head_dim, size)
    if size == 64 and not tiles.release_per_warp:  # the tiles of long sequences stay
        return _fastest_64(tiles, mask, whole_rows)
    if size == 128:
        facts = {"tail": mask.seqlen_k % tiles.block_n > 0, "small_l2": 0 < mask.l2_bytes <= number("small_l2_bytes")}
        facts |= {"head_dim": head_dim, "whole_rows": whole_rows}
        return _forward(_first("full mask 128", **facts, keys=mask.seqlen_k)), False
    n_tiles = mask.tiles(tiles.consumers)
    n_blocks = -(-mask.seqlen_k // tiles.block_n)
    programs = mask.programs if narrow_columns(head_dim, size) else min(n_tiles, mask.programs)
    return tiles, whole_rows and splits_keys(size, n_tiles, programs, n_blocks)


def _fastest_64(tiles: ForwardTiles, mask: Lengths, splits: bool) -> tuple[ForwardTiles, bool]:
    """Choose how many rows a tile has, so that the last round is not a few tiles; or split the last round's keys."""
    block = -(-mask.seqlen_k // 64) + number("tile_blocks")
    found = [(mask.rounds(4) * block + number("flag_blocks"), tiles, False)] if tiles.flag_overflow else []
    for n in (2, 3, 4):
        time, more, *row = _first("last round 64", consumers=n, tail=mask.seqlen_k % 128 > 0)
        form = replace(_forward(tuple(row)), store_from_registers=tiles.store_from_registers)
        blocks = -(-mask.seqlen_k // form.block_n) * (form.block_n // 64) + more
        found.append((time * mask.rounds(n) * blocks, form, False))
    if splits and mask.tiles(4) > mask.programs and block < MOST_BLOCKS:
        split = time * mask.tiles(4) / mask.programs * block + number("combine_blocks")
        found.append((split, form, True))
    return min(found, key=lambda form: form[0])[1:]


def causal_form(tiles: ForwardTiles, size: int, lengths: Lengths) -> tuple[ForwardTiles, bool]:
    """Return the tiles under a causal mask, and whether programs split keys: where all tiles see about as many.

    If tiles are fewer than programs, these split the keys of all, else those of the last round's. At head_dim 64 tiles
    have 256 or 192 rows, by the time that is expected.
    """
    n_blocks = -(-lengths.seqlen_k // tiles.block_n)
    alike = lengths.seqlen_q <= (1 - number("split_causal_alike")) * lengths.seqlen_k
    if size not in (64, 128, 256) or tiles.flag_overflow or n_blocks >= MOST_BLOCKS or not alike:
        return tiles, False
    rows = [_first("last round 64", consumers=n, tail=False) for n in (4, 3)] if size == 64 else []
    times = [(time, _forward(tuple(row))) for time, _, *row in rows] or [(1.0, tiles)]
    found = [_split_form(form, time, size, lengths) for time, form in times]
    return min(found, key=lambda form: form[0])[1:]


def _split_form(tiles: ForwardTiles, time: float, size: int, lengths: Lengths) -> tuple[float, ForwardTiles, bool]:
    """Return the expected time of tiles that take `time` a block, what becomes of them, and whether keys are split.

    Their rows go on from head to head where tiles are fewer then and a consumer can skip the blocks that it must.
    """
    n_tiles = lengths.tiles(tiles.consumers)
    across = lengths.tiles_across_heads(tiles.consumers)
    if across_heads := across < n_tiles and _can_skip(tiles, lengths.seqlen_q - ROWS):
        n_tiles = across
    tile = -(-lengths.seqlen_k // tiles.block_n) + number("tile_blocks")
    whole = -(-n_tiles // lengths.programs) * tile
    split = n_tiles / lengths.programs * tile + number(f"combine_keys_{size}") / tiles.block_n
    tiles = replace(tiles, across_heads=across_heads)
    return time * min(split, whole), tiles, split < number("split_causal_gain") * whole


def _can_skip(tiles: ForwardTiles, keys: int) -> bool:
    """Return whether a consumer can skip the blocks of so many keys before its part of a tile.

    With two slots of queries it skips them before it hands back the last values of the tile before. The producer stops
    at that slot, so a consumer that waited for a block behind it would wait forever.
    """
    return tiles.pingpong or tiles.q_slots == 1 or -(-keys // tiles.block_n) < tiles.kv_slots


def heads_in_l2(
    seqlen_k: int, head_dim: int, group_size: int, n_heads: int, n_m: int, programs: int, rounds: int = 2
) -> int:
    """Return how many query heads are worked on at a time: as many as `rounds` rounds of tiles take.

    Their keys and values stay in the L2 if they are few. Where programs work their tiles out, two rounds, which go in
    opposite directions, give every program the same; dealt on the host, one is enough.
    """
    fit = max(1, min(rounds * programs // n_m, number("l2_bytes") * group_size // (4 * seqlen_k * head_dim)))
    groups = -(-n_heads // fit)
    return -(-n_heads // groups)


def heads_dealt_together(size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: bool, rounds: int) -> int:
    """Return of how many heads each tiles are dealt by falling length, where that is faster; else 0.

    Tiles that load all of a head's keys from memory then run at the same time as tiles that find them in the L2.
    In fewer rounds of tiles, programs would have less equal shares. Timed at 128; at 256 in other forms only.
    """
    is_short = max(seqlen_q, seqlen_k) <= number("short_heads_tokens") and rounds >= number("short_heads_rounds")
    return number("short_heads") if size in (128, 256) and causal and not window and is_short else 0


def splits_keys(head_dim: int, n_tiles: int, programs: int, n_blocks: int) -> bool:
    """Return whether programs split the keys of the last round's tiles, as it leaves many without a tile."""
    idle = -n_tiles % programs / programs
    is_long = number("split_key_blocks") <= n_blocks < MOST_BLOCKS
    return head_dim == 256 and is_long and idle > number("split_key_idle") * -(-n_tiles // programs)
