"""What the kernels receive: a named tuple of tensors, another of their strides, and a configuration of constants.

A tuple of strides has the type of the tuple of tensors. Fields with a default are tensors whose strides follow from
the sizes: they come last and are None among the strides. A launch passes the addresses in the order of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Strides(NamedTuple):
    """Strides of a tensor (batch, heads, rows, head_dim) whose rows are contiguous."""

    batch: Any
    head: Any
    row: Any


class ForwardTensors(NamedTuple):
    """Tensors of forward_kernel."""

    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any = None
    k_transposed: Any = None  # a copy (preprocess.py), or k where the kernel needs none


class PanelTensors(NamedTuple):
    """Tensors of the forward kernels whose rows are panels."""

    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any = None


class DqTensors(NamedTuple):
    """Tensors of dq_kernel."""

    q: Any
    k: Any
    v: Any
    out: Any
    dout: Any
    dq: Any
    lse: Any = None
    delta: Any = None
    k_transposed: Any = None
    v_transposed: Any = None


class DkdvTensors(NamedTuple):
    """Tensors of dkdv_kernel."""

    q: Any
    k: Any
    v: Any
    dout: Any
    dk: Any
    dv: Any
    lse: Any = None
    delta: Any = None
    q_transposed: Any = None
    dout_transposed: Any = None


class DqDkdvTensors(NamedTuple):
    """Tensors of dq_dkdv_kernel."""

    q: Any
    k: Any
    v: Any
    dout: Any
    out: Any
    dq: Any
    dk: Any
    dv: Any
    lse: Any = None
    delta: Any = None
    q_transposed: Any = None
    k_transposed: Any = None
    v_transposed: Any = None
    dout_transposed: Any = None


class OnePassTensors(NamedTuple):
    """Tensors of one_pass_kernel; the gradients are slots (split.py)."""

    q: Any
    k: Any
    v: Any
    dout: Any
    dq: Any = None
    dk: Any = None
    dv: Any = None
    lse: Any = None
    delta: Any = None
    q_transposed: Any = None
    dout_transposed: Any = None


class FewQueriesTensors(NamedTuple):
    """Tensors of few_queries_kernel."""

    q: Any
    k: Any
    v: Any
    out: Any
    dout: Any
    dq: Any
    dk: Any
    dv: Any
    lse: Any = None


class PreprocessTensors(NamedTuple):
    """Tensors of preprocess_kernel: its inputs, then the copies and delta."""

    q: Any
    dout: Any
    out: Any
    k: Any
    v: Any
    q_copy: Any = None
    dout_copy: Any = None
    k_copy: Any = None
    v_copy: Any = None
    delta: Any = None


class SplitOutputs(NamedTuple):
    """Tensors of combine_outputs: slots of outputs and their logsumexps (split.py), and the results."""

    out: Any
    slots: Any = None
    slots_lse: Any = None
    lse: Any = None


class SplitGradients(NamedTuple):
    """Tensors of combine_gradients: the gradients and their slots."""

    dq: Any
    dk: Any
    dv: Any
    dq_slots: Any = None
    dk_slots: Any = None
    dv_slots: Any = None


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
    own_delta: bool = False  # dq_dkdv_kernel computes delta


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
