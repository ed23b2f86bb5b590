"""The host's side: descriptors, grids and buffers around the kernels."""

import math
from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.backward import backward_kernel
from kernels.attention.gluon_hopper.conversion import finish_kernel, prepare_kernel
from kernels.attention.gluon_hopper.forward import forward_kernel

LOG2_E = math.log2(math.e)
DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees."""

    causal: bool
    window_size: int  # 0: no window


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
    q, k, v = addressable(q), addressable(k), addressable(v)
    batch, num_heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    size = tuning.padded_head_dim(max(head_dim, v.shape[3]))
    tiles = tuning.forward_tiles(size, mask.window_size > 0)
    out = empty_addressable((*q.shape[:3], v.shape[3]), q)
    lse = torch.empty(batch, num_heads, seqlen_q, dtype=torch.float32, device=q.device)
    n_m = -(-seqlen_q // (tuning.ROWS * tiles.consumers))
    n_heads = batch * num_heads
    group_size = num_heads // k.shape[1]
    programs = min(n_m * n_heads, torch.cuda.get_device_properties(q.device).multi_processor_count)
    with torch.cuda.device(q.device):
        forward_kernel[(programs,)](
            _tiles(q, tuning.ROWS, size), _tiles(k, tiles.block_n, size), _tiles(v, tiles.block_n, size),
            _tiles(out, tuning.ROWS, size), lse, n_m * n_heads, n_m, num_heads, n_heads, group_size,
            tuning.heads_together(seqlen_k, size, group_size, n_heads), seqlen_q, seqlen_k, mask.window_size,
            softmax_scale * LOG2_E, tuning.ROWS, tiles.block_n, size, tiles.consumers, tiles.q_slots, tiles.kv_slots,
            mask.causal, mask.window_size > 0, tiles.turns, tiles.registers, num_warps=4,
        )  # fmt: skip
    return out, lse


def has_backward(head_dim: int) -> bool:
    """Whether the backward kernel is built for this head_dim."""
    return tuning.padded_head_dim(head_dim) in tuning.BACKWARD_BLOCK_M


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    mask: Mask,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv from what `forward` returned; dq's last bits depend on the order of additions."""
    q, k, v, dout = addressable(q), addressable(k), addressable(v), addressable(dout)
    batch, num_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1:3]
    size = tuning.padded_head_dim(max(head_dim, v.shape[3]))
    block_m, block_n = tuning.BACKWARD_BLOCK_M[size], tuning.BLOCK_N_BACKWARD
    n_m = -(-seqlen_q // block_m)
    n_heads = batch * num_heads
    rows = torch.empty(2, n_heads * n_m * block_m, dtype=torch.float32, device=q.device)  # lse, delta
    fragments = torch.zeros(n_heads * n_m * 2 * 16, 256, dtype=torch.float32, device=q.device)
    dq, dk, dv = empty_addressable(q.shape, q), empty_addressable(k.shape, k), empty_addressable(v.shape, v)
    one_d, two_d = gl.NVMMASharedLayout(0, 32, 1), gl.NVMMASharedLayout(0, 32, 2)
    masked = mask.causal or mask.window_size > 0 or seqlen_k % block_n > 0
    with torch.cuda.device(q.device):
        prepare_kernel[(n_m, n_heads)](
            out, dout, lse, rows[0], rows[1], *out.stride()[:3], *dout.stride()[:3], num_heads, seqlen_q, n_m * block_m,
            block_m, v.shape[3], size,
        )  # fmt: skip
        backward_kernel[(-(-seqlen_k // block_n), num_kv_heads, batch)](
            _tiles(q, block_m, size), _tiles(k, block_n, size), _tiles(v, block_n, size), _tiles(dout, block_m, size),
            TensorDescriptor.from_tensor(fragments, [16, 256], two_d), _tiles(dk, block_n, size),
            _tiles(dv, block_n, size), TensorDescriptor.from_tensor(rows[0], [block_m], one_d),
            TensorDescriptor.from_tensor(rows[1], [block_m], one_d), num_heads, num_heads // num_kv_heads, seqlen_q,
            seqlen_k, n_m * block_m, n_m, mask.window_size, softmax_scale * LOG2_E, softmax_scale, block_m, block_n,
            size, 2, mask.causal, mask.window_size > 0, masked, num_warps=4,
        )  # fmt: skip
        finish_kernel[(n_m * 2, n_heads)](
            fragments, dq, *dq.stride()[:3], num_heads, seqlen_q, n_m, softmax_scale, block_m, head_dim
        )
    return dq, dk, dv


def addressable(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself if the copy engine can address it, else a copy that it can."""
    strides = [stride for stride, size in zip(x.stride()[:3], x.shape, strict=False) if size > 1]
    aligned = x.data_ptr() % 16 == 0 and all(stride > 0 and stride % 8 == 0 for stride in strides)
    if aligned and (x.stride(3) == 1 or x.shape[3] == 1):
        return x
    return empty_addressable(x.shape, x).copy_(x)


def empty_addressable(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Room for a result, in the order of dimensions of `like`, each row beginning at a multiple of 16 bytes."""
    order = sorted(range(3), key=lambda dim: like.stride(dim), reverse=True)
    width = -(-shape[3] // 8) * 8
    room = torch.empty([shape[dim] for dim in order] + [width], dtype=like.dtype, device=like.device)
    return room.permute([order.index(dim) for dim in range(3)] + [3])[..., : shape[3]]


def _tiles(x: torch.Tensor, rows: int, head_dim: int) -> TensorDescriptor:
    """A descriptor of (1, 1, rows, head_dim) tiles of an addressable tensor."""
    block = [1, 1, rows, head_dim]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[x.dtype])
    strides = [stride if size > 1 else 8 for stride, size in zip(x.stride()[:3], x.shape, strict=False)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], block, layout)
