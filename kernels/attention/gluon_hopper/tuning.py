"""Tiles of each shape, their order, and the constants of the kernels; kernels/DESIGN.md has the reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

ROWS = 64  # query rows of a consumer warpgroup: the M of one wgmma
SCHEDULE_FIELDS = 4  # numbers of an entry of the forward's schedule
PACKED_FIELDS = 8  # numbers of an entry of the list of packed sequences' tiles
MOST_PACKED = 128  # head_dim of packed sequences
SHORT_PACKED = {64: 256, 128: 1024}  # by head_dim: queries of packed sequences whose tiles are those of short ones
MOST_BLOCKS = 2**15  # key blocks whose numbers fit in half of a schedule entry
SMALL_L2_BYTES = 50 * 2**20  # an H100's, whose memory has 0.7 of the H200's bandwidth
MOST_SUMS_BYTES = 2**28  # float32 sums of dQ in the memory of such a chip
L2_BYTES = 32 * 2**20  # the part of the L2 that keys and values may hold at a time
RING_BYTES = 2**25  # the largest ring of dQ's fragments that was timed
SLOTS = 2  # blocks of queries, or of keys, under way in a backward kernel
PREPARED_ROWS = 16  # rows of a program of prepare_kernel
HEAD_DIMS = (64, 128, 256)  # other head_dims are padded: TMA fills the columns with zeros
WIDE_KEYS, NARROW_VALUES = 192, 128  # head_dims of keys and of values in training of latent attention
ONLY_TWO_KERNELS = (WIDE_KEYS, 256)  # head_dims whose backward has no other kind
PIECES = {WIDE_KEYS: 3}  # of a row in shared memory (pieces.py); one, if nothing is said


@dataclass(frozen=True)
class ForwardTiles:
    """Constants of the forward kernel that the tables choose."""

    block_n: int  # keys of a step
    consumers: int  # warpgroups of 64 query rows
    q_slots: int  # tiles of queries in shared memory, for each consumer
    kv_slots: int  # blocks of keys, and of values, in shared memory
    registers: int  # per consumer thread
    pingpong: bool = False  # two consumers alternate on the tensor cores (FlashAttention-3)
    store_from_registers: bool = False  # not by TMA, so that the next queries need not wait for their slot
    exp_before_wait: bool = False  # exponentials stay in front of the wait for the product that overlaps them
    per_lane_max: bool = False  # lanes exchange their maxima only where one is exceeded
    rescale_by_sum: bool = False  # a lane's sum of P tells where a maximum is exceeded; no maximum is computed
    flag_overflow: bool = False  # nor are scores kept: where a sum outgrows float32, everything is computed again
    release_per_warp: bool = False  # warps release slots of keys and values, each for itself
    host_schedule: bool = True  # tiles are dealt on the host


@dataclass(frozen=True, kw_only=True)
class ForwardConfig(ForwardTiles):
    """Compile-time constants of the forward kernel."""

    head_dim: int  # padded
    head_dim_v: int  # padded
    causal: bool
    has_window: bool
    masked: bool  # any block of keys may need a mask
    pieces: int = 1  # of a row of queries or keys in shared memory (pieces.py)
    split_kv: bool = False  # programs split the keys of the last round's tiles
    recompute: bool = False  # compute everything again if an overflow is flagged, else nothing
    packed: bool = False  # sequences lie one after the other, and are known on the device alone
    unpadded_head_dim: int = 0  # columns of packed output, if head_dim is padded
    rows: int = ROWS  # query rows of a consumer


@dataclass(frozen=True)
class BackwardTiles:
    """The constants of a backward kernel."""

    block_m: int  # queries of a step
    block_n: int  # keys of a program, or of a step of the kernel for dQ
    fragments: int = 0  # 64 x 64 fragments of dQ that a step adds
    scores_in_turn: bool = False  # dP of a step begins after S is packed as P


@dataclass(frozen=True, kw_only=True)
class BackwardConfig:
    """Compile-time constants of a backward kernel."""

    block_m: int
    block_n: int
    head_dim: int  # padded
    head_dim_v: int  # padded
    slots: int  # blocks of queries under way, or of keys where a program owns queries
    causal: bool
    has_window: bool
    masked: bool  # any block may need a mask
    linear_grid: bool = False  # programs are numbered, not a grid of tiles, heads and batches
    split_q: bool = False  # a program has a split of a tile's queries
    all_split: bool = False  # and no launch of whole tiles comes before
    group_splits: int = 1  # parts of a group of query heads, each with a separate dK and dV
    next_delta: bool = False  # consumers compute delta of a later key head
    unpadded_head_dim: int = 0  # columns of out and dout, where a kernel reads them row by row
    pieces: int = 1  # of a row of queries or keys in shared memory (pieces.py)
    scores_in_turn: bool = False  # see BackwardTiles
    packed: bool = False  # sequences lie one after the other, and are known on the device alone


class ConfiguredShape(Protocol):
    """The attributes of a shape that configs copy."""

    head_dim: int
    size: int  # head_dim, padded
    size_v: int
    pieces: int
    causal: bool
    window_size: int  # 0: none


def forward_config(shape: ConfiguredShape, tiles: ForwardTiles, **own: Any) -> ForwardConfig:
    """Return what the forward kernel is compiled for; `own`: the fields that neither shape nor tiles decide."""
    return ForwardConfig(**vars(tiles), **_fields_of(shape), **own)


def backward_config(shape: ConfiguredShape, tiles: BackwardTiles, **own: Any) -> BackwardConfig:
    """Return what a backward kernel with these tiles is compiled for; `own` as in `forward_config`."""
    sizes: dict[str, Any] = {"block_m": tiles.block_m, "block_n": tiles.block_n, "scores_in_turn": tiles.scores_in_turn}
    return BackwardConfig(**sizes, slots=SLOTS, **_fields_of(shape), **own)


def _fields_of(shape: ConfiguredShape) -> dict[str, Any]:
    sizes = {"head_dim": shape.size, "head_dim_v": shape.size_v, "pieces": shape.pieces}
    return sizes | {"causal": shape.causal, "has_window": shape.window_size > 0}


_WIDE = ForwardTiles(
    128,
    consumers=2,
    q_slots=1,
    kv_slots=2,
    registers=240,
    pingpong=True,
    store_from_registers=True,
    per_lane_max=True,
)
FORWARD = {
    64: ForwardTiles(64, consumers=4, q_slots=2, kv_slots=6, registers=112, store_from_registers=True),
    128: ForwardTiles(128, consumers=2, q_slots=2, kv_slots=2, registers=240, pingpong=True, per_lane_max=True),
    256: replace(_WIDE, block_n=64, exp_before_wait=True),
    WIDE_KEYS: _WIDE,
}
LONG_64 = ForwardTiles(
    128,
    consumers=3,
    q_slots=2,
    kv_slots=4,
    registers=160,
    store_from_registers=True,
    flag_overflow=True,
    release_per_warp=True,
    host_schedule=False,
)
SHORT_128 = ForwardTiles(64, consumers=2, q_slots=2, kv_slots=4, registers=240, per_lane_max=True)
TAIL_128 = replace(SHORT_128, pingpong=True, rescale_by_sum=True, exp_before_wait=True)
SHORT_TAIL_128 = 2000  # keys below which a tail takes steps of 64
HELD_KEYS_128 = 8192  # keys from which full masks hold exponentials in front of the wait
HELD_KEYS_WHOLE_128 = 4096  # the same without a tail, where head_dim is not padded
SHORT_HEADS = 8  # heads that causal masks of up to 512 tokens deal together
MOST_FREE_256 = 4096  # queries up to which consumers under a causal mask take no turns, as each skips what it hides
WINDOW_64 = ForwardTiles(128, consumers=2, q_slots=2, kv_slots=3, registers=240, pingpong=True, exp_before_wait=True)
BACKWARD = {
    64: BackwardTiles(block_m=128, block_n=128, fragments=2),
    128: BackwardTiles(block_m=64, block_n=128, fragments=2),
}
# two kernels, whose sums have a fixed order: (dK and dV, dQ)
BACKWARD_TWO_KERNELS = {
    64: (BackwardTiles(block_m=64, block_n=128), BackwardTiles(block_m=64, block_n=128)),
    128: (BackwardTiles(block_m=64, block_n=128), BackwardTiles(block_m=64, block_n=64)),
    256: (BackwardTiles(block_m=64, block_n=64), BackwardTiles(block_m=64, block_n=64)),
    WIDE_KEYS: (BackwardTiles(block_m=64, block_n=128), BackwardTiles(block_m=64, block_n=64, scores_in_turn=True)),
}


def heads_by_length(heads: int, key_tiles: int, programs: int, causal: bool, window: bool) -> tuple[int, int]:
    """Return how many key heads the backward takes one by one, and the size of the groups behind them.

    The tiles of a group are taken by length. A group is about as many heads as are worked on at a time; of short
    sequences only the last heads are a group, as the others' keys would leave the L2.
    """
    at_once = programs // key_tiles
    if not causal or window or at_once < 2:
        return heads, 1
    heads_per_group = 1 << at_once.bit_length() - 1  # rounded down: heads come in powers of two
    return 0 if key_tiles >= 16 else max(0, heads - heads_per_group), heads_per_group


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
    most = 256 // key_tiles if key_tiles >= 16 else 1
    return next(group for group in range(max(1, most), 0, -1) if heads % group == 0)


def tiles_to_split(n_tiles: int, seqlen_q: int, programs: int) -> int:
    """Return how many tiles of keys are split: the last round's, where it has too few; short ones would not gain.

    Of a first round only where it has far too few: programs that walk the same queries side by side share the L2.
    """
    rounds, left_over = divmod(n_tiles, programs)
    idle = (programs - left_over) / programs / (rounds + 1) if left_over else 0
    return left_over if seqlen_q >= 2048 and idle > (0.01 if rounds else 0.6) else 0


def fits_in_ring(fragments: int) -> bool:
    """Return whether so many float32 fragments of 64 x 64 are not more than was timed."""
    return fragments * 2**14 <= RING_BYTES


def computes_next_delta(size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: bool) -> bool:
    """Return whether programs of earlier key heads compute delta, where that was measured to be faster."""
    return size == 64 and not window and min(seqlen_q, seqlen_k) >= (2048 if causal else 1024)


def sums_outgrow_memory(size: int, n_heads: int, seqlen_q: int, key_tiles: int, l2_bytes: int) -> bool:
    """Return whether a full mask's backward at head_dim 128 is faster in two kernels, without sums of dQ in memory.

    With few tiles of keys and many queries, the bytes of the sums take longer than two more products. `n_heads` is
    batch x num_heads; `l2_bytes` identifies the chip, 0 if unknown.
    """
    is_large = n_heads * seqlen_q * size * 4 >= MOST_SUMS_BYTES
    return size == 128 and is_large and key_tiles <= 3 and 0 < l2_bytes <= SMALL_L2_BYTES


def has_dq_warpgroup(
    size: int, n_kv_heads: int, group_size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: bool, programs: int
) -> bool:
    """Return whether dQ has a separate warpgroup; `n_kv_heads` is batch x num_kv_heads.

    At head_dim 128 only where lengths and ring are not larger than what was timed: a ring of 33.5 MiB took 24 times as
    long, for unknown reasons (DESIGN.md, "dQ ring").
    """
    if size != 128:
        return size == 64
    tiles = BACKWARD[128]
    delay = dq_delay(n_kv_heads, -(-seqlen_k // tiles.block_n), programs, causal, window)
    per_head = group_size * -(-seqlen_q // tiles.block_m) * tiles.fragments
    longest = 8192 if causal else 16384
    return not window and max(seqlen_q, seqlen_k) <= longest and fits_in_ring(min(n_kv_heads, 2 * delay) * per_head)


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
        keys = BACKWARD_TWO_KERNELS[256][0].block_n if self.size == 256 else BACKWARD[self.size].block_n
        tiles, heads = -(-self.seqlen_k // keys), self.group_size // splits
        longest, shortest = (_PROGRAM_ROWS + rows for rows in self._rows_seen(keys))
        work = (longest + shortest) / 2 * tiles * self.n_kv_heads * self.group_size / programs
        if shortest > longest / 2:
            work = longest * heads * -(-tiles * self.n_kv_heads * splits // programs)
        rows = max(work, longest * heads)
        at_once = heads * min(programs / tiles, self.n_kv_heads * splits)
        if shortest <= longest / 2 and at_once * self.seqlen_q > _AT_ONCE and at_once * _NEAR > programs:
            rows *= _FROM_MEMORY
        time = rows * keys * self.size * programs / _PRODUCTS_A_US
        if splits == 1:
            return time
        return time + self.n_kv_heads * splits * self.seqlen_k * self.size / _PARTS_A_US + _LAUNCH_US

    def _rows_seen(self, keys: int) -> tuple[int, int]:
        """Return how many queries of a head see the tile of keys that most see, and that fewest see."""
        if self.window_size:
            seen = min(self.seqlen_q, keys + self.window_size * (1 if self.causal else 2))
            return seen, seen
        return self.seqlen_q, min(self.seqlen_q, keys) if self.causal else self.seqlen_q


# Measured on an H100 and an H200 (DESIGN.md, "Parts of groups").
_PROGRAM_ROWS = 96  # queries in whose time a program begins and ends
_AT_ONCE = 36864  # rows of queries, dout and sums of dQ that programs at work may be spread over
_NEAR = 12  # programs that walk one head, from which on they load and add to the same rows at about the same time
_FROM_MEMORY = 1.35  # times as long, otherwise
_PRODUCTS_A_US = 62e6  # query-key pairs, times head_dim, five products each
_PARTS_A_US = 0.44e6  # numbers of dK, and of dV, written and read
_LAUNCH_US = 5  # launch of the kernel that adds them up


def group_splits(
    size: int, n_kv_heads: int, group_size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: int, programs: int
) -> int:
    """Return into how many parts, of as many heads each, the backward splits a group of query heads.

    The fewest whose time is within an eighth of the shortest; `n_kv_heads` is batch x num_kv_heads. At head_dim 256
    only whole groups and single heads were timed. Where keys are wider than values, each query head has its own keys,
    and nothing is split.
    """
    if size == WIDE_KEYS:
        return 1
    shape = SharedKeys(size, n_kv_heads, group_size, seqlen_q, seqlen_k, causal, window)
    timed = (1, group_size) if size == 256 else range(1, group_size + 1)
    times = {n: shape.microseconds(n, programs) for n in timed if group_size % n == 0}
    return next(splits for splits, time in times.items() if time <= 1.125 * min(times.values()))


def padded_head_dim(head_dim: int) -> int:
    """Return the kernels' head_dim where values have that of keys."""
    return next(size for size in HEAD_DIMS if head_dim <= size)


def padded_head_dims(head_dim: int, head_dim_v: int) -> tuple[int, int]:
    """Return the kernels' head_dim, of queries and keys, and that of values; `takes_head_dims` says which there are."""
    size = padded_head_dim(head_dim) if head_dim == head_dim_v else WIDE_KEYS
    return size, values_head_dim(size)


def values_head_dim(size: int) -> int:
    """Return the kernels' head_dim of values where that of queries and keys is `size`, padded."""
    return NARROW_VALUES if size == WIDE_KEYS else size


def takes_head_dims(head_dim: int, head_dim_v: int) -> bool:
    """Return whether the kernels take values of this head_dim: that of the keys, or 128 under up to 192."""
    return head_dim == head_dim_v or (head_dim_v == NARROW_VALUES and NARROW_VALUES < head_dim <= WIDE_KEYS)


def forward_tiles(
    size: int, head_dim: int, seqlen_q: int, causal: bool, window: bool, bfloat16: bool = True
) -> ForwardTiles:
    """Return the tiles for a head_dim that is padded to `size`; registers store whole rows only.

    Overflow flags need bfloat16, which has the exponents of float32.
    """
    tiles = FORWARD[size]
    if size == 64 and window:
        tiles = WINDOW_64
    elif size == 64:
        tiles = _tiles_64(seqlen_q, causal, bfloat16)
    elif size == 128 and causal and not window and seqlen_q <= 512:
        tiles = replace(SHORT_128, rescale_by_sum=True)
    elif size in (128, WIDE_KEYS) and not window:
        tiles = replace(tiles, rescale_by_sum=True)
    elif head_dim == 256 and causal and not window and seqlen_q <= MOST_FREE_256:
        tiles = replace(tiles, pingpong=False)
    whole_rows = head_dim == size or size == WIDE_KEYS  # wide keys have one head_dim_v
    return replace(tiles, store_from_registers=tiles.store_from_registers and whole_rows)


def _tiles_64(seqlen_q: int, causal: bool, bfloat16: bool) -> ForwardTiles:
    long = (16384 if causal else 8192) // (1 if bfloat16 else 2)
    if seqlen_q >= long:
        return replace(LONG_64, flag_overflow=bfloat16)
    flagged = bfloat16 and seqlen_q >= (2048 if causal else 1024)
    by_sum = not causal or seqlen_q < 2048
    return replace(FORWARD[64], rescale_by_sum=by_sum, flag_overflow=flagged, exp_before_wait=flagged and not causal)


def packed_length(longest_q: int) -> int:
    """Return the first number of SHORT_PACKED that no sequence is longer than, or else 0."""
    return next((most for most in SHORT_PACKED.values() if longest_q <= most), 0)


def packed_forward_tiles(size: int, length: int, causal: bool, window: bool) -> ForwardTiles:
    """Return the tiles for packed sequences of head_dim `size`, padded, of a `packed_length`."""
    tiles = FORWARD[size]
    short = 0 < length <= SHORT_PACKED.get(size, 0)
    if size == 64 and (window or (causal and short)):
        tiles = WINDOW_64
    elif size == 64 and causal:
        tiles = replace(tiles, consumers=3, registers=160)
    elif size == 128 and causal and short:
        tiles = SHORT_128
    by_sum = size < 256 and not window
    return replace(tiles, rescale_by_sum=by_sum, store_from_registers=True, host_schedule=False)


def packed_rows_in_l2(size: int) -> int:
    """Return of how many rows of a head queries, dout and the sums of dQ may be walked at a time."""
    return L2_BYTES // (8 * size)


def takes_packed(head_dim: int, head_dim_v: int) -> bool:
    """Return whether the kernels take packed sequences of these head_dims."""
    return head_dim == head_dim_v <= MOST_PACKED and head_dim % 8 == 0


@dataclass(frozen=True)
class FullMask:
    """Queries that see every key: what the form of their forward depends on in addition to head_dim."""

    seqlen_q: int
    seqlen_k: int
    n_heads: int  # batch x num_heads
    programs: int
    l2_bytes: int = 0  # L2 of the chip, 0 if unknown

    def tiles(self, consumers: int) -> int:
        """Return how many tiles of so many consumers' rows there are."""
        return -(-self.seqlen_q // (ROWS * consumers)) * self.n_heads

    def rounds(self, consumers: int) -> int:
        """Return how many tiles the program has that has most."""
        return -(-self.tiles(consumers) // self.programs)


def full_mask_form(
    tiles: ForwardTiles, size: int, mask: FullMask, whole_rows: bool = True
) -> tuple[ForwardTiles, bool]:
    """Return what becomes of `forward_tiles` at these lengths, and whether programs split the last round's keys.

    They do only if rows are whole: head_dim is not padded.
    """
    if size == 64 and not tiles.release_per_warp:  # the tiles of long sequences stay
        return _fastest_64(tiles, mask, whole_rows)
    if size == 128:
        small_l2 = 0 < mask.l2_bytes <= SMALL_L2_BYTES
        return _tiles_128(tiles, mask.seqlen_k, whole_rows, small_l2), False
    n_tiles = mask.tiles(tiles.consumers)
    n_blocks = -(-mask.seqlen_k // tiles.block_n)
    return tiles, whole_rows and splits_keys(size, n_tiles, min(n_tiles, mask.programs), n_blocks)


def _tiles_128(tiles: ForwardTiles, seqlen_k: int, whole_rows: bool, small_l2: bool) -> ForwardTiles:
    has_tail = seqlen_k % tiles.block_n > 0
    if has_tail and seqlen_k < SHORT_TAIL_128:
        return TAIL_128
    if small_l2 and not whole_rows and HELD_KEYS_WHOLE_128 <= seqlen_k < HELD_KEYS_128:
        return TAIL_128
    least = HELD_KEYS_WHOLE_128 if whole_rows and not has_tail else HELD_KEYS_128
    return replace(tiles, exp_before_wait=seqlen_k >= least)


# Times at head_dim 64, measured on an H200 (DESIGN.md, "The last round"): of a tile by its consumers, relative to four
# consumers with overflow flags; of a tile of four without flags; and, in blocks of 64 keys, the overhead of a tile and
# of combining splits.
_TIME_OF_ROWS = {2: 0.57, 3: 0.79, 4: 1.0}
_TIME_UNFLAGGED, _TILE_BLOCKS, _COMBINE_BLOCKS = 1.07, 1.5, 10.0


def _fastest_64(tiles: ForwardTiles, mask: FullMask, splits: bool) -> tuple[ForwardTiles, bool]:
    """Choose how many rows a tile has, so that the last round is not a few tiles; or split the last round's keys."""
    block = -(-mask.seqlen_k // 64) + _TILE_BLOCKS
    plain = replace(FORWARD[64], rescale_by_sum=True, store_from_registers=tiles.store_from_registers)
    of_three = replace(plain, consumers=3, registers=160)
    held = mask.seqlen_k % WINDOW_64.block_n == 0
    stored = tiles.store_from_registers
    of_two = replace(WINDOW_64, rescale_by_sum=True, store_from_registers=stored, exp_before_wait=held)
    whole = 1.0 if tiles.flag_overflow else _TIME_UNFLAGGED
    forms = [
        (whole * mask.rounds(4) * block, tiles, False),
        (_TIME_OF_ROWS[3] * mask.rounds(3) * block, of_three, False),
        (_TIME_OF_ROWS[2] * mask.rounds(2) * block, of_two, False),
    ]
    if splits and mask.tiles(4) > mask.programs and block < MOST_BLOCKS:
        split = _TIME_UNFLAGGED * mask.tiles(4) / mask.programs * block + _COMBINE_BLOCKS
        forms.append((split, plain, True))
    return min(forms, key=lambda form: form[0])[1:]


def heads_in_l2(
    seqlen_k: int, head_dim: int, group_size: int, n_heads: int, n_m: int, programs: int, rounds: int = 2
) -> int:
    """Return how many query heads are worked on at a time: as many as `rounds` rounds of tiles take.

    Their keys and values stay in the L2 if they are few. Where programs work their tiles out, two rounds, which go in
    opposite directions, give every program the same; dealt on the host, one is enough.
    """
    fit = max(1, min(rounds * programs // n_m, L2_BYTES * group_size // (4 * seqlen_k * head_dim)))
    groups = -(-n_heads // fit)
    return -(-n_heads // groups)


def heads_dealt_together(size: int, seqlen_q: int, seqlen_k: int, causal: bool, window: bool, rounds: int) -> int:
    """Return of how many heads each tiles are dealt by falling length, where that is faster; else 0.

    Tiles that load all of a head's keys from memory then run at the same time as tiles that find them in the L2.
    In fewer rounds of tiles, programs would have less equal shares. Timed at 128; at 256 in other forms only.
    """
    is_short = size in (128, 256) and causal and not window and max(seqlen_q, seqlen_k) <= 512
    return SHORT_HEADS if is_short and rounds >= 6 else 0


def splits_keys(head_dim: int, n_tiles: int, programs: int, n_blocks: int) -> bool:
    """Return whether programs split the keys of the last round's tiles, as it leaves many without a tile."""
    idle = -n_tiles % programs / programs
    return head_dim == 256 and 64 <= n_blocks < MOST_BLOCKS and idle > 0.015 * -(-n_tiles // programs)
