"""What is decided once per shape: masks, tiles, grids and launches; and the autograd function that uses it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels.attention.triton_fa2 import tuning
from kernels.attention.triton_fa2.backward import both_kernel, dkdv_kernel, dq_kernel
from kernels.attention.triton_fa2.checks import check, too_far
from kernels.attention.triton_fa2.combine import combine_gradients, combine_outputs
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.fused import fused_kernel
from kernels.attention.triton_fa2.launch import INTERPRETED, Launch, device_guard, make_launch
from kernels.attention.triton_fa2.pieces import PIECES
from kernels.attention.triton_fa2.prepare import PAD, prepare_kernel
from kernels.attention.triton_fa2.split import Cut, cut, slots_of
from kernels.registry import UnsupportedCase

LOG2_E = math.log2(math.e)
_PREPARE_TILE = tuning.Tile(32, 0, 4, 1)
_INTERPRETED_CHIP = ("sm_86", 4, 1 << 25)  # tables, multiprocessors, L2 bytes; few multiprocessors make for large tiles
_PLANS: dict[tuple[Any, ...], Plan] = {}
_MAX_PLANS = 4096


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    window_size: int,
    scale: float | None,
    precision: str,
) -> torch.Tensor:
    """Attention by the plan of these shapes; gradients flow if any input wants them."""
    if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    key = (
        *(q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.shape, k.shape, v.shape),
        *(q.stride(), k.stride(), v.stride(), q.data_ptr() & 15, k.data_ptr() & 15, v.data_ptr() & 15),
        *(causal, window_size, scale, precision),
    )
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = Plan(q, k, v, causal, window_size, scale, precision)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, plan)
    return plan.forward(q, k, v)


class _Attention(torch.autograd.Function):
    """Saves q, k, v, out and the logsumexp; the backward recomputes the scores."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan) -> torch.Tensor:
        out, lse = plan.forward_with_lse(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.plan.backward(*ctx.saved_tensors, dout), None


class Plan:
    """The launches for one shape, made on first use, each with its tile fixed.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim); last dim contiguous.
    Raises UnsupportedCase if the tensors do not belong together or the kernels cannot take them.
    """

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window_size: int,
        scale: float | None,
        precision: str,
    ) -> None:
        check(q, k, v)
        self.device = q.device
        self.batch, self.num_heads, self.seqlen_q, self.head_dim = q.shape
        self.num_kv_heads, self.seqlen_k = k.shape[1], k.shape[2]
        self.group = self.num_heads // self.num_kv_heads
        self.block_d = max(16, 1 << (self.head_dim - 1).bit_length())
        self.scale = self.head_dim**-0.5 if scale is None else float(scale)
        longest = self.seqlen_q + self.seqlen_k
        self.left = min(window_size - 1, longest) if window_size else longest
        self.right = 0 if causal else self.left
        self.chip, self.multiprocessors, self.l2_bytes = _INTERPRETED_CHIP if INTERPRETED else _chip(q.device)
        self.precision = "half" if q.dtype.itemsize == 2 else precision
        if self.precision == "ieee" and tuning.in_pieces(self.chip, self.block_d):
            precision = self.precision = "pieces"
        self.copied = self.precision in ("ieee", "pieces")  # works on copies, see prepare.py
        self.lse_dtype = torch.float64 if q.dtype == torch.float32 else torch.float32  # see softmax.py
        self.bytes_per_row = (2 * PIECES.value if self.precision == "pieces" else q.dtype.itemsize) * self.head_dim
        self.constants = {
            "HEAD_DIM": self.head_dim,
            "BLOCK_D": self.block_d,
            "HAS_LEFT": bool(window_size),
            "HAS_RIGHT": bool(causal or window_size),
            "SCALE_FIRST": self.scale <= 0,  # the forward may then not take the maximum before scaling
            "GROUPED": self.group > 1,
            "COPIED": self.precision == "ieee",
            "PRECISION": precision,
        }
        busy = self.batch * self.num_heads * max(self.seqlen_q, self.seqlen_k) / self.multiprocessors
        self.both = self.group == 1 and bool(tuning.tiles("both", self.chip, self.precision, self.block_d, busy))
        self.fused = self.group == 1 and bool(tuning.tiles("fused", self.chip, self.precision, self.block_d, busy))
        longest = max(self.seqlen_q, self.seqlen_k)
        self.forward_cut = self._cut("forward", self.seqlen_q, self.seqlen_k)
        self.backward_cut = self._cut("both", longest, longest) if self.both and not self.fused else None
        self._launches: dict[Any, Launch] = {}

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output alone."""
        out = torch.empty_like(q)
        self._forward(q, k, v, out, None)
        return out

    def forward_with_lse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=self.lse_dtype, device=self.device)
        self._forward(q, k, v, out, lse)
        return out, lse

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dq, dk and dv."""
        if dout.stride(-1) != 1 or too_far(dout):
            dout = dout.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(lse, dtype=torch.float32)
        qt, dot, kt, vt = q, dout, k, v
        dout_key = (dout.stride(), dout.data_ptr() & 15)
        with device_guard(self.device):
            if self.copied:
                qt, dot, kt, vt = self._copy_of(q), self._copy_of(q), self._copy_of(k), self._copy_of(v)
                self._prepare("k and v", (k, v, k, kt, vt, delta), copy_x=True, copy_y=True)
            if self.copied or self.both or self.fused:
                tensors = (q, dout, out, qt, dot, delta)
                self._prepare(("q and dout", dout_key), tensors, copy_x=self.copied, copy_y=self.copied, delta=True)
            if self.precision == "pieces":
                q, k, v, dout = qt, kt, vt, dot
            if self.fused and self._fused(dout_key, (q, k, v, dout), (lse, delta, qt, dot), (dq, dk, dv)):
                return dq, dk, dv
            if self.both:
                whole = self.backward_cut is None
                parts = (dq, dk, dv) if whole else [slots_of(x, self.backward_cut.pieces) for x in (dq, dk, dv)]
                strided = (q, k, v, dout, *parts)
                self._attend(("both", dout_key), both_kernel, strided, (lse, delta, qt, kt, vt, dot))
                if not whole:
                    cuts = (self.backward_cut, self.backward_cut)
                    self._combine(("gradients", None), combine_gradients, (*parts, dq, dk, dv), (dq, dk, dv), *cuts)
            else:
                self._attend(("dq", dout_key), dq_kernel, (q, k, v, out, dout, dq), (lse, delta, kt, vt))
                self._attend(("dkdv", dout_key), dkdv_kernel, (q, k, v, dout, dk, dv), (lse, delta, qt, dot))
        return dq, dk, dv

    def _forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        with device_guard(self.device):
            kt = k
            if self.precision == "ieee":
                kt = self._copy_of(k)
                self._prepare("k", (k, k, k, kt, kt, kt), copy_x=True)
            elif self.precision == "pieces":
                kt, vt, qt = self._copy_of(k), self._copy_of(v), self._copy_of(q)
                self._prepare("k and v in pieces", (k, v, k, kt, vt, vt), copy_x=True, copy_y=True)
                self._prepare("q in pieces", (q, q, q, qt, qt, qt), copy_x=True)
                q, k, v = qt, kt, vt
            if self.forward_cut is None:
                name = "forward" if lse is None else "forward with lse"
                self._attend((name, None), forward_kernel, (q, k, v, out), (out if lse is None else lse, kt))
                return
            parts = slots_of(out, self.forward_cut.pieces)
            lses = torch.empty(parts.shape[:3], dtype=self.lse_dtype, device=self.device)
            self._attend(("forward with lse", None), forward_kernel, (q, k, v, parts), (lses, kt))
            tensors = (parts, lses, out, out if lse is None else lse)
            self._combine(("outputs", lse is not None), combine_outputs, tensors, (out,), self.forward_cut)

    def _copy_of(self, x: torch.Tensor) -> torch.Tensor:
        """Room for a transposed copy (batch, heads, head_dim, seqlen padded), or the first of the pieces of x."""
        batch, heads, seqlen, head_dim = x.shape
        if self.precision == "pieces":
            dtype = torch.float32 if INTERPRETED else torch.bfloat16
            return torch.empty((batch, heads, PIECES.value, seqlen, head_dim), dtype=dtype, device=x.device)[:, :, 0]
        return torch.empty((batch, heads, head_dim, -(-seqlen // PAD) * PAD), dtype=x.dtype, device=x.device)

    def _prepare(
        self, key: Any, tensors: tuple[torch.Tensor, ...], *, copy_x: bool, copy_y: bool = False, delta: bool = False
    ) -> None:
        launch = self._launches.get(key)
        if launch is None:
            batch, heads, seqlen, _ = tensors[0].shape
            strides = (stride for tensor in tensors[:3] for stride in tensor.stride()[:3])
            constants = {**self.constants, "COPY_X": copy_x, "COPY_Y": copy_y, "DELTA": delta}

            def programs(tile: tuning.Tile) -> int:
                return batch * heads * -(-seqlen // tile.block_m)

            scalars = (*strides, heads, seqlen)
            launch = make_launch(prepare_kernel, tensors, scalars, constants, [_PREPARE_TILE], programs)
            self._launches[key] = launch
        launch(*tensors)

    def _attend(
        self, key: tuple[str, Any], kernel: Any, strided: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]
    ) -> None:
        tensors = (*strided, *others)
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = self._make(key[0], kernel, tensors, strided)
        launch(*tensors)

    def _make(
        self, name: str, kernel: Any, tensors: tuple[torch.Tensor, ...], strided: tuple[torch.Tensor, ...]
    ) -> Launch:
        """Pick the tile by how many rows there are to share out, and fix grid and scalars."""
        table = name.split()[0]
        heads = self.batch * (self.num_kv_heads if table == "dkdv" else self.num_heads)
        rows = {"dkdv": self.seqlen_k, "both": max(self.seqlen_q, self.seqlen_k)}.get(table, self.seqlen_q)
        walk = {"forward": self.forward_cut, "both": self.backward_cut}.get(table)
        numbers = (walk or (1, 0)) if table in ("forward", "both") else ()
        scales = (self.scale * LOG2_E,) if table == "forward" else (self.scale * LOG2_E, self.scale)
        scalars = (
            *(stride for tensor in strided for stride in tensor.stride()[:3]),
            *(self.num_heads, self.group, heads, self._heads_at_once(table)),
            *(self.seqlen_q, self.seqlen_k, self.left, self.right, *numbers, *scales),
        )
        constants = {**self.constants, "STORE_LSE": name != "forward", "SPLIT": walk is not None}
        tiles = tuning.tiles(table, self.chip, self.precision, self.block_d, heads * rows / self.multiprocessors)

        def programs(tile: tuning.Tile) -> int:
            tiles = heads * -(-rows // (tile.block_n if table == "dkdv" else tile.block_m))
            return tiles * walk.pieces if walk else tiles

        return make_launch(kernel, tensors, scalars, constants, tiles, programs)

    def _cut(self, table: str, rows: int, walk: int) -> Cut | None:
        """How the walk of a table's tiles over so many keys, or rows, is cut; None if it is not."""
        heads = self.batch * self.num_heads
        tile = tuning.tiles(table, self.chip, self.precision, self.block_d, heads * rows / self.multiprocessors)[0]
        window = self._window(tile.block_m + tile.block_n)
        tiles = heads * -(-rows // (tile.block_n if table == "fused" else tile.block_m))
        halved = table != "both" and self.right == 0 and window >= walk  # by the mask, on average
        wanted = tile.programs * self.multiprocessors / max(1.0, tiles / 2 if halved else tiles)
        return cut(walk, min(walk, window), wanted)

    def _window(self, block: int) -> int:
        """The most keys that a block of rows sees, or rows that see a block of keys."""
        longest = self.seqlen_q + self.seqlen_k
        return min(longest, self.left + self.right + block) if self.constants["HAS_LEFT"] else longest

    def _fused(
        self,
        dout_key: Any,
        strided: tuple[torch.Tensor, ...],
        others: tuple[torch.Tensor, ...],
        grads: tuple[torch.Tensor, ...],
    ) -> bool:
        """dq, dk and dv through the slots of fused.py; False if its tile does not fit this device."""
        heads, busy = self.batch * self.num_heads, max(self.seqlen_q, self.seqlen_k)
        rows = heads * busy / self.multiprocessors
        tile = tuning.tiles("fused", self.chip, self.precision, self.block_d, rows)[0]
        walk = self._cut("fused", self.seqlen_k, self.seqlen_q) or Cut(1, max(1, self.seqlen_q))
        keys = min(self.seqlen_k, self._window(16) + tile.block_n)
        slots = Cut(-(-keys // tile.block_n) + (keys < self.seqlen_k), tile.block_n)
        parts = (slots_of(grads[0], slots.pieces), slots_of(grads[1], walk.pieces), slots_of(grads[2], walk.pieces))
        key = ("fused", dout_key)
        launch = self._launches.get(key)
        if launch is None:
            scalars = (
                *(stride for tensor in strided for stride in tensor.stride()[:3]),
                *(self.num_heads, heads, self.seqlen_q, self.seqlen_k, self.left, self.right),
                *(*walk, slots.pieces, self.scale * LOG2_E, self.scale),
            )

            def programs(tile: tuning.Tile) -> int:
                return heads * -(-self.seqlen_k // tile.block_n) * walk.pieces

            tensors = (*strided, *parts, *others)
            try:
                launch = make_launch(fused_kernel, tensors, scalars, self.constants, [tile], programs)
            except UnsupportedCase:
                self.fused = False
                return False
            self._launches[key] = launch
        launch(*strided, *parts, *others)
        self._combine(("gradients", None), combine_gradients, (*parts, *grads), grads, walk, slots)
        return True

    def _combine(
        self, key: Any, kernel: Any, tensors: tuple[torch.Tensor, ...], results: tuple[torch.Tensor, ...], *cuts: Cut
    ) -> None:
        """Sum slots into results."""
        launch = self._launches.get(key)
        if launch is None:
            heads, rows = self.batch * self.num_heads, max(x.shape[2] for x in results)
            slots = 1 << (min(32, max(c.pieces for c in cuts)) - 1).bit_length()
            block = max(1, min(16, 8192 // (slots * self.block_d)))
            scalars = (
                *(stride for tensor in results for stride in tensor.stride()[:3]),
                *(self.num_heads, heads, self.seqlen_q, self.seqlen_k, self.left, self.right),
                *(number for c in cuts for number in c),
            )
            constants = {**self.constants, "STORE_LSE": key[1], "SLOTS": slots}
            programs = len(results) * heads * -(-rows // block)
            tile = tuning.Tile(block, 0, 4, 1)
            launch = make_launch(kernel, tensors, scalars, constants, [tile], lambda _: programs)
            self._launches[key] = launch
        launch(*tensors)

    def _heads_at_once(self, table: str) -> int:
        """How many heads' streamed tensors (k and v, or q and dout) fit in half of the L2."""
        rows = self.group * self.seqlen_q if table == "dkdv" else self.seqlen_k
        streamed = 2 * rows * self.bytes_per_row
        return (1 if table == "dkdv" else self.group) * max(1, self.l2_bytes // 2 // max(1, streamed))


def _chip(device: torch.device) -> tuple[str, int, int]:
    properties = torch.cuda.get_device_properties(device)
    capability = properties.major * 10 + properties.minor
    chip = tuning.chip_class(capability, properties.shared_memory_per_block_optin)
    return chip, properties.multi_processor_count, properties.L2_cache_size
