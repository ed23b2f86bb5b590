"""What is decided once for a shape: masks, precision, which kernels run, and how their walks are cut.

Which tensors the kernels take.
"""

from __future__ import annotations

import math

import torch

from kernels.attention.triton_fa2 import split, tuning
from kernels.attention.triton_fa2.chain import CHAINING
from kernels.attention.triton_fa2.launch import INTERPRETED
from kernels.attention.triton_fa2.split import Cut, cut
from kernels.attention.triton_fa2.tile_ops import PIECES
from kernels.registry import UnsupportedCase

LOG2_E = math.log2(math.e)
ONE_LOOP = 8  # rows or keys a multiprocessor up to which a walk is one masked loop, see forward.py
ROOM = 1.025  # a 16-bit forward's piece is so much longer than what each place has to walk on average
_INTERPRETED_CHIP = ("sm_86", 4, 1 << 25)  # tables, multiprocessors, L2 bytes; few multiprocessors make for large tiles


class Shape:
    """The numbers of one problem that its kernels and their launches need; `precision` may become "pieces" or "half".

    q: (batch, num_heads, seqlen_q, head_dim); k: (batch, num_kv_heads, seqlen_k, head_dim).
    """

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: int, scale: float | None, precision: str
    ) -> None:
        self.device = q.device
        self.batch, self.num_heads, self.seqlen_q, self.head_dim = q.shape
        self.num_kv_heads, self.seqlen_k = k.shape[1], k.shape[2]
        self.group = self.num_heads // self.num_kv_heads
        self.block_d = max(16, 1 << (self.head_dim - 1).bit_length())
        self.scale = self.head_dim**-0.5 if scale is None else float(scale)
        self.longest = max(self.seqlen_q, self.seqlen_k)
        self.left = min(window_size - 1, self._all) if window_size else self._all
        self.right = 0 if causal else self.left
        self.windowed = bool(window_size)
        self.chip, self.multiprocessors, self.l2_bytes = _INTERPRETED_CHIP if INTERPRETED else _chip(q.device)
        self.precision = self._precision(q.dtype, precision)
        self.copied = self.precision in ("ieee", "pieces")  # works on copies, see prepare.py
        self.lse_dtype = torch.float64 if q.dtype == torch.float32 else torch.float32  # see tile_ops.py
        self.bytes_per_row = (2 * PIECES.value if self.precision == "pieces" else q.dtype.itemsize) * self.head_dim
        self.constants = {
            "HEAD_DIM": self.head_dim,
            "BLOCK_D": self.block_d,
            "HAS_LEFT": self.windowed,
            "HAS_RIGHT": bool(causal or window_size),
            "SCALE_FIRST": self.scale <= 0,  # the forward may then not take the maximum before scaling
            "GROUPED": self.group > 1,
            "COPIED": self.precision == "ieee",
            "PRECISION": precision if self.precision == "half" else self.precision,
            "ONE_LOOP": self._busy <= ONE_LOOP or self._long_code,
            "CHAINED": self.chip in CHAINING,
        }
        self.fused = self.group == 1 and bool(self.tiles("fused"))
        self.both = self.group == 1 and bool(self.tiles("both"))
        self.forward = "narrow" if self.tiles("narrow") else "forward"  # the table whose kernel computes out
        self.forward_cut = self._cut(self.forward, self.seqlen_k)
        self.fused_cut = self._cut("fused", self.seqlen_q) if self.fused else None
        self.both_cut = self._cut("both", self.longest) if self.both else None

    @property
    def _all(self) -> int:
        """A distance that no two tokens are apart."""
        return self.seqlen_q + self.seqlen_k

    def _precision(self, dtype: torch.dtype, precision: str) -> str:
        if dtype.itemsize == 2:
            return "half"
        queries = self.batch * self.num_heads * self.seqlen_q / self.multiprocessors  # not the keys: the forward's rows
        pieces = precision == "ieee" and tuning.in_pieces(self.chip, self.block_d, queries)
        return "pieces" if pieces else precision

    @property
    def _long_code(self) -> bool:
        """Whether a loop is so much code that two or three, of which one needs no mask, take up to 25 s to compile.

        Beside the products of IEEE float32 and of pieces a mask is little: two comparisons a score.
        """
        return self.copied and (self.windowed or self.block_d > 128)

    @property
    def _busy(self) -> float:
        """Rows or keys of all heads, of which there are more, that each multiprocessor has to do."""
        return self.batch * self.num_heads * self.longest / self.multiprocessors

    def heads(self, table: str) -> int:
        """The heads whose tiles a table's kernel works on."""
        return self.batch * (self.num_kv_heads if table == "dkdv" else self.num_heads)

    def rows(self, table: str) -> int:
        """The rows, or keys, of a head that a table's kernel shares out in tiles."""
        of_q = dict.fromkeys(("forward", "narrow", "dq"), self.seqlen_q)
        return {**of_q, "dkdv": self.seqlen_k}.get(table, self.longest)

    def tiles(self, table: str) -> list[tuning.Tile]:
        """The tile to use and those to fall back to; none if this kernel is not for this shape."""
        busy = self.heads(table) * self.rows(table) / self.multiprocessors
        return tuning.tiles(table, self.chip, self.precision, self.block_d, busy)

    def _cut(self, table: str, walk: int) -> Cut | None:
        """How the walk of a table's tiles over so many keys, or rows, is cut; None if it is not.

        By the places that a tile's programs have on all multiprocessors at once. In the forward, where pieces differ
        and run longest first, one is a place's share of all there is to walk, and a little more. In "both" they are
        alike, and no more than there are places.
        """
        tile = self.tiles(table)[0]
        window = self.window(tile.block_m + tile.block_n)
        tiles = self.heads(table) * -(-self.rows(table) // (tile.block_n if table == "fused" else tile.block_m))
        if tiles >= self.multiprocessors and walk < split.LONG:
            return None
        halved = table != "both" and self.right == 0 and window >= walk  # by the mask, on average
        walks = max(1.0, (tiles + self.heads(table)) / 2 if halved else tiles)
        wanted = tile.programs * self.multiprocessors / walks
        if table == "both":
            wanted = float(int(wanted))
        elif self.precision == "half":
            wanted /= ROOM
        return cut(walk, min(walk, window), wanted)

    def window(self, block: int) -> int:
        """The most keys that a block of rows sees, or rows that see a block of keys."""
        return min(self._all, self.left + self.right + block) if self.windowed else self._all

    def heads_at_once(self, table: str) -> int:
        """How many heads' streamed tensors (k and v, or q and dout) fit in half of the L2."""
        rows = self.group * self.seqlen_q if table == "dkdv" else self.seqlen_k
        streamed = 2 * rows * self.bytes_per_row
        return (1 if table == "dkdv" else self.group) * max(1, self.l2_bytes // 2 // max(1, streamed))


def _chip(device: torch.device) -> tuple[str, int, int]:
    properties = torch.cuda.get_device_properties(device)
    capability = properties.major * 10 + properties.minor
    chip = tuning.chip_class(capability, properties.shared_memory_per_block_optin)
    return chip, properties.multi_processor_count, properties.L2_cache_size


MAX_ROW_STRIDE = 1 << 23  # a tile's offsets are 32-bit: 256 rows of this stride stay below 2**31
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def too_far(x: torch.Tensor) -> bool:
    """Whether the rows lie further apart than a tile's offsets reach."""
    return x.stride(-2) >= MAX_ROW_STRIDE


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise UnsupportedCase if the tensors do not belong together or the kernels cannot take them."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.dim() != 4:
        raise UnsupportedCase(f"triton_fa2 got {shapes}: q, k and v must be (batch, heads, seqlen, head_dim).")
    dtypes, devices = {q.dtype, k.dtype, v.dtype}, {q.device, k.device, v.device}
    problems = (
        (k.shape != v.shape, "k and v must have the same shape"),
        (q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1], "q and k must agree in batch and head_dim"),
        (not k.shape[1] or bool(q.shape[1] % max(1, k.shape[1])), "num_heads must be a multiple of num_kv_heads"),
        (not 0 < q.shape[-1] <= 256, "head_dim must be 1 to 256"),
        (len(dtypes) > 1 or q.dtype not in DTYPES, f"one dtype of {', '.join(map(str, DTYPES))}, not {dtypes}"),
        (len(devices) > 1, f"q, k and v must be on one device, not {devices}"),
        (any(map(too_far, (q, k, v))), f"a row stride must be below {MAX_ROW_STRIDE} elements; call .contiguous()"),
    )
    problem = next((text for failed, text in problems if failed), None)
    if problem:
        raise UnsupportedCase(f"triton_fa2 got {shapes}: {problem}.")
