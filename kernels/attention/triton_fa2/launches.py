"""The launches of one problem: which kernels compute it, in which order, with which tile, grid, scalars and tensors.

They are listed once for a shape. A call runs the function that `recorded` returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton

from ... import launches
from ...launches import INTERPRETED, Rooms
from ...parallel_compile import compile_side_by_side
from . import arguments, stored
from .arguments import CombineConfig, Config, PreprocessConfig, WalkConfig
from .backward import dkdv_kernel, dq_dkdv_kernel, dq_kernel
from .backward_few_queries import few_queries_kernel
from .backward_whole_heads import whole_heads_kernel
from .combine import combine_gradients, combine_outputs
from .forward import forward_kernel
from .forward_held_keys import few_keys_kernel, window_kernel
from .launch import KernelCall, make_launch, most_registers, warm_ups
from .panels import key_panels
from .preprocess import preprocess_kernel
from .problem import ONE_TILE, TritonProblem
from .split import Split
from .stored import STEP, WIDTH, parts, stored_dkdv_kernel, stored_dq_kernel, stored_scores_kernel
from .tile_ops import BF16_PARTS, PAD
from .tuning import Tile

_PREPROCESS_TILE = Tile(16, 0, 4, 1)
_COMBINED = 1024  # elements of a result that one program of a second pass computes
MOST_AT_ONCE = 192  # keys of a window up to which the programs of its tile fit a multiprocessor
_AT_ONCE = 8  # slots of a gradient that are loaded together


class Launches:
    """Lists the launches of a problem's forward or backward, for tensors that differ only in their addresses.

    `tensors` are those of a call, in the order of that method's arguments.
    """

    def __init__(self, problem: TritonProblem, tensors: Sequence[torch.Tensor]) -> None:
        self.problem = problem
        self.arguments = [x.detach() for x in tensors]  # separate objects: a call may have one tensor twice
        self.rooms = Rooms()
        self.calls: list[KernelCall] = []

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None = None
    ) -> None:
        """Write out and, if it is given, the logsumexp (batch, num_heads, seqlen_q)."""
        problem, statistics = self.problem, out if lse is None else lse
        if problem.forward_table != "forward":
            self._held_keys(arguments.PanelTensors(q, k, v, out, statistics), store_lse=lse is not None)
            return
        split = problem.forward_split
        one = problem.walk_config.one_loop or problem.seqlen_q <= ONE_TILE
        config = replace(problem.walk_config, one_loop=one, scale_first=problem.scale <= 0, split=split is not None)
        q, k, v, kt = self._copies_for_forward(q, k, v)
        numbers = (split or (1, 0), problem.scales[0])
        if split is None:
            config = replace(config, store_lse=lse is not None)
            tensors = arguments.ForwardTensors(q, k, v, out, statistics, kt)
            self._walk("forward", forward_kernel, tensors, numbers, config)
            return
        slots, slots_lse = self._empty_slots(out, split.count), self._empty_rows(problem.lse_dtype, split.count)
        tensors = arguments.ForwardTensors(q, k, v, slots, slots_lse, kt)
        self._walk("forward", forward_kernel, tensors, numbers, replace(config, store_lse=True), split.count)
        results = arguments.SplitOutputs(out, slots, slots_lse, statistics)
        self._combine(combine_outputs, results, (out,), split, store_lse=lse is not None)

    def backward(self, *tensors: torch.Tensor) -> None:
        """Write dq, dk and dv; tensors: q, k, v, dout, out, lse, dq, dk and dv."""
        problem = self.problem
        q, k, v, dout, out, lse, dq, dk, dv = tensors
        gradients = dq, dk, dv
        if problem.has_few_queries:
            self._few_queries(arguments.FewQueriesTensors(q, k, v, out, dout, *gradients, lse))
            return
        delta = self._empty_rows(torch.float32)
        if problem.has_whole_heads and all(x.stride(2) * problem.seqlen_q < 1 << 31 for x in (q, dout, out, dq)):
            self._whole_heads(arguments.WholeHeadsTensors(q, k, v, out, dout, *gradients, lse, delta, None))
            return
        qt, dot, kt, vt = self._empty_copies(q, q, k, v) if problem.copied else (q, dout, k, v)
        if problem.copied or problem.stores_scores or problem.has_dq_dkdv:
            every = arguments.PreprocessTensors(q, dout, out, k, v, qt, dot, kt, vt, delta)
            self._preprocess("qdkv" if problem.copied else "", every, delta=True)
        if problem.precision == "bf16x6":
            q, k, v, dout = qt, kt, vt, dot
        scales = problem.scales
        if problem.stores_scores:
            self._stored(arguments.StoredTensors(q, k, v, dout, *gradients, lse, delta, None, None, None))
            return
        if problem.has_dq_dkdv:
            split = problem.dq_dkdv_split
            if split:
                dq, dk, dv = (self._empty_slots(x, split.count) for x in gradients)
            slots = dq, dk, dv
            config = replace(problem.walk_config, split=split is not None)
            of_all = arguments.DqDkdvTensors(q, k, v, dout, *slots, lse, delta, qt, kt, vt, dot)
            numbers, splits = (split or (1, 0), *scales), split.count if split else 1
            self._walk("dq_dkdv", dq_dkdv_kernel, of_all, numbers, config, splits)
            if split:
                self._combine(combine_gradients, arguments.SplitGradients(*gradients, *slots), gradients, split, split)
            return
        of_q = arguments.DqTensors(q, k, v, out, dout, dq, lse, delta, kt, vt)
        self._walk("dq", dq_kernel, of_q, scales, problem.walk_config)
        of_k = arguments.DkdvTensors(q, k, v, dout, dk, dv, lse, delta, qt, dot)
        self._walk("dkdv", dkdv_kernel, of_k, scales, replace(problem.walk_config, grouped=problem.group > 1))

    def _copies_for_forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q, k and v, or their bfloat16 parts, and a transposed copy of k, or k where none is needed."""
        kt = k
        if self.problem.precision == "ieee":
            (kt,) = self._empty_copies(k)
            self._preprocess("k", arguments.PreprocessTensors(q, q, q, k, v, q, q, kt, v, q), delta=False)
        elif self.problem.precision == "bf16x6":
            q_parts, k_parts, v_parts = self._empty_copies(q, k, v)
            self._preprocess(
                "qkv", arguments.PreprocessTensors(q, q, q, k, v, q_parts, q, k_parts, v_parts, q), delta=False
            )
            q, k, v = q_parts, k_parts, v_parts
        return q, k, v, kt

    def _empty_copies(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return rooms for transposed copies (batch, heads, head_dim, padded seqlen), or for bfloat16 parts.

        The tensor returned is then the first of the parts (batch, heads, 3, seqlen, head_dim).
        """
        if self.problem.precision == "bf16x6":
            dtype = torch.float32 if INTERPRETED else torch.bfloat16
            parts = ((*x.shape[:2], BF16_PARTS.value, *x.shape[2:]) for x in tensors)
            return [self.rooms.note(torch.empty(shape, dtype=dtype, device="meta")[:, :, 0]) for shape in parts]
        padded = [-(-x.shape[2] // PAD.value) * PAD.value for x in tensors]
        shapes = ((*x.shape[:2], x.shape[3], length) for x, length in zip(tensors, padded, strict=True))
        return [self.rooms.note(torch.empty(shape, dtype=self.problem.dtype, device="meta")) for shape in shapes]

    def _empty_slots(self, x: torch.Tensor, splits: int) -> torch.Tensor:
        """Return room for float32 slots of as many results like x: (splits x batch, heads, rows, head_dim)."""
        batch, *rest = x.shape
        return self.rooms.note(torch.empty((splits * batch, *rest), dtype=torch.float32, device="meta"))

    def _empty_rows(self, dtype: torch.dtype, splits: int = 1) -> torch.Tensor:
        """Return room for one number for each query row: (splits x batch, num_heads, seqlen_q)."""
        problem = self.problem
        rows = (splits * problem.batch, problem.num_heads, problem.seqlen_q)
        return self.rooms.note(torch.empty(rows, dtype=dtype, device="meta"))

    def _run(self, call: KernelCall) -> None:
        """List a launch."""
        if call.programs(call.tiles[0]):
            self.calls.append(call)

    def _preprocess(self, copies: str, tensors: arguments.PreprocessTensors, *, delta: bool) -> None:
        """Copy the tensors that `copies` names (q, d: dout, k, v), and compute delta if wanted.

        Tensors without a use may be any.
        """
        problem = self.problem

        def programs(wanted: bool, heads: int, seqlen: int) -> int:
            return problem.batch * heads * -(-seqlen // _PREPROCESS_TILE.block_m) if wanted else 0

        of_q = programs("q" in copies or delta, problem.num_heads, problem.seqlen_q)
        of_k = programs("k" in copies, problem.num_kv_heads, problem.seqlen_k)
        scalars = (problem.num_heads, problem.num_kv_heads, problem.seqlen_q, problem.seqlen_k, of_q)
        config = PreprocessConfig(
            **{**problem.common, "has_left": False, "has_right": False},
            **problem.precisions,
            copy_q="q" in copies,
            copy_dout="d" in copies,
            copy_k="k" in copies,
            copy_v="v" in copies,
            delta=delta,
        )
        self._run(KernelCall(preprocess_kernel, tensors, scalars, config, [_PREPROCESS_TILE], lambda _: of_q + of_k))

    def _walk(
        self, table: str, kernel: Any, tensors: Any, numbers: Sequence[Any], config: Config, splits: int = 1
    ) -> None:
        """List the launch of a kernel that walks over keys or rows; `numbers`: a split, if it takes one, and scales."""
        problem = self.problem
        heads, rows = problem.heads(table), problem.rows(table)
        split, scales = (numbers[0], numbers[1:]) if table in ("forward", "dq_dkdv") else ((), numbers)
        sizes = (problem.num_heads, problem.group, heads, problem.heads_at_once(table), *problem.extent)

        def programs(tile: Tile) -> int:
            return splits * heads * -(-rows // (tile.block_n if table == "dkdv" else tile.block_m))

        self._run(KernelCall(kernel, tensors, (*sizes, *split, *scales), config, problem.tiles(table), programs))

    def _held_keys(self, tensors: arguments.PanelTensors, *, store_lse: bool) -> None:
        """List the forward of a kernel that holds all keys of a head, or of a window, as panels."""
        problem, table = self.problem, self.problem.forward_table
        tiles, heads, registers = problem.tiles(table), problem.heads(table), None
        config = replace(problem.panel_config, scale_first=problem.scale <= 0, store_lse=store_lse)
        kernel, each, rows = few_keys_kernel, problem.rows_each(tiles[0]), 0
        block_n, block_n2 = key_panels(problem.seqlen_k if table == "few_keys" else problem.keys_in_window)
        if table == "few_keys":
            config, rows = replace(config, whole=problem.seqlen_k >= block_n), each
        else:
            kernel, each = window_kernel, problem.heads_each(tiles[0])
            config, heads = replace(config, has_left=False, has_right=False), heads // each
            registers = most_registers(tiles[0]) if block_n + block_n2 <= MOST_AT_ONCE else None
        config = replace(config, block_n=block_n, block_n2=block_n2)
        scalars = (problem.num_heads, problem.group, *problem.extent, each, problem.scales[0])

        def programs(tile: Tile) -> int:
            return heads * -(-problem.seqlen_q // (rows or tile.block_m))

        self._run(KernelCall(kernel, tensors, scalars, config, tiles, programs, registers))

    def _few_queries(self, tensors: arguments.FewQueriesTensors) -> None:
        """List the backward of few queries."""
        problem, tile = self.problem, self.problem.few_queries_tile
        masked = problem.causal or bool(problem.window_size) or problem.seqlen_k % tile.block_n > 0
        scalars = (problem.num_heads, *problem.extent, *problem.scales)
        config, heads = replace(problem.panel_config, masked=masked), problem.heads("few_queries")
        self._run(KernelCall(few_queries_kernel, tensors, scalars, config, [tile], lambda _: heads))

    def _whole_heads(self, tensors: arguments.WholeHeadsTensors) -> None:
        """List the backward of short heads."""
        problem, tile = self.problem, self.problem.tiles("whole_heads")[0]
        whole, masked = problem.seqlen_q % tile.block_m == 0, problem.seqlen_k % tile.block_n > 0
        tiles = triton.cdiv(problem.seqlen_k, tile.block_n)
        tensors = tensors._replace(sums=self._empty_slots(tensors.q, int(tiles > 2)))
        config = replace(problem.panel_config, whole=whole, masked=masked, tiles=tiles)
        scalars, heads = (problem.num_heads, *problem.extent[:2], *problem.scales), problem.heads("whole_heads")
        self._run(KernelCall(whole_heads_kernel, tensors, scalars, config, [tile], lambda _: heads))

    def _stored(self, tensors: arguments.StoredTensors) -> None:
        """List the backward that stores P and dS, part after part."""
        problem = self.problem
        planes = BF16_PARTS.value if problem.precision == "bf16x6" else 1
        heads, group, rows, length = problem.heads("dq"), problem.group, problem.seqlen_q, problem.seqlen_k
        todo = list(parts(heads, group, length, 4 * planes * group * rows, stored.MOST_BYTES * min(planes, 2)))
        heads, keys = todo[0][1], todo[0][3]
        pitch = triton.cdiv(keys, STEP.value) * STEP.value
        scores = [torch.empty((heads * planes, rows, pitch), dtype=tensors.q.dtype, device="meta") for _ in range(2)]
        sums = torch.empty((heads if keys < length else 0, rows, problem.head_dim), device="meta")
        of_parts = arguments.StoredTensors(*tensors[:9], *map(self.rooms.note, (*scores, sums)))
        config = WalkConfig(**problem.common, **problem.precisions)
        across = triton.cdiv(problem.head_dim, min(WIDTH.value, problem.block_d))
        of_scores, of_keys, of_rows = (problem.tiles(f"stored_{name}")[0] for name in ("scores", "dkdv", "dq"))
        for first, heads, start, stop in todo:
            scalars = (problem.num_heads, group, first, *problem.extent, start, stop, pitch, *problem.scales)
            tiles = heads * triton.cdiv(rows, of_scores.block_m) * triton.cdiv(stop - start, of_scores.block_n)
            for kernel, tile, programs in (
                (stored_scores_kernel, of_scores, tiles),
                (stored_dkdv_kernel, of_keys, 2 * across * heads // group * triton.cdiv(stop - start, of_keys.block_n)),
                (stored_dq_kernel, of_rows, across * heads * triton.cdiv(rows, of_rows.block_m)),
            ):
                self._run(KernelCall(kernel, of_parts, scalars, config, [tile], _exactly(programs)))

    def _combine(
        self, kernel: Any, tensors: Any, results: tuple[torch.Tensor, ...], *splits: Split, store_lse: bool = False
    ) -> None:
        """List the launch that combines the slots of results."""
        problem = self.problem
        heads, rows = problem.batch * problem.num_heads, max(x.shape[2] for x in results)
        slots = 1 << (min(32, max(split.count for split in splits)) - 1).bit_length()
        block = max(1, min(16, _COMBINED // problem.block_d))
        numbers = (number for split in splits for number in split)
        scalars = (problem.num_heads, heads, *problem.extent, *numbers)
        held: dict[str, Any] = {"slots": slots} if kernel is combine_outputs else {"at_once": min(slots, _AT_ONCE)}
        config = CombineConfig(**problem.common, **held, store_lse=store_lse)
        programs = len(results) * heads * -(-rows // block)
        self._run(KernelCall(kernel, tensors, scalars, config, [Tile(block, 0, 4, 1)], lambda _: programs))


def _exactly(count: int) -> Callable[[Tile], int]:
    return lambda _: count


def recorded(problem: TritonProblem, walk: Callable[..., None], tensors: Sequence[torch.Tensor]) -> Callable[..., None]:
    """Return the function that launches Launches.forward or Launches.backward, the `walk`, for tensors like these.

    Its kernels are compiled side by side. The tensors' device must be the current one.
    """
    listed = Launches(problem, tensors)
    walk(listed, *listed.arguments)
    if not INTERPRETED:
        compile_side_by_side(warm_ups(listed.calls))
    steps = [(make_launch(call), call.tensors) for call in listed.calls]
    return launches.recorded(steps, listed.arguments, listed.rooms, problem.device, interpreted=INTERPRETED)
