"""What the kernels with features are given, a group an argument, and what they are compiled for."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

# Addresses of what features read; None where a feature is not asked for. The mask is uint8 or floating, its strides are
# 0 where it is broadcast; slopes_b is 0 for slopes of heads alone; least and largest ids are those of documents in each
# 64 keys; starts and ends are rows of sequences in q and k; the seed is one int64; dlse, the gradient of the natural
# logsumexp, has the strides of delta; the table, int32, has the pages of each sequence, None if keys lie in a row;
# max_logits are float32 (num_heads,); the next five are those of a features.BlockMask, blocks_b 0 if all batches have
# the same lists, else 1; spans are those of forward.spans_kernel, spans_b 0 if all batches have the same one, else 3.
FeatureTensors = namedtuple(
    "FeatureTensors",
    "mask mask_b mask_h mask_m mask_n slopes slopes_b sinks prefixes documents least_ids largest_ids starts_q ends_q "
    "starts_k ends_k seed dlse table table_b last_page max_logits key_starts keys query_starts queries blocks_b "
    "spans spans_b",
    defaults=[None, None, None, None, None, None, None, None, None, None, None, None],
)
# Sums for the gradient of a mask: the address of `parts` of `lines` of all scores; the mask's heads; and how many
# batches and heads share a line.
MaskSums = namedtuple("MaskSums", "base parts lines heads of_batches of_heads")
# A tensor of rows: its address, and the strides between batches or pages, heads and rows, in units.
Rows = namedtuple("Rows", "base b h m")
# Sizes and factors of a call. Of packed sequences the lengths are the largest. `scale`: softmax_scale; `factor`: of
# scores where powers of two are taken of them; `keep_from`: the first 32-bit number that dropout keeps; `keep_scale`: 1
# / (1 - dropout_p); `stats_b`, `stats_h`: strides of lse and delta; `first_b`: the last axis of a grid begins there.
FeatureShape = namedtuple(
    "FeatureShape",
    "num_heads group seqlen_q seqlen_k left right scale factor softcap keep_from keep_scale stats_b stats_h first_b",
)


@dataclass(frozen=True)
class Columns:
    """How rows are held and multiplied, as `panels` reads it."""

    head_dim: int
    block_d: int  # columns of the first panel, a power of two
    block_d2: int  # columns of the second panel; 0: there is none
    precision: str  # float32 products: "ieee" or "tf32"


@dataclass(frozen=True)
class FeatureConfig(Columns):
    """What a kernel with features is compiled for; the columns are those of q and k."""

    block_m: int
    block_n: int
    values: Any  # Constants of the Columns of v, out and dout
    has_left: bool
    has_right: bool
    softcap: str  # "", or how its tanh is computed: "hardware" (off by 2^-11), "exponential" (1e-7 near 0) or "series"
    mask: str  # "", "boolean" or "additive"
    unit: int  # of strides in elements, so that rows of 72 elements are known to begin at vectors of 16 bytes
    scale_last: bool  # whether scores are multiplied with the scale where powers of two are taken of them
    one_loop: bool  # whether all blocks of a walk are masked
    branch: bool  # whether a walk branches around empty parts, without which ptxas serializes products under a mask
    grouped: bool  # whether query heads share key heads
    page_size: int = 0  # keys of a page; 0: keys lie in a row
    spans: bool = False  # whether a boolean mask is that of keys alone, so that blocks before and after are left out
    whole: bool = False  # whether tiles end with the rows and keys of all sequences, so that no load takes a mask
    from_16: bool = False  # whether walks begin at multiples of 16 rather than of a tile, which saves a tile
    tail: bool = True  # whether the last blocks of a walk over keys take a mask
    together: int = 1  # batches whose dq a program computes, with the same tiles of an added mask
    blocks: int = 0  # rows and keys of a listed block, a multiple of both tiles; 0: there are no lists
