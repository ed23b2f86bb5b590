"""One attention problem: its shape, masks and chip, and which kernels, tiles and splits they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...features import Window, reach
from ...launches import INTERPRETED
from ...plans import LOG2_E, check_inputs, scale_of
from ...registry import UnsupportedCase
from ...tables import machine_of
from . import split, tuning
from .arguments import PanelConfig, WalkConfig
from .panels import padded_size, panels
from .split import Split, choose_split
from .tile_ops import BF16_PARTS

PDL_CHIPS = ("sm_90", "sm_100")  # by their tables; see forward.wait_for_previous_kernel
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_ROW_STRIDE = 1 << 23  # a tile's offsets are 32-bit: 256 rows of this stride stay below 2**31
FEW_KEYS = 144  # keys that one program holds, with their values, in shared memory
WINDOW_ROWS, WINDOW_KEYS = 64, 256  # rows of a tile, and the keys in their window that one program holds
FEW_QUERIES = 32  # from more on, a program walks over FEW_KEYS at most in the backward: longer walks were not timed
MOST_QUERIES_A_KEY = 8  # up to which one launch computes all gradients; else few programs walk long for dk and dv
HEADS_EACH = 2  # of a multiprocessor, from which on one program a head computes the backward of short heads
MOST_STORED = 16384  # queries of all heads that share keys, up to which P and dS of enough keys fit in a part of bf16x6
ONE_LOOP = 8  # rows or keys a multiprocessor up to which a walk is one masked loop, see forward.py
ONE_TILE = 16  # queries up to which a forward is one masked loop: the mask costs little, a second loop waits for memory
ROOM = 1.025  # length of a 16-bit forward's split over the average share of a place
_INTERPRETED_CHIP = ("sm_86", 4, 1 << 25)  # tables, multiprocessors, L2 bytes; few multiprocessors make for large tiles


@dataclass(frozen=True)
class TritonProblem:
    """What the kernels of one forward and backward, and their launches, are chosen by. Made by `TritonProblem.of`."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    num_heads: int
    num_kv_heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool
    window_size: Window  # 0: no window
    scale: float
    float32_precision: str  # the caller's choice for float32 products: "ieee" or "tf32"
    chip: str  # a family of kernels.tables
    multiprocessors: int
    l2_bytes: int

    @classmethod
    def of(
        cls, q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: Window, scale: float | None, precision: str
    ) -> TritonProblem:
        """Describe the problem of q (batch, num_heads, seqlen_q, head_dim) and k (batch, num_kv_heads, seqlen_k, …)."""
        chip = _INTERPRETED_CHIP if INTERPRETED else _chip(q.device)
        batch, num_heads, seqlen_q, head_dim = q.shape
        sizes = (batch, num_heads, k.shape[1], seqlen_q, k.shape[2], head_dim)
        return cls(q.device, q.dtype, *sizes, bool(causal), window_size, scale_of(scale, head_dim), precision, *chip)

    @cached_property
    def precision(self) -> str:
        """The tables' precision: "half" for 16 bits; float32 is "ieee", "tf32" or "bf16x6", which is IEEE's equal."""
        if self.dtype.itemsize == 2:
            return "half"
        if self.float32_precision != "ieee":
            return self.float32_precision
        queries = self.batch * self.num_heads * self.seqlen_q / self.multiprocessors  # not the keys: the forward's rows
        return "bf16x6" if tuning.uses_bf16x6(self.chip, self.block_d, queries) else "ieee"

    @cached_property
    def block_d(self) -> int:
        """The columns of a tile: head_dim padded to a power of two."""
        return max(16, 1 << (self.head_dim - 1).bit_length())

    @cached_property
    def group(self) -> int:
        """The query heads that share a key head."""
        return self.num_heads // self.num_kv_heads

    @cached_property
    def extent(self) -> tuple[int, int, int, int]:
        """The lengths, and how many keys before and after its own position a query sees."""
        return self.seqlen_q, self.seqlen_k, *reach(self.causal, self.window_size, self._beyond_all)

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The scale of scores in powers of two, and the scale itself."""
        return self.scale * LOG2_E, self.scale

    @cached_property
    def copied(self) -> bool:
        """Whether the kernels work on copies of their inputs, see preprocess.py."""
        return self.precision in ("ieee", "bf16x6")

    @cached_property
    def lse_dtype(self) -> torch.dtype:
        """The dtype of the logsumexp, see tile_ops.py."""
        return torch.float64 if self.dtype == torch.float32 else torch.float32

    @cached_property
    def common(self) -> dict[str, Any]:
        """The constants that all kernels share, by their names in Config."""
        return {
            "head_dim": self.head_dim,
            "block_d": self.block_d,
            "has_left": bool(self.window_size),
            "has_right": bool(self.causal or self.window_size),
            "pdl": self.chip in PDL_CHIPS,
        }

    @cached_property
    def precisions(self) -> dict[str, Any]:
        """The constants of products."""
        precision = self.float32_precision if self.precision == "half" else self.precision
        return {"precision": precision, "copied": self.precision == "ieee"}

    @cached_property
    def walk_config(self) -> WalkConfig:
        """The configuration of the kernels that walk over all keys or rows."""
        busy = self.batch * self.num_heads * self._longest / self.multiprocessors
        one_loop = busy <= ONE_LOOP or self._is_long_code
        return WalkConfig(**self.common, **self.precisions, one_loop=one_loop)

    @cached_property
    def panel_config(self) -> PanelConfig:
        """The configuration of the kernels whose rows are two panels of columns, see panels.py."""
        block_d, block_d2 = panels(self.head_dim)
        return PanelConfig(**{**self.common, "block_d": block_d}, block_d2=block_d2)

    @cached_property
    def forward_table(self) -> str:
        """The table whose kernel computes out."""
        rows = self.heads("forward") * self.seqlen_q / self.multiprocessors
        blind = self.causal and self.seqlen_q > 2 * self.seqlen_k > 2 * FEW_KEYS  # most queries, which "forward" skips
        most = 0 if blind else tuning.limit("few_keys", self.chip, self.block_d, rows)
        if self.seqlen_k <= most and self.tiles("few_keys"):
            return "few_keys"
        short_window = bool(self.window_size) and self.keys_in_window <= WINDOW_KEYS
        shared = short_window and self.tiles("window") and self.heads_each(self.tiles("window")[0]) > 1
        return "window" if shared else "forward"

    @cached_property
    def keys_in_window(self) -> int:
        """The keys that a tile of WINDOW_ROWS rows sees at most."""
        return WINDOW_ROWS + sum(self.extent[2:])

    @cached_property
    def has_few_queries(self) -> bool:
        """Whether one program a head computes the backward, by backward_few_queries.py."""
        fills = self.group == 1 and self.heads("few_queries") >= self.multiprocessors
        is_short = self.seqlen_q <= FEW_QUERIES or self.seqlen_k <= FEW_KEYS
        return fills and is_short and bool(self.tiles("few_queries"))

    @cached_property
    def few_queries_tile(self) -> tuning.Tile:
        """The tile of "few_queries", of no more keys than there are; a smaller one would not hold all queries."""
        tile = self.tiles("few_queries")[0]
        if self.seqlen_k > tile.block_n:
            return tile
        return tile._replace(block_n=padded_size(self.seqlen_k), num_stages=1)

    @cached_property
    def has_whole_heads(self) -> bool:
        """Whether one program a head computes the backward, by backward_whole_heads.py."""
        fills = self.group == 1 and self.heads("whole_heads") >= HEADS_EACH * self.multiprocessors
        return fills and not (self.causal or self.window_size) and bool(self.tiles("whole_heads"))

    @cached_property
    def has_dq_dkdv(self) -> bool:
        """Whether dq, dk and dv come from one launch of backward.py's kernels."""
        balanced = self.seqlen_q <= MOST_QUERIES_A_KEY * self.seqlen_k
        return self.group == 1 and balanced and bool(self.tiles("dq_dkdv"))

    @cached_property
    def stores_scores(self) -> bool:
        """Whether the backward stores P and dS, by stored.py: in bf16x6 where walks took longer."""
        fits = self.precision != "bf16x6" or (not self.window_size and self.group * self.seqlen_q <= MOST_STORED)
        return fits and bool(self.tiles("stored_scores"))

    @cached_property
    def forward_split(self) -> Split | None:
        """How the forward's walks over the keys are split; None if they are not."""
        return self._split("forward", self.seqlen_k) if self.forward_table == "forward" else None

    @cached_property
    def dq_dkdv_split(self) -> Split | None:
        """How all walks of a backward in one launch are split; None if they are not."""
        return self._split("dq_dkdv", self._longest)

    def heads(self, table: str) -> int:
        """Return the heads whose tiles a table's kernel works on."""
        return self.batch * (self.num_kv_heads if table == "dkdv" else self.num_heads)

    def rows(self, table: str) -> int:
        """Return the rows, or keys, of a head that a table's kernel shares out in tiles."""
        if table == "dq_dkdv":
            return self._longest
        return self.seqlen_k if table == "dkdv" else self.seqlen_q

    def tiles(self, table: str) -> list[tuning.Tile]:
        """Return the tile to use and those to fall back to; none if this kernel is not for this problem."""
        busy = self.rows(table) * (1 if table in tuning.BY_HEAD else self.heads(table) / self.multiprocessors)
        return tuning.tiles(table, self.chip, self.precision, self.block_d, busy, self.seqlen_q, self.seqlen_k)

    def rows_each(self, tile: tuning.Tile) -> int:
        """Return the query rows of a program that holds all keys: whole tiles, as many as let all programs run at once.

        And two where that leaves two programs a multiprocessor. `tile` is the first of "few_keys".
        """
        heads, tiles = self.heads("few_keys"), -(-self.seqlen_q // tile.block_m)
        programs = tile.programs if self.seqlen_k <= FEW_KEYS else tile.programs // 2
        at_once = max(1, programs * self.multiprocessors // heads)
        least = 2 if heads * tiles >= 4 * self.multiprocessors else 1
        return tile.block_m * max(least, -(-tiles // at_once))

    def heads_each(self, tile: tuning.Tile) -> int:
        """Return the query heads of a program that holds a window of keys: all that share them.

        Or as many as leave nearly every multiprocessor a program. `tile` is the first of "window".
        """
        tiles = self.heads("window") * -(-self.seqlen_q // tile.block_m)
        most = min(self.group, max(1, round(tiles / self.multiprocessors)))
        return next(each for each in range(most, 0, -1) if self.group % each == 0)

    def window(self, block: int) -> int:
        """Return the most keys that a block of rows sees, or rows that see a block of keys."""
        return min(self._beyond_all, sum(self.extent[2:]) + block) if self.window_size else self._beyond_all

    def heads_at_once(self, table: str) -> int:
        """Return how many heads' streamed tensors (k and v, or q and dout) fit in half of the L2."""
        rows = self.group * self.seqlen_q if table == "dkdv" else self.seqlen_k
        bytes_per_value = 2 * BF16_PARTS.value if self.precision == "bf16x6" else self.dtype.itemsize
        streamed = 2 * rows * bytes_per_value * self.head_dim
        return (1 if table == "dkdv" else self.group) * max(1, self.l2_bytes // 2 // max(1, streamed))

    @property
    def _beyond_all(self) -> int:
        """Return a distance that no two tokens are apart."""
        return self.seqlen_q + self.seqlen_k

    @property
    def _longest(self) -> int:
        return max(self.seqlen_q, self.seqlen_k)

    @property
    def _is_long_code(self) -> bool:
        """Return whether two or three loops in place of one, some without a mask, would take up to 25 s to compile.

        A mask, two comparisons a score, costs little compared with the products of IEEE float32 or bf16x6.
        """
        return self.copied and (bool(self.window_size) or self.block_d > 128)

    def _split(self, table: str, walk: int) -> Split | None:
        """Choose how the walks of a table's tiles over so many keys, or rows, are split.

        By the places that a tile's programs have on all multiprocessors at once. In the forward, where splits differ
        and run longest first, one is a place's share of all there is to walk, and a little more. In "dq_dkdv" they are
        alike, and no more than there are places.
        """
        if self.precision == "half" and walk <= tuning.limit(f"whole {table}", self.chip, self.block_d):
            return None
        tile = self.tiles(table)[0]
        window = self.window(tile.block_m + tile.block_n)
        tiles = self.heads(table) * -(-self.rows(table) // tile.block_m)
        if tiles >= self.multiprocessors and walk < split.LONG:
            return None
        halved = table != "dq_dkdv" and self.extent[3] == 0 and window >= walk  # by the mask, on average
        walks = max(1.0, (tiles + self.heads(table)) / 2 if halved else tiles)
        wanted = tile.programs * self.multiprocessors / walks
        if table == "dq_dkdv":
            wanted = float(int(wanted))
        elif self.precision == "half":
            wanted /= ROOM
        return choose_split(walk, min(walk, window), wanted)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise UnsupportedCase if the tensors do not belong together or the kernels cannot take them."""
    check_inputs("triton_fa2", q, k, v, DTYPES)
    if any(map(too_far, (q, k, v))):
        strides = ", ".join(str(x.stride(-2)) for x in (q, k, v))
        raise UnsupportedCase(
            f"triton_fa2 got row strides of {strides}, which must be below {MAX_ROW_STRIDE}; call .contiguous()."
        )


def too_far(x: torch.Tensor) -> bool:
    """Return whether the rows lie further apart than a tile's offsets reach."""
    return x.stride(-2) >= MAX_ROW_STRIDE


def _chip(device: torch.device) -> tuple[str, int, int]:
    """Return the device's family of tables, multiprocessors and L2 bytes."""
    machine = machine_of(device)
    return machine.family, machine.multiprocessors, machine.l2_bytes
