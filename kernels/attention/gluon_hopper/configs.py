"""What the kernels are compiled for: their constants, and the head_dims that they have."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...features import Window, reach

if TYPE_CHECKING:
    from .packed import PackedShape
    from .plan import GluonHopperPlan

ROWS = 64  # query rows of a consumer warpgroup: the M of one wgmma
SCHEDULE_FIELDS = 4  # numbers of an entry of the forward's schedule
BOX_COLUMNS = 64  # of what TMA loads from a page that holds no whole block
PACKED_FIELDS = 8  # numbers of an entry of the list of packed sequences' tiles
MOST_PACKED = 128  # head_dim of packed sequences
MOST_BLOCKS = 2**15  # key blocks whose numbers fit in half of a schedule entry
PREPARED_ROWS = 16  # rows of a program of prepare_kernel
HEAD_DIMS = (64, 128, 256, 512)  # other head_dims are padded: TMA fills the columns with zeros
WIDE_KEYS, NARROW_VALUES = 192, 128  # head_dims of keys and of values in training of latent attention
HALVED, HALF = 512, 256  # a head_dim whose output is computed by halves, and a half of it
ONLY_TWO_KERNELS = (WIDE_KEYS, 256)  # head_dims whose backward has no other kind
SCORES = {"softcap": range(1, 257), "alibi_slopes": range(65, 129)}  # head_dims; slopes at 64 would spill 456 bytes
PIECES = {WIDE_KEYS: 3, HALVED: 2}  # of a row in shared memory (pieces.py); one, if nothing is said


@dataclass(frozen=True)
class ForwardTiles:
    """Constants of the forward kernel that the tables choose."""

    block_n: int  # keys of a step
    consumers: int  # warpgroups of 64 query rows
    q_slots: int  # tiles of queries in shared memory, for each consumer
    kv_slots: int  # blocks of keys, and of values, in shared memory; if one, keys are released by piece
    registers: int  # per consumer thread
    pingpong: bool = False  # two consumers alternate on the tensor cores (FlashAttention-3)
    store_from_registers: bool = False  # not by TMA, so that the next queries need not wait for their slot
    exp_before_wait: bool = False  # exponentials stay in front of the wait for the product that overlaps them
    per_lane_max: bool = False  # lanes exchange their maxima only where one is exceeded
    rescale_by_sum: bool = False  # a lane's sum of P tells where a maximum is exceeded; no maximum is computed
    flag_overflow: bool = False  # nor are scores kept: where a sum outgrows float32, everything is computed again
    release_per_warp: bool = False  # warps release slots of keys and values, each for itself
    host_schedule: bool = True  # tiles are dealt on the host
    across_heads: bool = False  # a tile's rows go on to the next query head that has the same keys


@dataclass(frozen=True, kw_only=True)
class ForwardConfig(ForwardTiles):
    """Compile-time constants of the forward kernel."""

    head_dim: int  # padded
    head_dim_v: int  # padded
    causal: bool
    has_window: bool
    masked: bool  # any block of keys may need a mask
    pieces: int = 1  # of a row of queries or keys in shared memory (pieces.py)
    pieces_v: int = 1  # of a row of values
    split_kv: bool = False  # programs split the keys of the last round's tiles
    recompute: bool = False  # compute everything again if an overflow is flagged, else nothing
    packed: bool = False  # sequences lie one after the other, and are known on the device alone
    unpadded_head_dim: int = 0  # columns that registers store of a row, if not all
    columns: int = 0  # as in BackwardConfig, of scores
    sums: int = 1  # as in BackwardConfig, of the output
    page_size: int = 0  # keys of a page, if packed sequences have their keys in pages
    natural_lse: bool = False  # the natural logsumexp is stored, too
    max_logits: bool = False  # the largest logit of each head is stored, too
    bend: float = 0.0  # softmax_scale / softcap; 0: scores have no softcap
    alibi: bool = False  # scores lose slope x distance
    rows: int = ROWS  # query rows of a consumer
    keeps_p: bool = False  # P is kept in memory for `second_half_kernel`


@dataclass(frozen=True)
class BackwardTiles:
    """The constants of a backward kernel."""

    block_m: int  # queries of a step
    block_n: int  # keys of a program, or of a step of the kernel for dQ
    fragments: int = 0  # 64 x 64 fragments of dQ that a step adds
    scores_in_turn: bool = False  # dP of a step begins after S is packed as P
    slots: int = 2  # blocks of queries under way, or of keys where a program owns queries
    v_slots: int = 1  # blocks of values under way where a program owns queries


@dataclass(frozen=True, kw_only=True)
class BackwardConfig:
    """Compile-time constants of a backward kernel."""

    block_m: int
    block_n: int
    head_dim: int  # padded
    head_dim_v: int  # padded
    slots: int  # as in BackwardTiles
    causal: bool
    has_window: bool
    masked: bool  # any block may need a mask
    linear_grid: bool = False  # programs are numbered, not a grid of tiles, heads and batches
    split_q: bool = False  # a program has a split of a tile's queries
    all_split: bool = False  # and no launch of whole tiles comes before
    group_splits: int = 1  # parts of a group of query heads, each with a separate dK and dV
    uneven_group: int = 0  # query heads of a group whose last part has fewer than the others
    next_delta: bool = False  # consumers compute delta of a later key head
    unpadded_head_dim: int = 0  # columns of out and dout, where a kernel reads them row by row
    pieces: int = 1  # of a row of queries or keys in shared memory (pieces.py)
    pieces_v: int = 1  # of a row of values or dout
    v_slots: int = 1  # as in BackwardTiles
    scores_in_turn: bool = False  # see BackwardTiles
    packed: bool = False  # sequences lie one after the other, and are known on the device alone
    columns: int = 0  # of rows that products over head_dim take: fewer than head_dim where it is padded
    sums: int = 1  # tiles of dQ, dK and dV: two, of 64 columns and of the others in use, or all in one
    bend: float = 0.0  # as in ForwardConfig
    alibi: bool = False  # as in ForwardConfig


def forward_config(shape: "GluonHopperPlan | PackedShape", tiles: ForwardTiles, **own: Any) -> ForwardConfig:
    """Return what the forward kernel is compiled for; `own`: the fields that neither shape nor tiles decide."""
    columns = max(64, product_columns(shape.head_dim, shape.size))  # 32 of 64 were not timed
    fields = _fields_of(shape)
    if narrow := narrow_columns(shape.head_dim, shape.size):
        columns = narrow
        fields |= {"head_dim": 192, "head_dim_v": 192, "pieces": 3, "pieces_v": 3}
    return ForwardConfig(**vars(tiles), columns=columns, **fields, **own)


def backward_config(shape: "GluonHopperPlan | PackedShape", tiles: BackwardTiles, **own: Any) -> BackwardConfig:
    """Return what a backward kernel with these tiles is compiled for; `own` as in `forward_config`."""
    sizes: dict[str, Any] = {name: value for name, value in vars(tiles).items() if name != "fragments"}
    columns = product_columns(shape.head_dim, shape.size)
    return BackwardConfig(**sizes, columns=columns, **_fields_of(shape), **own)


def product_columns(head_dim: int, size: int) -> int:
    """Return how many columns products over a head_dim that is padded to `size` take: 32 of 64, 80 or 96 of 128."""
    narrower = {64: (32,), 128: (80, 96)}.get(size, ())
    return next((columns for columns in narrower if head_dim <= columns), size)


def narrow_columns(head_dim: int, size: int) -> int:
    """Return how many of 256 columns the forward computes at head_dim 129 to 192 (the backward 192); elsewhere 0."""
    return next((columns for columns in (160, 192) if size == 256 and head_dim <= columns), 0)


def stores_rows(head_dim: int, size: int) -> bool:
    """Return whether registers store rows of the output; TMA leaves out columns that products have in addition."""
    return size in (head_dim, WIDE_KEYS) or narrow_columns(head_dim, size) > 0  # wide keys have one head_dim_v


def window_of(causal: bool, window_size: Window, far: int) -> tuple[int, int]:
    """Return a window as the kernels take it (masks.py), and the window_size of as many keys that has one width."""
    if causal or not window_size:
        return window_size, window_size  # type: ignore[return-value]  # causal ones have one width
    left, right = reach(causal, window_size, far)
    return left + 1 + (right + 1 << 32), (left + right) // 2 + 1


def _fields_of(shape: "GluonHopperPlan | PackedShape") -> dict[str, Any]:
    sizes = {"head_dim": shape.size, "head_dim_v": shape.size_v, "pieces": shape.pieces, "pieces_v": shape.pieces_v}
    return sizes | {"causal": shape.causal, "has_window": shape.window_size > 0}


def padded_head_dim(head_dim: int) -> int:
    """Return the kernels' head_dim where values have that of keys."""
    return next(size for size in HEAD_DIMS if head_dim <= size)


def padded_head_dims(head_dim: int, head_dim_v: int) -> tuple[int, int]:
    """Return the kernels' head_dim, of queries and keys, and that of values; `takes_head_dims` says which there are."""
    size = padded_head_dim(head_dim) if head_dim == head_dim_v else WIDE_KEYS
    return size, values_head_dim(size)


def values_head_dim(size: int) -> int:
    """Return the kernels' head_dim of values, or of half of them, where that of queries and keys is `size`, padded."""
    return {WIDE_KEYS: NARROW_VALUES, HALVED: HALF}.get(size, size)


def takes_head_dims(head_dim: int, head_dim_v: int) -> bool:
    """Return whether the kernels take values of this head_dim: that of the keys, or 128 under up to 192."""
    return head_dim == head_dim_v or (head_dim_v == NARROW_VALUES and NARROW_VALUES < head_dim <= WIDE_KEYS)


def takes_packed(head_dim: int, head_dim_v: int) -> bool:
    """Return whether the kernels take packed sequences of these head_dims."""
    return head_dim == head_dim_v <= MOST_PACKED and head_dim % 8 == 0
