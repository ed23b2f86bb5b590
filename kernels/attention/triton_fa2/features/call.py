"""A call with features: its launches forward and backward, and its place in autograd and torch.compile.

Each launch goes through Triton's own launcher, which costs the host about 15 microseconds more than the plans of
calls without features. After the first call of a shape it can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any, ClassVar

import torch
from triton.runtime.errors import OutOfResources

from .... import invariant
from ....constants import Constants
from ....features import Features, SequenceBounds, Window, check, reach, threshold
from ....launches import INTERPRETED
from ....plans import LOG2_E, attend_with_sinks, check_inputs, device_guard, scale_of
from ....registry import UnsupportedCase
from ....tables import family, machine_of
from ..panels import panels
from ..problem import DTYPES, MAX_ROW_STRIDE, too_far
from ..tuning import Tile
from .arguments import Columns, FeatureConfig, FeatureShape, FeatureTensors, MaskSums, Rows
from .backward import features_dkdv_kernel, features_dmask_kernel, features_dq_kernel
from .forward import features_forward_kernel, spans_kernel

Tensors = tuple[torch.Tensor, ...]
SHORT_WINDOW = 512  # keys; 84 were timed
SHORT = 256  # keys of a short added mask; 256 and 512 were timed
MOST_PROGRAMS = 65535  # along the last axis of a grid
KEYS_AT_ONCE = 1024  # of a mask of keys, that a program reads at a time
MASK_PROGRAMS = (396, 264)  # for the gradient of a mask, which an H200 runs at a time up to head_dim 32, and beyond
KERNELS = {"forward": features_forward_kernel, "dq": features_dq_kernel, "dkdv": features_dkdv_kernel}
KERNELS["dmask"] = features_dmask_kernel


def tiles(kernel: str, q: torch.Tensor, v: torch.Tensor) -> tuple[Tile, ...]:
    """Return the tile to use of the table "features" and those to fall back to.

    On compute capability 9.0 a product of 64 rows wants 4 warps, which is one warpgroup. Elsewhere these spill.
    "packed_dq" and such are for packed sequences without features, "window_dq" for windows below SHORT_WINDOW,
    "keys_dq" and "additive_dq" for masks alone, "short_additive_dq" for those of up to SHORT keys.
    """
    chip = machine_of(q.device).family if q.device.type == "cuda" else "sm_86"
    width = max(q.shape[3], v.shape[3])
    rows = family(chip)["features"].every(kernel=kernel, itemsize=q.dtype.itemsize, width=width)
    return tuple(Tile(*row) for row in rows)


@dataclass(frozen=True, eq=False)
class FeatureCall:
    """What is the same in the forward and the backward of one call.

    q, out: (batch, num_heads, seqlen_q, head_dim or head_dim_v); k, v with num_kv_heads and seqlen_k.
    """

    prepare: ClassVar[None] = None  # as of an AttentionPlan: nothing to copy before
    features: Features  # with a tensor as seed
    causal: bool
    window_size: Window
    scale: float
    precision: str  # float32 products: "ieee" or "tf32"
    bounds: SequenceBounds | None = None
    table: torch.Tensor | None = None  # int32 (sequences, pages of a sequence): k, v: (pages, heads, page_size, width)
    max_logits: torch.Tensor | None = None  # (num_heads,), -inf: where the forward writes the largest logit

    def __post_init__(self) -> None:
        """Raise UnsupportedCase for a block mask of packed or padded sequences."""
        if self.features.block_mask is not None and self.bounds is not None:
            raise UnsupportedCase("triton_fa2 takes a block_mask for whole sequences only, not packed or padded ones.")

    @property
    def packed(self) -> bool:
        """Return whether sequences lie one after the other."""
        return self.bounds is not None and self.bounds.packed

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees nothing."""
        q, k, v = (addressable(x) for x in (q, k, v))
        out = self._rows_like(q, v.shape[3])
        lse_dtype = torch.float64 if q.dtype == torch.float32 else torch.float32
        lse = torch.empty(q.shape[:3], dtype=lse_dtype, device=q.device)
        if self.bounds is not None:  # rows may be nobody's
            lse.fill_(float("inf"))
        self._launch("forward", (q, k, v, out), (lse,), (q, k, v))
        return out, lse

    def backward(self, *saved: torch.Tensor, dlse: torch.Tensor | None = None) -> tuple[torch.Tensor | None, ...]:
        """Return dq, dk, dv and the gradients of the sinks and of a learned mask; saved: q, k, v, out, lse and dout.

        dlse: the gradient of the natural logsumexp.
        """
        q, k, v, out, lse, dout = saved
        q, k, v, dout = (addressable(x) for x in (q, k, v, dout))
        dq, dk, dv = (self._rows_like(x, x.shape[3]) for x in (q, k, v))
        new = torch.empty if self.bounds is None else torch.zeros
        delta = new(lse.shape, dtype=torch.float32, device=q.device)
        self._launch("dq", (q, k, v, out, dout, dq), (lse, delta), (q, k, v), dlse)
        self._launch("dkdv", (q, k, v, dout, dk, dv), (lse, delta), (q, k, v))
        of_mask = (self._mask_gradient((q, k, v, dout), (lse, delta)),) if self.features.mask_is_learned else ()
        return dq, dk, dv, self._sinks_gradient(lse, delta), *of_mask

    def _rows_like(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """Allocate rows for a result, heads and rows in memory as those of x; zeros where rows may be nobody's."""
        batch, heads, rows, _ = x.shape
        new = x.new_empty if self.bounds is None else x.new_zeros
        if x.stride(1) < x.stride(2):
            return new(batch, rows, heads, width).transpose(1, 2)
        return new(batch, heads, rows, width)

    def _sinks_gradient(self, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor | None:
        """Return -sum over rows of p(sink) x delta: the sink has no value, so its dp is 0."""
        sinks = self.features.sinks
        if sinks is None:
            return None
        p = torch.exp2(sinks.to(lse.dtype)[None, :, None] * LOG2_E - lse)
        return -(p * delta).sum((0, 2)).to(sinks.dtype)

    def _mask_gradient(self, rows: Tensors, statistics: Tensors) -> torch.Tensor:
        """Return the gradient of the mask; rows: q, k, v and dout; statistics: lse and delta."""
        mask: Any = self.features.mask
        q, k = rows[:2]
        batch, heads, seqlen_q, seqlen_k = *q.shape[:3], k.shape[2]
        sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        lines, of_batches, of_heads = sizes[0] * sizes[1], batch // sizes[0], heads // sizes[1]
        tiles = lines * -(-seqlen_q // 64) * -(-seqlen_k // 64)
        at_a_time = MASK_PROGRAMS[max(q.shape[3], rows[2].shape[3]) > 32]
        full = {max(1, rounds * at_a_time // max(tiles, 1)) for rounds in (1, 2, 3)}  # parts that leave few places idle
        parts = min(of_batches * of_heads, min(full, key=lambda n: (-(-tiles * n // at_a_time) / n, n)))
        sums = torch.empty(parts, *sizes[:2], seqlen_q, seqlen_k, dtype=torch.float32, device=q.device)
        given = MaskSums(sums, parts, lines, sizes[1], of_batches, of_heads)
        self._launch("dmask", rows, (given, *statistics), (q, k, rows[2]))
        return sums.sum(0).sum_to_size(sizes).view(mask.shape).to(mask.dtype)

    def _launch(
        self, walk: str, strided: Tensors, statistics: tuple[Any, ...], qkv: Tensors, dlse: torch.Tensor | None = None
    ) -> None:
        """Launch the kernel of "forward", "dq" or "dkdv" with the first tile of its row that fits this device."""
        q, k, v = qkv
        shape, config, tensors = self._shape(q, k), self._config(q, v), self._tensors._replace(dlse=dlse)
        if config.mask == "additive":  # the scale as the last factor is faster where rows of the mask are aligned
            width = max(q.shape[3], v.shape[3])
            timed = walk == "dkdv" or (walk != "dmask" and shape.seqlen_k % 16 == 0)
            last = config.scale_last and timed and width <= 64 and not invariant.wanted()
            serial = walk == "dkdv" or (last and width <= 32)  # a fifth forward fits a multiprocessor
            config = replace(config, scale_last=last, branch=config.branch and not serial)
        if config.scale_last:
            shape = shape._replace(factor=(self.features.softcap or self.scale) * LOG2_E)
        if walk == "forward":
            tensors = tensors._replace(max_logits=self.max_logits)
        if self.table is not None:
            tensors = tensors._replace(table=self.table, table_b=self.table.stride(0), last_page=len(k) - 1)
        steps = [(0 if self.packed else x.stride(0), *x.stride()[1:3]) for x in strided]
        if self.table is not None:  # forward: q, k, v and out
            steps[1:3] = [x.stride()[:3] for x in strided[1:3]]
        unit = gcd(16, *(step for each in steps for step in each))
        rows = [Rows(x, *(step // unit for step in each)) for x, each in zip(strided, steps, strict=True)]
        batches = len(self.bounds.starts_q) if self.packed else q.shape[0]
        needed = 0
        of_keys = walk == "dkdv"
        length, heads = (shape.seqlen_k, k.shape[1]) if of_keys else (shape.seqlen_q, q.shape[1])
        for tile in self._tiles(walk, (q, v), shape, config):
            grid = (-(-length // (tile.block_n if of_keys else tile.block_m)), heads, batches // tile.batches)
            if walk == "dmask":
                grid = (grid[0], -(-shape.seqlen_k // tile.block_n), statistics[0].lines * statistics[0].parts)
            shared = self.features.asked == ("mask",) and not (tensors.mask_b or self.bounds or batches % tile.batches)
            if config.blocks % max(tile.block_m, tile.block_n) or not (tile.batches == 1 or shared):
                continue
            constants = Constants(self._in_tiles(walk, replace(config, unit=unit), shape, tile))
            options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "maxnreg": tile.registers or None}
            try:
                with device_guard(q.device):
                    for first in range(0, grid[2] if all(grid) else 0, MOST_PROGRAMS):
                        part = shape._replace(first_b=first)
                        programs = *grid[:2], min(grid[2] - first, MOST_PROGRAMS)
                        KERNELS[walk][programs](*rows, *statistics, tensors, part, constants, **options)
                return
            except OutOfResources as error:
                needed = error.required
        raise UnsupportedCase(f"triton_fa2's smallest tile with features needs {needed} of a block's resources.")

    def _tiles(self, walk: str, q_and_v: Tensors, shape: FeatureShape, config: FeatureConfig) -> tuple[Tile, ...]:
        """Return the tiles for a launch, the fastest first."""
        asked, (q, v) = self.features.asked, q_and_v
        found = tiles("dq" if walk == "dmask" else walk, *q_and_v)
        plain = self.bounds is not None and not asked and self.table is None
        plain = plain and q.dtype.itemsize == 2 and q.shape[3] == v.shape[3] <= 128  # as was timed
        windowed = config.one_loop and not asked and self.bounds is None  # a short one
        kind = "packed" if plain else ""
        if (windowed or asked == ("mask",)) and not invariant.wanted():
            kind = "window" if windowed else "keys" if config.spans else config.mask if config.scale_last else ""
        if walk == "forward" and self.features.dropout_p and len(asked) > 2:
            found = found[1:] or found  # the first would spill the numbers of dropout next to other features
        short = tiles(f"short_{kind}_{walk}", *q_and_v) if shape.seqlen_k <= SHORT else ()
        return *short, *tiles(f"{kind}_{walk}", *q_and_v), *found

    def _in_tiles(self, walk: str, config: FeatureConfig, shape: FeatureShape, tile: Tile) -> FeatureConfig:
        """Return the constants for a tile; calls of packed and invariant sequences have one form for all lengths."""
        fixed = self.bounds is not None or self.table is not None or invariant.wanted()
        rows, keys = (config.blocks or size for size in (tile.block_m, tile.block_n))
        first, size, own = shape.seqlen_k - shape.seqlen_q - shape.left, keys, rows  # of a walk over keys
        if walk == "dkdv":
            first, size, own = shape.seqlen_q - shape.seqlen_k - shape.right, rows, keys
        last = own - 1 + shape.left + shape.right  # seen from the first one on
        from_16 = config.one_loop and config.has_left and not (fixed or config.blocks)
        from_16 = from_16 and (first % size + last) // size > (first % 16 + last) // size
        whole = not (fixed or from_16 or shape.seqlen_q % rows or shape.seqlen_k % keys)
        tail = config.one_loop or config.spans or config.has_right or not whole
        held: dict[str, Any] = {"together": tile.batches, "from_16": from_16, "whole": whole, "tail": tail}
        return replace(config, block_m=tile.block_m, block_n=tile.block_n, **held)

    @cached_property
    def _tensors(self) -> FeatureTensors:
        asked, slopes = self.features, self.features.alibi_slopes
        step_b = step_h = step_m = step_n = 0  # strides of the mask
        mask = asked.mask
        if mask is not None:
            mask = mask.detach()[(None,) * (4 - mask.dim())]
            if max(mask.stride()[2:]) >= MAX_ROW_STRIDE:
                mask = mask.contiguous()
            steps = (0 if size == 1 else step for size, step in zip(mask.shape, mask.stride(), strict=True))
            step_b, step_h, step_m, step_n = steps
            mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
        slopes = None if slopes is None else slopes.contiguous()
        slopes_b = slopes.stride(0) if slopes is not None and slopes.dim() == 2 else 0
        bounds: tuple[Any, ...] = self.bounds[:4] if self.bounds else (None,) * 4
        seed = asked.dropout_seed if asked.dropout_p else None
        ids, least, largest = asked.document_ids, None, None
        if ids is not None:
            rest = -ids.shape[1] % 64
            whole = torch.cat((ids, ids[:, -1:].expand(-1, rest)), 1) if rest else ids
            least, largest = whole.reshape(len(ids), whole.shape[1] // 64, 64).aminmax(dim=2)
        contiguous = (
            None if x is None else x.detach().contiguous()
            for x in (asked.sinks, asked.prefix_lengths, ids, least, largest, *bounds, seed)
        )
        found = FeatureTensors(mask, step_b, step_h, step_m, step_n, slopes, slopes_b, *contiguous)
        if mask is not None and self._is_of_keys:
            spans = torch.empty((len(mask), 3), dtype=torch.int32, device=mask.device)
            with device_guard(mask.device):
                spans_kernel[(len(mask),)](mask, spans, step_b, step_n, mask.shape[3], AT_ONCE=KEYS_AT_ONCE)
            found = found._replace(spans=spans, spans_b=3 if step_b else 0)
        if (blocks := asked.block_mask) is None:
            return found
        lists = dict(zip(blocks._fields[1:], blocks[1:], strict=True))
        return found._replace(**lists, blocks_b=int(len(blocks.listed) > 1))

    @property
    def _is_of_keys(self) -> bool:
        """Return whether the mask is boolean and for all heads and rows of a batch, as that of padding."""
        mask, alone = self.features.mask, self.bounds is None and self.features.block_mask is None
        if mask is None or mask.dtype != torch.bool or not alone or mask.dim() == 0 or mask.shape[-1] == 1:
            return False
        return all(size == 1 for size in mask.shape[-3:-1])

    def _shape(self, q: torch.Tensor, k: torch.Tensor) -> FeatureShape:
        heads, asked = q.shape[1], self.features
        seqlen_q, seqlen_k = (self.bounds.longest_q, self.bounds.longest_k) if self.bounds else (q.shape[2], k.shape[2])
        left, right = reach(self.causal, self.window_size, seqlen_q + seqlen_k)
        return FeatureShape(
            num_heads=heads,
            group=heads // k.shape[1],
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            left=left,
            right=right,
            scale=self.scale,
            factor=1.0,
            softcap=asked.softcap or 1.0,
            keep_from=threshold(asked.dropout_p),
            keep_scale=1 / (1 - asked.dropout_p),
            stats_b=0 if self.packed else heads * q.shape[2],
            stats_h=q.shape[2],
            first_b=0,
        )

    def _config(self, q: torch.Tensor, v: torch.Tensor) -> FeatureConfig:
        asked, blocked = self.features, self.features.block_mask
        kind = "" if asked.mask is None else "boolean" if asked.mask.dtype == torch.bool else "additive"
        blocks = blocked.size(q.shape[2], v.shape[2]) if blocked else 0
        tanh = "series" if q.dtype == torch.float32 else "exponential"
        if q.dtype == torch.bfloat16 and not INTERPRETED:
            tanh = "hardware"
        short = self.window_size and sum(reach(self.causal, self.window_size, SHORT_WINDOW)) < SHORT_WINDOW
        some_seen = blocked is not None and (self.causal or self.window_size or v.shape[2] % blocks)
        (first, second), (first_v, second_v) = panels(q.shape[3]), panels(v.shape[3])
        one_loop = asked.document_ids is not None or (kind == "boolean" and not self._is_of_keys) or short or some_seen
        return FeatureConfig(
            block_m=0,
            block_n=0,
            unit=1,
            head_dim=q.shape[3],
            block_d=first,
            block_d2=second,
            values=Constants(Columns(v.shape[3], first_v, second_v, self.precision)),
            has_left=bool(self.window_size),
            has_right=bool(self.causal or self.window_size),
            softcap=tanh if asked.softcap else "",
            mask=kind,
            scale_last=q.dtype.itemsize == 2 and self.scale > 0 and asked.alibi_slopes is None,
            one_loop=bool(one_loop),
            branch=bool(kind and not one_loop),
            grouped=q.shape[1] != v.shape[1],
            spans=self._is_of_keys,
            precision=self.precision,
            page_size=v.shape[2] if self.table is not None else 0,
            blocks=blocks,
        )


def attend_checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: Features | None,
    bounds: SequenceBounds | None,
    options: tuple[bool, Window, float | None, str],
) -> torch.Tensor:
    """Compute out for q: (batch, num_heads, seqlen_q, head_dim), k, v with num_kv_heads, seqlen_k and any head_dim_v.

    `options`: causal, window_size, softmax_scale and precision. Raises UnsupportedCase if the tensors or the features
    do not belong together.
    """
    causal, window_size, scale, precision = options
    check_inputs("triton_fa2", q, k, v, DTYPES, any_width=True)
    features = features or Features()
    shape = (*q.shape[:3], k.shape[2])
    if bounds is not None:
        shape = (len(bounds.starts_q), q.shape[1], bounds.longest_q, bounds.longest_k)
    check(features, shape, q.device, causal=causal, window_size=window_size)
    if features.learns_mask and (bounds or features.block_mask):
        raise UnsupportedCase(
            "triton_fa2 has no gradient of a mask of packed sequences or with a block_mask; kernels.attention computes "
            "the latter from the definition."
        )
    features = features.seeded(q.device)
    scale = scale_of(scale, q.shape[3])
    return attend(FeatureCall(features, bool(causal), window_size, scale, precision, bounds), q, k, v)


def attend(call: FeatureCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute out; gradients flow to q, k, v, the sinks and a mask."""
    learned = (call.features.mask,) if call.features.mask_is_learned else ()
    return attend_with_sinks(call, q, k, v, call.features.sinks, *learned)


def addressable(x: torch.Tensor) -> torch.Tensor:
    """Return x, copied if its rows are not contiguous or further apart than a tile's offsets reach."""
    return x.contiguous() if x.stride(-1) != 1 or too_far(x) else x
