"""What the kernels receive: a named tuple of tensors, another of their strides, and a configuration of constants.

A tuple of strides has the type of the tuple of tensors. Fields with a default are tensors whose strides follow from
the sizes: they come last and are None among the strides. A launch passes the addresses in the order of the fields.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

# Parameters of kernels that are compiled once for all numbers, where a kernel has them.
SIZES = ["num_heads", "group", "total_heads", "heads_at_once", "seqlen_q", "seqlen_k", "left", "right"]
SPLIT_SIZES = [*SIZES, "splits", "split_len", "slots", "slot_keys"]


# Strides of a tensor (batch, heads, rows, head_dim) whose rows are contiguous.
Strides = namedtuple("Strides", "batch head row")
# Tensors of forward_kernel; k_transposed is a copy (preprocess.py), or k where the kernel needs none.
ForwardTensors = namedtuple("ForwardTensors", "q k v out lse k_transposed", defaults=[None, None])
# Tensors of the forward kernels whose rows are panels.
PanelTensors = namedtuple("PanelTensors", "q k v out lse", defaults=[None])
# Tensors of dq_kernel, dkdv_kernel and dq_dkdv_kernel.
DqTensors = namedtuple(
    "DqTensors", "q k v out dout dq lse delta k_transposed v_transposed", defaults=[None, None, None, None]
)
DkdvTensors = namedtuple(
    "DkdvTensors", "q k v dout dk dv lse delta q_transposed dout_transposed", defaults=[None, None, None, None]
)
DqDkdvTensors = namedtuple(
    "DqDkdvTensors",
    "q k v dout dq dk dv lse delta q_transposed k_transposed v_transposed dout_transposed",
    defaults=[None, None, None, None, None, None],
)
# Tensors of few_queries_kernel.
FewQueriesTensors = namedtuple("FewQueriesTensors", "q k v out dout dq dk dv lse", defaults=[None])
# Tensors of whole_heads_kernel; sums are dq's, float32.
WholeHeadsTensors = namedtuple(
    "WholeHeadsTensors", "q k v out dout dq dk dv lse delta sums", defaults=[None, None, None]
)
# Tensors of the kernels of stored.py; dq_sums are float32.
StoredTensors = namedtuple(
    "StoredTensors", "q k v dout dq dk dv lse delta p ds dq_sums", defaults=[None, None, None, None, None]
)
# Tensors of preprocess_kernel: its inputs, then the copies and delta.
PreprocessTensors = namedtuple(
    "PreprocessTensors", "q dout out k v q_copy dout_copy k_copy v_copy delta", defaults=[None, None, None, None, None]
)
# Tensors of combine_outputs: slots of outputs and their logsumexps (split.py), and the results.
SplitOutputs = namedtuple("SplitOutputs", "out slots slots_lse lse", defaults=[None, None, None])
# Tensors of combine_gradients: the gradients and their slots.
SplitGradients = namedtuple("SplitGradients", "dq dk dv dq_slots dk_slots dv_slots", defaults=[None, None, None])


@dataclass(frozen=True, kw_only=True)
class Config:
    """Constants of every kernel. A kernel reads some of the fields; the others keep their defaults."""

    block_m: int = 0  # query rows of a tile
    block_n: int = 0  # keys of a tile
    head_dim: int
    block_d: int  # columns of a tile, a power of two: head_dim padded, or the first panel (panels.py)
    has_left: bool = False  # whether keys before or after a query's own position are hidden by a distance
    has_right: bool = False
    pdl: bool = False


@dataclass(frozen=True, kw_only=True)
class WalkConfig(Config):
    """Constants of the kernels that walk over all keys or rows of a head, and of preprocess.py."""

    precision: str  # of products: "ieee", "tf32" or "bf16x6" (tile_ops.py)
    copied: bool  # IEEE float32, with transposed copies
    one_loop: bool = False  # every block is masked
    split: bool = False  # split.py
    scale_first: bool = False  # the scale is not positive, so that the maximum is taken of scaled scores
    store_lse: bool = False
    grouped: bool = False  # query heads share key heads


@dataclass(frozen=True, kw_only=True)
class PanelConfig(Config):
    """Constants of the kernels whose rows are two panels of columns (panels.py)."""

    block_d2: int  # columns of the second panel; 0: there is none
    block_n2: int = 0  # keys of a second, smaller block
    precision: str = "tf32"  # has no effect on 16-bit factors
    scale_first: bool = False
    store_lse: bool = False
    whole: bool = False  # every query sees the first block of keys
    masked: bool = False  # some block needs a mask
    tiles: int = 0  # of keys, of which backward_whole_heads.py takes two a pass


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig(Config):
    """Constants of preprocess_kernel."""

    precision: str
    copied: bool
    copy_q: bool
    copy_dout: bool
    copy_k: bool
    copy_v: bool
    delta: bool


@dataclass(frozen=True, kw_only=True)
class CombineConfig(Config):
    """Constants of the kernels of combine.py."""

    store_lse: bool = False
    slots: int = 0  # a power of two that is at least the number of splits
    at_once: int = 0  # slots that are loaded together
