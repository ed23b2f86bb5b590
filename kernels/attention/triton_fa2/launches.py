"""The launches of one problem: which kernels compute it, in which order, with which tile, grid, scalars and tensors.

They are noted once for a shape. What a call does is to run the sequence that `recorded` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...parallel_compile import compile_side_by_side
from ...plans import LOG2_E
from ...registry import UnsupportedCase
from .backward import dkdv_kernel, dq_dkdv_kernel, dq_kernel
from .backward_few_queries import few_queries_kernel
from .backward_one_pass import one_pass_kernel
from .backward_panels import dkdv_panels_kernel, dq_panels_kernel
from .combine import combine_gradients, combine_outputs
from .forward import forward_kernel
from .forward_few_keys import few_keys_kernel
from .forward_few_rows import few_rows_kernel
from .forward_panels import panels_kernel
from .forward_window import window_kernel
from .launch import (
    INTERPRETED,
    LaunchSequence,
    PreparedLaunch,
    Step,
    WarmUps,
    in_a_row,
    make_launch,
    most_registers,
)
from .panels import key_panels, padded_size
from .preprocess import preprocess_kernel
from .problem import Problem
from .split import Split
from .tile_ops import BF16_PARTS, PAD
from .tuning import Tile

Tensors = tuple[torch.Tensor, ...]
_FORWARDS = {
    "few_keys": few_keys_kernel,
    "few_rows": few_rows_kernel,
    "panels": panels_kernel,
    "window": window_kernel,
    "forward": forward_kernel,
}
_PREPROCESS_TILE = Tile(16, 0, 4, 1)
_COMBINED = 1024  # elements of a result that one program of a second pass makes
MOST_AT_ONCE = 192  # keys of a window, of which the programs of its tile fit a multiprocessor
_AT_ONCE = 8  # slots of a gradient that it asks for at once


class Launches:
    """Notes the launches of a problem's forward, or of its backward, for tensors that differ only in their addresses.

    `tensors` are those of a call, in the order of that method's arguments; `make` makes the launches.
    """

    def __init__(self, problem: Problem, tensors: Sequence[torch.Tensor], make: Callable[..., PreparedLaunch]) -> None:
        self.problem = problem
        self.arguments = [x.detach() for x in tensors]  # objects to tell apart: a call may have one tensor twice
        self.rooms: list[torch.Tensor] = []
        self.steps: list[Step] = []
        self._make_launch = make

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None = None
    ) -> None:
        """Write out and, if it is given, the logsumexp (batch, num_heads, seqlen_q)."""
        problem, copies = self.problem, ()
        table, split = problem.forward_table, problem.forward_split
        kernel = _FORWARDS[table]
        if table == "forward":
            q, k, v, *copies = self._copies_for_forward(q, k, v)
        if split is None:
            statistics = out if lse is None else lse
            self._run_tiles(table, kernel, None, (q, k, v, out), (statistics, *copies), store_lse=lse is not None)
            return
        parts, part_lse = self._empty_slots(out, split.count), self._empty_rows(problem.lse_dtype, split.count)
        self._run_tiles(table, kernel, split, (q, k, v, parts), (part_lse, *copies), store_lse=True)
        both_lse = (part_lse, out if lse is None else lse)
        self._combine(combine_outputs, (parts,), (out,), split, lse=both_lse, store_lse=lse is not None)

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dout: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        *gradients: torch.Tensor,
    ) -> None:
        """Write dq, dk and dv, the `gradients`."""
        problem = self.problem
        if problem.has_few_queries:
            self._run_tiles("few_queries", few_queries_kernel, None, (q, k, v, out, dout, *gradients), (lse,))
            return
        delta = lse if problem.has_own_delta else self._empty_rows(torch.float32)  # any tensor where it is not used
        if problem.has_backward_of_panels:
            dq, *of_keys = gradients
            self._run_tiles("dq_panels", dq_panels_kernel, None, (q, k, v, out, dout, dq), (lse, delta))
            self._run_tiles("dkdv_panels", dkdv_panels_kernel, None, (q, k, v, dout, *of_keys), (lse, delta))
            return
        qt, dot, kt, vt = self._empty_copies(q, q, k, v) if problem.copied else (q, dout, k, v)
        if problem.copied or problem.has_one_pass or (problem.has_dq_dkdv and not problem.has_own_delta):
            letters = "qdkv" if problem.copied else ""
            self._preprocess(letters, (q, dout, out, k, v), (qt, dot, kt, vt, delta), delta=True)
        factors = (qt, kt, vt, dot) if problem.precision == "bf16x6" else (q, k, v, dout)
        copies = (lse, delta, qt, kt, vt, dot)
        if problem.has_one_pass and self._run_one_pass(factors, copies, gradients):
            return
        if problem.has_dq_dkdv:
            split = problem.dq_dkdv_split
            parts = gradients if split is None else self._gradient_slots(gradients, (split, split))
            self._run_tiles("dq_dkdv", dq_dkdv_kernel, split, (*factors, out, *parts), copies)
            if split:
                self._combine(combine_gradients, parts, gradients, split, split)
            return
        (q, k, v, dout), (dq, dk, dv) = factors, gradients
        self._run_tiles("dq", dq_kernel, None, (q, k, v, out, dout, dq), (lse, delta, kt, vt))
        self._run_tiles("dkdv", dkdv_kernel, None, (q, k, v, dout, dk, dv), (lse, delta, qt, dot))

    def _copies_for_forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q, k and v, or their bfloat16 parts, and forward_kernel's kt: a transposed copy of k if it needs one.

        Where it needs none, k itself stands for kt.
        """
        kt = k
        if self.problem.precision == "ieee":
            (kt,) = self._empty_copies(k)
            self._preprocess("k", (q, q, q, k, v), (q, q, kt, v, q), delta=False)
        elif self.problem.precision == "bf16x6":
            copies = self._empty_copies(q, k, v)
            self._preprocess("qkv", (q, q, q, k, v), (copies[0], q, *copies[1:], q), delta=False)
            q, k, v = copies
        return q, k, v, kt

    def _empty_copies(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return rooms for transposed copies (batch, heads, head_dim, padded seqlen), or for bfloat16 parts.

        Of the parts (batch, heads, 3, seqlen, head_dim) the first is returned.
        """
        if self.problem.precision == "bf16x6":
            dtype = torch.float32 if INTERPRETED else torch.bfloat16
            parts = ((*x.shape[:2], BF16_PARTS.value, *x.shape[2:]) for x in tensors)
            return [self._room(torch.empty(shape, dtype=dtype, device="meta")[:, :, 0]) for shape in parts]
        padded = [-(-x.shape[2] // PAD.value) * PAD.value for x in tensors]
        shapes = ((*x.shape[:2], x.shape[3], length) for x, length in zip(tensors, padded, strict=True))
        return [self._room(torch.empty(shape, dtype=self.problem.dtype, device="meta")) for shape in shapes]

    def _empty_slots(self, x: torch.Tensor, splits: int) -> torch.Tensor:
        """Return room for float32 slots of as many results like x: (splits x batch, heads, rows, head_dim)."""
        batch, *rest = x.shape
        return self._room(torch.empty((splits * batch, *rest), dtype=torch.float32, device="meta"))

    def _empty_rows(self, dtype: torch.dtype, splits: int = 1) -> torch.Tensor:
        """Return room for a number a query row: (splits x batch, num_heads, seqlen_q)."""
        problem = self.problem
        rows = (splits * problem.batch, problem.num_heads, problem.seqlen_q)
        return self._room(torch.empty(rows, dtype=dtype, device="meta"))

    def _gradient_slots(self, gradients: Tensors, splits: tuple[Split, Split]) -> Tensors:
        """Return room for slots of dq by the split of the keys, and of dk and dv by that of the walk over rows."""
        (dq, dk, dv), (walk, slots) = gradients, splits
        of_keys = (self._empty_slots(x, walk.count) for x in (dk, dv))
        return self._empty_slots(dq, slots.count), *of_keys

    def _room(self, room: torch.Tensor) -> torch.Tensor:
        self.rooms.append(room)
        return room

    def _run(
        self,
        kernel: Any,
        pointers: Tensors,
        scalars: Sequence[int | float],
        constants: dict[str, Any],
        tiles: Sequence[Tile],
        programs: Callable[[Tile], int],
    ) -> None:
        """Note a launch; `programs` says how many it has with a tile."""
        launch = self._make_launch(kernel, pointers, scalars, constants, tiles, programs)
        places = {id(x): place for place, x in enumerate([*self.arguments, *self.rooms])}
        self.steps.append(Step(launch, tuple(places[id(x)] for x in pointers)))

    def _preprocess(self, copies: str, strided: Tensors, others: Tensors, *, delta: bool) -> None:
        """Copy the tensors that `copies` names (q, d: dout, k, v), and compute delta if asked for.

        strided: q, dout, out, k, v; others: copies of q, dout, k, v, then delta. Any tensor will do where none is used.
        """
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
        self._run(preprocess_kernel, (*strided, *others), scalars, constants, [_PREPROCESS_TILE], lambda _: of_q + of_k)

    def _run_tiles(
        self,
        table: str,
        kernel: Any,
        split: Split | None,
        strided: Tensors,
        others: Tensors,
        *,
        store_lse: bool = False,
    ) -> None:
        """Note the launch of a kernel of the tables; all strides of the tensors `strided` are its arguments."""
        problem, tensors = self.problem, (*strided, *others)
        if table in _OF_PANELS:
            scalars, constants, programs = _OF_PANELS[table](problem, _strides(strided))
            constants["STORE_LSE"] = store_lse
            tiles = [problem.few_queries_tile] if table == "few_queries" else problem.tiles(table)
            self._run(kernel, tensors, scalars, constants, tiles, programs)
            return
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
        constants = {
            **constants,
            "STORE_LSE": store_lse,
            "SPLIT": split is not None,
            "OWN_DELTA": problem.has_own_delta,
        }

        def programs(tile: Tile) -> int:
            tiles = heads * -(-rows // (tile.block_n if table == "dkdv" else tile.block_m))
            return tiles * split.count if split else tiles

        self._run(kernel, tensors, scalars, constants, problem.tiles(table), programs)

    def _run_one_pass(self, factors: Tensors, copies: Tensors, gradients: Tensors) -> bool:
        """Note the backward of one pass; return False if its tile does not fit this device."""
        problem, rooms = self.problem, len(self.rooms)
        walk = problem.one_pass_split or Split(1, max(1, problem.seqlen_q))
        tile = problem.tiles("one_pass")[0]
        keys = min(problem.seqlen_k, problem.window(16) + tile.block_n)
        slots = Split(-(-keys // tile.block_n) + (keys < problem.seqlen_k), tile.block_n)
        parts = self._gradient_slots(gradients, (walk, slots))
        lse, delta, qt, _, _, dot = copies
        heads = problem.heads("one_pass")
        scalars = (
            *_strides(factors),
            *(problem.num_heads, heads, problem.seqlen_q, problem.seqlen_k, problem.left, problem.right),
            *(*walk, slots.count, problem.scale * LOG2_E, problem.scale),
        )
        tensors, programs = (*factors, *parts, lse, delta, qt, dot), heads * -(-problem.seqlen_k // tile.block_n)
        try:
            self._run(one_pass_kernel, tensors, scalars, problem.constants, [tile], lambda _: programs * walk.count)
        except UnsupportedCase:
            del self.rooms[rooms:]
            return False
        self._combine(combine_gradients, parts, gradients, walk, slots)
        return True

    def _combine(
        self,
        kernel: Any,
        parts: Tensors,
        results: Tensors,
        *splits: Split,
        lse: Tensors = (),
        store_lse: bool | None = None,
    ) -> None:
        """Note the sum of parts, the slots of results, into them; `lse`: the parts' logsumexps and the result's."""
        problem = self.problem
        heads, rows = problem.batch * problem.num_heads, max(x.shape[2] for x in results)
        slots = 1 << (min(32, max(split.count for split in splits)) - 1).bit_length()
        block = max(1, min(16, _COMBINED // problem.block_d))
        scalars = (
            *_strides(results),
            *(problem.num_heads, heads, problem.seqlen_q, problem.seqlen_k, problem.left, problem.right),
            *(number for split in splits for number in split),
        )
        constants = {**problem.constants, "STORE_LSE": store_lse, "SLOTS": slots, "AT_ONCE": min(slots, _AT_ONCE)}
        programs = len(results) * heads * -(-rows // block)
        tensors = (*parts, *lse[:1], *results, *lse[1:])
        self._run(kernel, tensors, scalars, constants, [Tile(block, 0, 4, 1)], lambda _: programs)


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


def _window(problem: Problem, strides: tuple[int, ...]) -> Made:
    """Return the scalars, constants and number of programs of window_kernel."""
    heads_each = problem.heads_each(problem.tiles("window")[0])
    block_n, block_n2 = key_panels(problem.keys_in_window)
    scalars = (
        *(*strides, problem.num_heads, problem.group, problem.seqlen_q, problem.seqlen_k),
        *(problem.left, problem.right, heads_each, problem.scale * LOG2_E),
    )
    parts = problem.heads("window") // heads_each
    constants = {**problem.panel_constants, "BLOCK_N": block_n, "BLOCK_N2": block_n2}
    if block_n + block_n2 <= MOST_AT_ONCE:
        constants["MAX_REGISTERS"] = most_registers(problem.tiles("window")[0])
    return scalars, constants, lambda tile: parts * -(-problem.seqlen_q // tile.block_m)


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
    "window": _window,
    "panels": _panels,
    "few_queries": _few_queries,
    "dq_panels": _dq_panels,
    "dkdv_panels": _dkdv_panels,
}


def recorded(problem: Problem, walk: Callable[..., None], tensors: Sequence[torch.Tensor]) -> LaunchSequence:
    """Return what launches Launches.forward or Launches.backward, the `walk`, for tensors like these.

    Its kernels are compiled side by side. The caller has made the tensors' device the current one.
    """
    if not INTERPRETED:
        warm_ups = WarmUps()
        _noted(problem, walk, tensors, warm_ups)
        compile_side_by_side(warm_ups.noted)
    noted = _noted(problem, walk, tensors, make_launch)
    return in_a_row(noted.steps, noted.rooms, problem.device)


def _noted(
    problem: Problem, walk: Callable[..., None], tensors: Sequence[torch.Tensor], make: Callable[..., PreparedLaunch]
) -> Launches:
    launches = Launches(problem, tensors, make)
    walk(launches, *launches.arguments)
    return launches


def _strides(tensors: Tensors) -> tuple[int, ...]:
    """Return all strides but the last of each tensor."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])
