"""The launches of one shape, each made on first use with its tile, grid and scalars fixed.

The kernels of one forward and of one backward, launched in their order; `launches` says of what shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.attention.triton_fa2.backward import both_kernel, dkdv_kernel, dq_kernel
from kernels.attention.triton_fa2.combine import combine_gradients, combine_outputs
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.fused import fused_kernel
from kernels.attention.triton_fa2.launch import INTERPRETED, Launch, WarmUps, make_launch
from kernels.attention.triton_fa2.narrow import narrow_kernel
from kernels.attention.triton_fa2.prepare import prepare_kernel
from kernels.attention.triton_fa2.problem import LOG2_E, Shape
from kernels.attention.triton_fa2.split import Cut, slots_of
from kernels.attention.triton_fa2.tile_ops import PAD, PIECES
from kernels.attention.triton_fa2.tuning import Tile
from kernels.parallel_compile import compile_side_by_side
from kernels.registry import UnsupportedCase

Tensors = tuple[torch.Tensor, ...]
_PREPARE_TILE = Tile(16, 0, 4, 1)
_COMBINED = 1024  # elements of a result that one program of a second pass makes
_AT_ONCE = 8  # slots of a gradient that it asks for at once


class Launches:
    """What launches the kernels of a shape; a key tells apart launches of a kernel that differ in more than tensors."""

    def __init__(self, shape: Shape, make: Callable[..., Launch] = make_launch) -> None:
        self.shape = shape
        self._make_launch = make
        self._made: dict[Any, Launch] = {}

    def copies_of(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Room for transposed copies (batch, heads, head_dim, seqlen padded), or the first of the pieces of tensors."""
        return [self._copy_of(x) for x in tensors]

    def _copy_of(self, x: torch.Tensor) -> torch.Tensor:
        batch, heads, seqlen, head_dim = x.shape
        if self.shape.precision == "pieces":
            dtype = torch.float32 if INTERPRETED else torch.bfloat16
            return torch.empty((batch, heads, PIECES.value, seqlen, head_dim), dtype=dtype, device=x.device)[:, :, 0]
        padded = -(-seqlen // PAD.value) * PAD.value
        return torch.empty((batch, heads, head_dim, padded), dtype=x.dtype, device=x.device)

    def prepare(self, key: Any, copies: str, strided: Tensors, others: Tensors, *, delta: bool) -> None:
        """Copies of the tensors that `copies` names (q, d: dout, k, v), and delta if asked for, by prepare_kernel.

        strided: q, dout, out, k, v; others: copies of q, dout, k, v, then delta. Any tensor will do where none is used.
        """
        launch = self._made.get(key)
        if launch is None:
            shape = self.shape

            def programs(of: bool, heads: int, seqlen: int) -> int:
                return shape.batch * heads * -(-seqlen // _PREPARE_TILE.block_m) if of else 0

            of_q = programs("q" in copies or delta, shape.num_heads, shape.seqlen_q)
            of_k = programs("k" in copies, shape.num_kv_heads, shape.seqlen_k)
            scalars = (
                *_strides(strided),
                *(shape.num_heads, shape.num_kv_heads, shape.seqlen_q, shape.seqlen_k, of_q),
            )
            asked = {f"COPY_{letter.upper()}": letter in copies for letter in "qdkv"}
            constants = {**shape.constants, **asked, "DELTA": delta}
            tiles, tensors = [_PREPARE_TILE], (*strided, *others)
            launch = self._make_launch(prepare_kernel, tensors, scalars, constants, tiles, lambda _: of_q + of_k)
            self._made[key] = launch
        launch(*strided, *others)

    def attend(self, key: tuple[str, Any], kernel: Any, cut: Cut | None, strided: Tensors, others: Tensors) -> None:
        """Run a kernel of the tables, whose name is the first word of the key."""
        launch = self._made.get(key)
        if launch is None:
            launch = self._made[key] = self._make(key[0], kernel, cut, (*strided, *others), strided)
        launch(*strided, *others)

    def _make(self, name: str, kernel: Any, walk: Cut | None, tensors: Tensors, strided: Tensors) -> Launch:
        table, shape = name.split()[0], self.shape
        heads, rows = shape.heads(table), shape.rows(table)
        forward = table in ("forward", "narrow")
        numbers = (walk or (1, 0)) if table in ("forward", "both") else ()
        scales = (shape.scale * LOG2_E,) if forward else (shape.scale * LOG2_E, shape.scale)
        scalars = (
            *_strides(strided),
            *(shape.num_heads, shape.group, heads, shape.heads_at_once(table)),
            *(shape.seqlen_q, shape.seqlen_k, shape.left, shape.right, *numbers, *scales),
        )
        constants = {**shape.constants, "STORE_LSE": name != table, "SPLIT": walk is not None}

        def programs(tile: Tile) -> int:
            tiles = heads * -(-rows // (tile.block_n if table == "dkdv" else tile.block_m))
            return tiles * walk.pieces if walk else tiles

        return self._make_launch(kernel, tensors, scalars, constants, shape.tiles(table), programs)

    def fused(self, strided: Tensors, others: Tensors, parts: Tensors, cuts: tuple[Cut, Cut]) -> bool:
        """The parts of dq, dk and dv through the slots of fused.py; False if its tile does not fit this device."""
        key, (walk, slots), shape = "fused", cuts, self.shape
        tensors = (*strided, *parts, *others)
        launch = self._made.get(key)
        if launch is None:
            heads = shape.heads("fused")
            scalars = (
                *_strides(strided),
                *(shape.num_heads, heads, shape.seqlen_q, shape.seqlen_k, shape.left, shape.right),
                *(*walk, slots.pieces, shape.scale * LOG2_E, shape.scale),
            )

            def programs(tile: Tile) -> int:
                return heads * -(-shape.seqlen_k // tile.block_n) * walk.pieces

            try:
                launch = self._make_launch(
                    fused_kernel, tensors, scalars, shape.constants, shape.tiles("fused")[:1], programs
                )
            except UnsupportedCase:
                return False
            self._made[key] = launch
        launch(*tensors)
        return True

    def combine(self, key: Any, kernel: Any, parts: Tensors, results: Tensors, *cuts: Cut, lse: Tensors = ()) -> None:
        """Sum parts, the slots of results, into them; `lse`: the parts' logsumexps and the result's."""
        tensors = (*parts, *lse[:1], *results, *lse[1:])
        launch = self._made.get(key)
        if launch is None:
            shape = self.shape
            heads, rows = shape.batch * shape.num_heads, max(x.shape[2] for x in results)
            slots = 1 << (min(32, max(c.pieces for c in cuts)) - 1).bit_length()
            block = max(1, min(16, _COMBINED // shape.block_d))
            scalars = (
                *_strides(results),
                *(shape.num_heads, heads, shape.seqlen_q, shape.seqlen_k, shape.left, shape.right),
                *(number for c in cuts for number in c),
            )
            constants = {**shape.constants, "STORE_LSE": key[1], "SLOTS": slots, "AT_ONCE": min(slots, _AT_ONCE)}
            programs = len(results) * heads * -(-rows // block)
            launch = self._make_launch(kernel, tensors, scalars, constants, [Tile(block, 0, 4, 1)], lambda _: programs)
            self._made[key] = launch
        launch(*tensors)


def compile_launches(shape: Shape, steps: Callable[..., object], arguments: Sequence[Any]) -> None:
    """Compile side by side the kernels that steps(launches, *arguments) launches one after the other."""
    if not INTERPRETED:
        warm_ups = WarmUps()
        steps(Launches(shape, warm_ups), *arguments)
        compile_side_by_side(warm_ups.noted)


def gradient_slots(gradients: Tensors, cuts: tuple[Cut, Cut]) -> Tensors:
    """Room for dk and dv by the cut of the walk over rows, and for dq by the cut of the keys."""
    (dq, dk, dv), (walk, slots) = gradients, cuts
    return slots_of(dq, slots.pieces), slots_of(dk, walk.pieces), slots_of(dv, walk.pieces)


def _strides(tensors: Tensors) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


StepTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def forward(
    launches: Launches,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Write out and, if it is given, the logsumexp."""
    shape, kernel, copies = launches.shape, narrow_kernel, ()
    cut = shape.forward_cut
    if shape.forward == "forward":
        kernel = forward_kernel
        q, k, v, *copies = _laid_out(launches, q, k, v)
    if cut is None:
        name = shape.forward if lse is None else f"{shape.forward} with lse"
        launches.attend((name, None), kernel, None, (q, k, v, out), (out if lse is None else lse, *copies))
        return
    parts = slots_of(out, cut.pieces)
    lses = torch.empty(parts.shape[:3], dtype=shape.lse_dtype, device=shape.device)
    launches.attend((f"{shape.forward} with lse", None), kernel, cut, (q, k, v, parts), (lses, *copies))
    both_lse = (lses, out if lse is None else lse)
    launches.combine(("outputs", lse is not None), combine_outputs, (parts,), (out,), cut, lse=both_lse)


def _laid_out(launches: Launches, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k and v, or their pieces, and what forward_kernel calls kt: a transposed copy of k if it works on one."""
    kt = k
    if launches.shape.precision == "ieee":
        (kt,) = launches.copies_of(k)
        launches.prepare("k", "k", (q, q, q, k, v), (q, q, kt, v, q), delta=False)
    elif launches.shape.precision == "pieces":
        copies = launches.copies_of(q, k, v)
        launches.prepare("q, k, v", "qkv", (q, q, q, k, v), (copies[0], q, *copies[1:], q), delta=False)
        q, k, v = copies
    return q, k, v, kt


def backward(
    launches: Launches,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    gradients: StepTensors,
) -> None:
    """Write the gradients, and delta; of douts whose strides and alignment are those of the first one."""
    shape = launches.shape
    qt, dot, kt, vt = launches.copies_of(q, q, k, v) if shape.copied else (q, dout, k, v)
    if shape.copied or shape.both or shape.fused:
        letters = "qdkv" if shape.copied else ""
        launches.prepare("q, dout, k, v", letters, (q, dout, out, k, v), (qt, dot, kt, vt, delta), delta=True)
    factors = (qt, kt, vt, dot) if shape.precision == "pieces" else (q, k, v, dout)
    copies = (lse, delta, qt, kt, vt, dot)
    if not (shape.fused and _fused(launches, factors, copies, gradients)):
        if shape.both:
            _both(launches, factors, copies, gradients)
        else:
            _apart(launches, factors, out, copies, gradients)


def _fused(launches: Launches, factors: Any, copies: Any, gradients: StepTensors) -> bool:
    """In one walk; False if its tile does not fit this device."""
    shape = launches.shape
    walk = shape.fused_cut or Cut(1, max(1, shape.seqlen_q))
    tile = shape.tiles("fused")[0]
    keys = min(shape.seqlen_k, shape.window(16) + tile.block_n)
    cuts = (walk, Cut(-(-keys // tile.block_n) + (keys < shape.seqlen_k), tile.block_n))
    parts = gradient_slots(gradients, cuts)
    lse, delta, qt, _, _, dot = copies
    shape.fused = launches.fused(factors, (lse, delta, qt, dot), parts, cuts)
    if shape.fused:
        launches.combine(("gradients", None), combine_gradients, parts, gradients, *cuts)
    return shape.fused


def _both(launches: Launches, factors: Any, copies: Any, gradients: StepTensors) -> None:
    """dq, dk and dv in one launch, of pieces of the walks if they are cut."""
    cut = launches.shape.both_cut
    parts = gradients if cut is None else gradient_slots(gradients, (cut, cut))
    launches.attend(("both", None), both_kernel, cut, (*factors, *parts), copies)
    if cut:
        launches.combine(("gradients", None), combine_gradients, parts, gradients, cut, cut)


def _apart(launches: Launches, factors: Any, out: torch.Tensor, copies: Any, gradients: StepTensors) -> None:
    """dq, then dk and dv."""
    (q, k, v, dout), (dq, dk, dv), (lse, delta, qt, kt, vt, dot) = factors, gradients, copies
    launches.attend(("dq", None), dq_kernel, None, (q, k, v, out, dout, dq), (lse, delta, kt, vt))
    launches.attend(("dkdv", None), dkdv_kernel, None, (q, k, v, dout, dk, dv), (lse, delta, qt, dot))
