"""The launches of one problem, each made on first use with its tile, grid and scalars fixed, run in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.attention.triton_fa2.backward import dkdv_kernel, dq_dkdv_kernel, dq_kernel
from kernels.attention.triton_fa2.backward_few_queries import few_queries_kernel
from kernels.attention.triton_fa2.backward_one_pass import one_pass_kernel
from kernels.attention.triton_fa2.backward_panels import dkdv_panels_kernel, dq_panels_kernel
from kernels.attention.triton_fa2.combine import combine_gradients, combine_outputs
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.forward_few_keys import few_keys_kernel
from kernels.attention.triton_fa2.forward_few_rows import few_rows_kernel
from kernels.attention.triton_fa2.forward_panels import panels_kernel
from kernels.attention.triton_fa2.launch import INTERPRETED, Launch, WarmUps, make_launch
from kernels.attention.triton_fa2.panels import key_panels, padded_size
from kernels.attention.triton_fa2.preprocess import preprocess_kernel
from kernels.attention.triton_fa2.problem import Problem
from kernels.attention.triton_fa2.split import Split, empty_slots
from kernels.attention.triton_fa2.tile_ops import BF16_PARTS, PAD
from kernels.attention.triton_fa2.tuning import Tile
from kernels.parallel_compile import compile_side_by_side
from kernels.plans import LOG2_E
from kernels.registry import UnsupportedCase

Tensors = tuple[torch.Tensor, ...]
_FORWARDS = {
    "few_keys": few_keys_kernel,
    "few_rows": few_rows_kernel,
    "panels": panels_kernel,
    "forward": forward_kernel,
}
_PREPROCESS_TILE = Tile(16, 0, 4, 1)
_COMBINED = 1024  # elements of a result that one program of a second pass makes
_AT_ONCE = 8  # slots of a gradient that it asks for at once


class Launches:
    """Forward and backward of a problem, for tensors that differ only in their addresses.

    A key tells apart launches of one kernel that differ in more than tensors.
    """

    def __init__(self, problem: Problem, make: Callable[..., Launch] = make_launch) -> None:
        self.problem = problem
        self._make_launch = make
        self._made: dict[Any, Launch] = {}
        self._one_pass_fits = problem.has_one_pass  # until its tile turns out not to fit this device

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        """Write out and, if it is given, the logsumexp (batch, num_heads, seqlen_q)."""
        problem, copies = self.problem, ()
        table, split = problem.forward_table, problem.forward_split
        kernel = _FORWARDS[table]
        if table == "forward":
            q, k, v, *copies = self._copies_for_forward(q, k, v)
        if split is None:
            name = table if lse is None else f"{table} with lse"
            self._run_tiles((name, None), kernel, None, (q, k, v, out), (out if lse is None else lse, *copies))
            return
        parts = empty_slots(out, split.count)
        rows = parts.shape[:3]
        strides = (rows[1] * rows[2], rows[2], 1)
        part_lse = torch.empty_strided(rows, strides, dtype=problem.lse_dtype, device=problem.device)
        self._run_tiles((f"{table} with lse", None), kernel, split, (q, k, v, parts), (part_lse, *copies))
        both_lse = (part_lse, out if lse is None else lse)
        self._combine(("outputs", lse is not None), combine_outputs, (parts,), (out,), split, lse=both_lse)

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dout: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        delta: torch.Tensor,
        gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None:
        """Write dq, dk and dv, and delta (batch, num_heads, seqlen_q).

        Every dout must have the strides and the alignment of the first one.
        """
        problem = self.problem
        if problem.has_few_queries:
            self._run_tiles(("few_queries", None), few_queries_kernel, None, (q, k, v, out, dout, *gradients), (lse,))
            return
        if problem.has_backward_of_panels:
            dq, *of_keys = gradients
            self._run_tiles(("dq_panels", None), dq_panels_kernel, None, (q, k, v, out, dout, dq), (lse, delta))
            self._run_tiles(("dkdv_panels", None), dkdv_panels_kernel, None, (q, k, v, dout, *of_keys), (lse, delta))
            return
        qt, dot, kt, vt = self._empty_copies(q, q, k, v) if problem.copied else (q, dout, k, v)
        if problem.copied or problem.has_dq_dkdv or self._one_pass_fits:
            letters = "qdkv" if problem.copied else ""
            self._preprocess("q, dout, k, v", letters, (q, dout, out, k, v), (qt, dot, kt, vt, delta), delta=True)
        factors = (qt, kt, vt, dot) if problem.precision == "bf16x6" else (q, k, v, dout)
        copies = (lse, delta, qt, kt, vt, dot)
        if self._one_pass_fits and self._run_one_pass(factors, copies, gradients):
            return
        if problem.has_dq_dkdv:
            split = problem.dq_dkdv_split
            parts = gradients if split is None else _gradient_slots(gradients, (split, split))
            self._run_tiles(("dq_dkdv", None), dq_dkdv_kernel, split, (*factors, *parts), copies)
            if split:
                self._combine(("gradients", None), combine_gradients, parts, gradients, split, split)
            return
        (q, k, v, dout), (dq, dk, dv) = factors, gradients
        self._run_tiles(("dq", None), dq_kernel, None, (q, k, v, out, dout, dq), (lse, delta, kt, vt))
        self._run_tiles(("dkdv", None), dkdv_kernel, None, (q, k, v, dout, dk, dv), (lse, delta, qt, dot))

    def _copies_for_forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q, k and v, or their bfloat16 parts, and forward_kernel's kt: a transposed copy of k if it needs one.

        Where it needs none, k itself stands for kt.
        """
        kt = k
        if self.problem.precision == "ieee":
            (kt,) = self._empty_copies(k)
            self._preprocess("k", "k", (q, q, q, k, v), (q, q, kt, v, q), delta=False)
        elif self.problem.precision == "bf16x6":
            copies = self._empty_copies(q, k, v)
            self._preprocess("q, k, v", "qkv", (q, q, q, k, v), (copies[0], q, *copies[1:], q), delta=False)
            q, k, v = copies
        return q, k, v, kt

    def _empty_copies(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Allocate transposed copies (batch, heads, head_dim, padded seqlen), or bfloat16 parts.

        Of the parts (batch, heads, 3, seqlen, head_dim) the first is returned.
        """
        if self.problem.precision == "bf16x6":
            dtype = torch.float32 if INTERPRETED else torch.bfloat16
            parts = ((*x.shape[:2], BF16_PARTS.value, *x.shape[2:]) for x in tensors)
            return [torch.empty(shape, dtype=dtype, device=self.problem.device)[:, :, 0] for shape in parts]
        padded = [-(-x.shape[2] // PAD.value) * PAD.value for x in tensors]
        shapes = ((*x.shape[:2], x.shape[3], length) for x, length in zip(tensors, padded, strict=True))
        return [torch.empty(shape, dtype=self.problem.dtype, device=self.problem.device) for shape in shapes]

    def _preprocess(self, key: Any, copies: str, strided: Tensors, others: Tensors, *, delta: bool) -> None:
        """Copy the tensors that `copies` names (q, d: dout, k, v), and compute delta if asked for.

        strided: q, dout, out, k, v; others: copies of q, dout, k, v, then delta. Any tensor will do where none is used.
        """
        launch = self._made.get(key)
        if launch is None:
            problem = self.problem

            def programs(asked: bool, heads: int, seqlen: int) -> int:
                return problem.batch * heads * -(-seqlen // _PREPROCESS_TILE.block_m) if asked else 0

            of_q = programs("q" in copies or delta, problem.num_heads, problem.seqlen_q)
            of_k = programs("k" in copies, problem.num_kv_heads, problem.seqlen_k)
            scalars = (
                *_strides(strided),
                *(problem.num_heads, problem.num_kv_heads, problem.seqlen_q, problem.seqlen_k, of_q),
            )
            asked = {f"COPY_{letter.upper()}": letter in copies for letter in "qdkv"}
            constants = {**problem.constants, **asked, "DELTA": delta}
            tiles, tensors = [_PREPROCESS_TILE], (*strided, *others)
            launch = self._make_launch(preprocess_kernel, tensors, scalars, constants, tiles, lambda _: of_q + of_k)
            self._made[key] = launch
        launch(*strided, *others)

    def _run_tiles(
        self, key: tuple[str, Any], kernel: Any, split: Split | None, strided: Tensors, others: Tensors
    ) -> None:
        """Run a kernel of the tables, whose name is the first word of the key."""
        launch = self._made.get(key)
        if launch is None:
            launch = self._made[key] = self._make_tiles(key[0], kernel, split, (*strided, *others), strided)
        launch(*strided, *others)

    def _make_tiles(self, name: str, kernel: Any, split: Split | None, tensors: Tensors, strided: Tensors) -> Launch:
        table, problem = name.split()[0], self.problem
        if table in _OF_PANELS:
            scalars, constants, programs = _OF_PANELS[table](problem, _strides(strided))
            constants["STORE_LSE"] = name != table
            tiles = [problem.few_queries_tile] if table == "few_queries" else problem.tiles(table)
            return self._make_launch(kernel, tensors, scalars, constants, tiles, programs)
        heads, rows = problem.heads(table), problem.rows(table)
        numbers = (split or (1, 0)) if table in ("forward", "dq_dkdv") else ()
        scales = (problem.scale * LOG2_E, problem.scale)
        scalars = (
            *_strides(strided),
            *(problem.num_heads, problem.group, heads, problem.heads_at_once(table)),
            *(problem.seqlen_q, problem.seqlen_k, problem.left, problem.right, *numbers),
            *(scales[:1] if table in ("forward", "few_rows") else scales),
        )
        constants = problem.panel_constants if table == "few_rows" else problem.constants
        constants = {**constants, "STORE_LSE": name != table, "SPLIT": split is not None}

        def programs(tile: Tile) -> int:
            tiles = heads * -(-rows // (tile.block_n if table == "dkdv" else tile.block_m))
            return tiles * split.count if split else tiles

        return self._make_launch(kernel, tensors, scalars, constants, problem.tiles(table), programs)

    def _run_one_pass(self, factors: Tensors, copies: Tensors, gradients: Tensors) -> bool:
        """Run the backward of one pass; return False if its tile does not fit this device."""
        problem = self.problem
        walk = problem.one_pass_split or Split(1, max(1, problem.seqlen_q))
        tile = problem.tiles("one_pass")[0]
        keys = min(problem.seqlen_k, problem.window(16) + tile.block_n)
        splits = (walk, Split(-(-keys // tile.block_n) + (keys < problem.seqlen_k), tile.block_n))
        parts = _gradient_slots(gradients, splits)
        lse, delta, qt, _, _, dot = copies
        tensors = (*factors, *parts, lse, delta, qt, dot)
        launch = self._made.get("one_pass")
        if launch is None:
            try:
                launch = self._made["one_pass"] = self._make_one_pass(tile, tensors, factors, splits)
            except UnsupportedCase:
                self._one_pass_fits = False
                return False
        launch(*tensors)
        self._combine(("gradients", None), combine_gradients, parts, gradients, *splits)
        return True

    def _make_one_pass(self, tile: Tile, tensors: Tensors, strided: Tensors, splits: tuple[Split, Split]) -> Launch:
        problem, (walk, slots) = self.problem, splits
        heads = problem.heads("one_pass")
        scalars = (
            *_strides(strided),
            *(problem.num_heads, heads, problem.seqlen_q, problem.seqlen_k, problem.left, problem.right),
            *(*walk, slots.count, problem.scale * LOG2_E, problem.scale),
        )
        programs = heads * -(-problem.seqlen_k // tile.block_n) * walk.count
        return self._make_launch(one_pass_kernel, tensors, scalars, problem.constants, [tile], lambda _: programs)

    def _combine(
        self, key: Any, kernel: Any, parts: Tensors, results: Tensors, *splits: Split, lse: Tensors = ()
    ) -> None:
        """Sum parts, the slots of results, into them; `lse`: the parts' logsumexps and the result's."""
        tensors = (*parts, *lse[:1], *results, *lse[1:])
        launch = self._made.get(key)
        if launch is None:
            problem = self.problem
            heads, rows = problem.batch * problem.num_heads, max(x.shape[2] for x in results)
            slots = 1 << (min(32, max(split.count for split in splits)) - 1).bit_length()
            block = max(1, min(16, _COMBINED // problem.block_d))
            scalars = (
                *_strides(results),
                *(problem.num_heads, heads, problem.seqlen_q, problem.seqlen_k, problem.left, problem.right),
                *(number for split in splits for number in split),
            )
            constants = {**problem.constants, "STORE_LSE": key[1], "SLOTS": slots, "AT_ONCE": min(slots, _AT_ONCE)}
            programs, tiles = len(results) * heads * -(-rows // block), [Tile(block, 0, 4, 1)]
            launch = self._make_launch(kernel, tensors, scalars, constants, tiles, lambda _: programs)
            self._made[key] = launch
        launch(*tensors)


Made = tuple[tuple[int | float, ...], dict[str, Any], Callable[[Tile], int]]


def _few_keys(problem: Problem, strides: tuple[int, ...]) -> Made:
    """Return the scalars, constants and number of programs of few_keys_kernel."""
    rows_each = problem.rows_each(problem.tiles("few_keys")[0])
    block_n, block_n2 = key_panels(problem.seqlen_k)
    keys = {"BLOCK_N": block_n, "BLOCK_N2": block_n2, "WHOLE": problem.seqlen_k >= block_n}
    scalars = (
        *(*strides, problem.num_heads, problem.group, problem.seqlen_q, problem.seqlen_k),
        *(problem.left, problem.right, rows_each, problem.scale * LOG2_E),
    )
    programs = problem.heads("few_keys") * -(-problem.seqlen_q // rows_each)
    return scalars, {**problem.panel_constants, **keys}, lambda tile: programs


def _panels(problem: Problem, strides: tuple[int, ...]) -> Made:
    """Return the scalars, constants and number of programs of panels_kernel."""
    heads = problem.heads("panels")
    keys = {"BLOCK_N2": _tail(problem.seqlen_k, problem.tiles("panels")[0].block_n)}
    scalars = (
        *(*strides, problem.num_heads, problem.group, heads, problem.heads_at_once("panels")),
        *(problem.seqlen_q, problem.seqlen_k, problem.scale * LOG2_E),
    )
    return scalars, {**problem.panel_constants, **keys}, lambda tile: heads * -(-problem.seqlen_q // tile.block_m)


def _few_queries(problem: Problem, strides: tuple[int, ...]) -> Made:
    """Return the scalars, constants and number of programs of few_queries_kernel."""
    tile = problem.few_queries_tile
    masked = problem.causal or problem.window_size > 0 or problem.seqlen_k % tile.block_n > 0
    scalars = (
        *(*strides, problem.num_heads, problem.seqlen_q, problem.seqlen_k, problem.left, problem.right),
        *(problem.scale * LOG2_E, problem.scale),
    )
    return scalars, {**problem.panel_constants, "MASKED": masked}, lambda tile: problem.heads("few_queries")


def _dq_panels(problem: Problem, strides: tuple[int, ...]) -> Made:
    """Return the scalars, constants and number of programs of dq_panels_kernel."""
    block_n2 = _tail(problem.seqlen_k, problem.tiles("dq_panels")[0].block_n)
    return _backward_of_panels(problem, strides, "dq", {"BLOCK_N2": block_n2})


def _dkdv_panels(problem: Problem, strides: tuple[int, ...]) -> Made:
    """Return the scalars, constants and number of programs of dkdv_panels_kernel."""
    block_m2 = _tail(problem.seqlen_q, problem.tiles("dkdv_panels")[0].block_m)
    return _backward_of_panels(problem, strides, "dkdv", {"BLOCK_M2": block_m2})


def _backward_of_panels(problem: Problem, strides: tuple[int, ...], table: str, tail: dict[str, int]) -> Made:
    heads, rows = problem.heads(table), problem.rows(table)
    scalars = (
        *(*strides, problem.num_heads, heads, problem.heads_at_once(table), problem.seqlen_q, problem.seqlen_k),
        *(problem.scale * LOG2_E, problem.scale),
    )
    own = "block_n" if table == "dkdv" else "block_m"
    return scalars, {**problem.panel_constants, **tail}, lambda tile: heads * -(-rows // getattr(tile, own))


def _tail(length: int, block: int) -> int:
    """Return the padded size of what whole blocks leave of a walk; 0 if they leave nothing."""
    return padded_size(length % block) if length % block else 0


_OF_PANELS = {
    "few_keys": _few_keys,
    "panels": _panels,
    "few_queries": _few_queries,
    "dq_panels": _dq_panels,
    "dkdv_panels": _dkdv_panels,
}


def compile_launches(problem: Problem, run: Callable[..., object], arguments: Sequence[Any]) -> None:
    """Compile side by side the kernels that run(launches, *arguments) launches one after the other."""
    if not INTERPRETED:
        warm_ups = WarmUps()
        run(Launches(problem, warm_ups), *arguments)
        compile_side_by_side(warm_ups.noted)


def _gradient_slots(gradients: Tensors, splits: tuple[Split, Split]) -> Tensors:
    """Allocate slots for dq by the split of the keys, and for dk and dv by the split of the walk over rows."""
    (dq, dk, dv), (walk, slots) = gradients, splits
    return empty_slots(dq, slots.count), empty_slots(dk, walk.count), empty_slots(dv, walk.count)


def _strides(tensors: Tensors) -> tuple[int, ...]:
    """Return all strides but the last of each tensor."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])
