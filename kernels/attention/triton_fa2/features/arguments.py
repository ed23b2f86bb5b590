"""What the kernels with features are given, a group an argument, and what they are compiled for."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple


class FeatureTensors(NamedTuple):
    """Addresses of what features read; None where a feature is not asked for."""

    mask: Any  # uint8 or floating
    mask_b: Any  # its strides, 0 where it is broadcast
    mask_h: Any
    mask_m: Any
    mask_n: Any
    slopes: Any
    slopes_b: Any  # stride between batches, 0 for slopes of heads alone
    sinks: Any
    prefixes: Any
    documents: Any  # (batch, seqlen_k)
    least_ids: Any  # of documents in each 64 keys
    largest_ids: Any
    starts_q: Any  # the first row of a sequence in the rows of q, (sequences,)
    ends_q: Any  # after its last one
    starts_k: Any
    ends_k: Any
    seed: Any  # dropout seed, one int64
    dlse: Any = None  # the gradient of the natural logsumexp, with the strides of delta
    table: Any = None  # int32, the pages of each sequence; None: keys lie in a row
    table_b: Any = None  # its stride between sequences
    last_page: Any = None  # number of the last page
    max_logits: Any = None  # (num_heads,), float32: the largest logit so far
    key_starts: Any = None  # the lists of a features.BlockMask
    keys: Any = None
    query_starts: Any = None
    queries: Any = None
    blocks_b: Any = None  # 0: all batches have the same lists; 1: each has its own


# A tensor of rows: its address, and the strides between batches or pages, heads and rows, in units.
Rows = namedtuple("Rows", "base b h m")
# Sizes and factors of a call. Of packed sequences the lengths are the largest. `scale`: softmax_scale; `factor`: of
# scores where powers of two are taken of them; `keep_from`: the first 32-bit number that dropout keeps; `keep_scale`: 1
# / (1 - dropout_p); `stats_b`, `stats_h`: strides of lse and delta between batches and heads.
FeatureShape = namedtuple(
    "FeatureShape",
    "num_heads group seqlen_q seqlen_k left right scale factor softcap keep_from keep_scale stats_b stats_h",
)


@dataclass(frozen=True)
class FeatureConfig:
    """What a kernel with features is compiled for."""

    block_m: int
    block_n: int
    head_dim: int
    block_d: int  # columns of the first panel of q and k, a power of two
    block_d2: int  # columns of the second panel; 0: there is none
    head_dim_v: int
    block_dv: int
    has_left: bool
    has_right: bool
    softcap: str  # "", or how its tanh is computed: "hardware" (off by 2^-11), "exponential" (1e-7 near 0) or "series"
    mask: str  # "", "boolean" or "additive"
    unit: int  # of strides in elements, so that rows of 72 elements are known to begin at vectors of 16 bytes
    scale_last: bool  # whether scores are multiplied with the scale where powers of two are taken of them
    one_loop: bool  # whether all blocks of a walk are masked
    precision: str  # float32 products: "ieee" or "tf32"
    page_size: int = 0  # keys of a page; 0: keys lie in a row
    blocks: int = 0  # rows and keys of a listed block, a multiple of both tiles; 0: there are no lists
