"""What is decided once per shape: masks, tiles, grids and launches; and the autograd function that uses it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernels.attention.triton_fa2 import tuning
from kernels.attention.triton_fa2.backward import dkdv_kernel, dq_kernel
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.launch import INTERPRETED, Launch, make_launch
from kernels.registry import UnsupportedCase

LOG2_E = math.log2(math.e)
MAX_ROW_STRIDE = 1 << 23  # a tile's offsets are 32-bit: 256 rows of this stride stay below 2**31
_PLANS: dict[tuple[Any, ...], Plan] = {}
_MAX_PLANS = 4096


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    window_size: int,
    scale: float | None,
    precision: str,
) -> torch.Tensor:
    """Attention by the plan of these shapes; gradients flow if any input wants them."""
    if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    key = (
        *(q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.shape, k.shape, v.shape),
        *(q.stride(), k.stride(), v.stride(), q.data_ptr() & 15, k.data_ptr() & 15, v.data_ptr() & 15),
        *(causal, window_size, scale, precision),
    )
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = Plan(q, k, v, causal, window_size, scale, precision)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, plan)
    return plan.forward(q, k, v)


class _Attention(torch.autograd.Function):
    """Saves q, k, v, out and the logsumexp; the backward recomputes the scores."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan) -> torch.Tensor:
        out, lse = plan.forward_with_lse(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.plan.backward(*ctx.saved_tensors, dout), None


class Plan:
    """The launches for one shape, made on first use, each with its tile fixed.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim); last dim contiguous.
    Raises UnsupportedCase if the tensors do not belong together or the kernels cannot take them.
    """

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window_size: int,
        scale: float | None,
        precision: str,
    ) -> None:
        _check(q, k, v)
        self.device = q.device
        self.batch, self.num_heads, self.seqlen_q, self.head_dim = q.shape
        self.num_kv_heads, self.seqlen_k = k.shape[1], k.shape[2]
        self.group = self.num_heads // self.num_kv_heads
        self.block_d = max(16, 1 << (self.head_dim - 1).bit_length())
        self.scale = self.head_dim**-0.5 if scale is None else float(scale)
        longest = self.seqlen_q + self.seqlen_k
        self.left = min(window_size - 1, longest) if window_size else longest
        self.right = 0 if causal else self.left
        self.constants = {
            "HEAD_DIM": self.head_dim,
            "BLOCK_D": self.block_d,
            "HAS_LEFT": bool(window_size),
            "HAS_RIGHT": bool(causal or window_size),
            "PRECISION": precision,
        }
        self.precision = "half" if q.dtype.itemsize == 2 else precision
        self.bytes_per_row = q.dtype.itemsize * self.head_dim
        self._limits()
        self._launches: dict[Any, Launch] = {}

    def _limits(self) -> None:
        if INTERPRETED:  # large tiles: the interpreter's time goes by operation
            self.chip, self.multiprocessors, self.l2_bytes = "sm_86", 0, 1 << 25
            return
        properties = torch.cuda.get_device_properties(self.device)
        capability = properties.major * 10 + properties.minor
        self.chip = tuning.chip_class(capability, properties.shared_memory_per_block_optin)
        self.multiprocessors, self.l2_bytes = properties.multi_processor_count, properties.L2_cache_size

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output alone."""
        out = torch.empty_like(q)
        self._launch_forward(False, q, k, v, out, out)
        return out

    def forward_with_lse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key."""
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=self.device)
        self._launch_forward(True, q, k, v, out, lse)
        return out, lse

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dq, dk and dv."""
        if dout.stride(-1) != 1 or _too_far(dout):
            dout = dout.contiguous()
        dq, dk, dv, delta = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(lse)
        key = (dout.stride(), dout.data_ptr() & 15)
        launches = self._launches.get(key)
        if launches is None:
            launches = self._launches[key] = (
                self._make_dq(q, k, v, out, dout, dq, lse, delta),
                self._make_dkdv(q, k, v, dout, dk, dv, lse, delta),
            )
        with _device_guard(self.device):
            launches[0](q, k, v, out, dout, dq, lse, delta)
            launches[1](q, k, v, dout, dk, dv, lse, delta)
        return dq, dk, dv

    def _launch_forward(self, with_lse: bool, *tensors: torch.Tensor) -> None:
        launch = self._launches.get(with_lse)
        if launch is None:
            launch = self._launches[with_lse] = self._make_forward(with_lse, *tensors)
        with _device_guard(self.device):
            launch(*tensors)

    def _make_forward(self, with_lse: bool, *tensors: torch.Tensor) -> Launch:
        q, k, v, out, _ = tensors
        flat = self.scale <= 0  # the kernel may then not take the maximum before scaling
        return self._make(
            *("forward", forward_kernel, tensors, (q, k, v, out), (self.scale * LOG2_E,)),
            extra={"SCALE_FIRST": flat, "STORE_LSE": with_lse},
        )

    def _make_dq(self, *tensors: torch.Tensor) -> Launch:
        q, k, v, out, dout, dq, _, _ = tensors
        return self._make("dq", dq_kernel, tensors, (q, k, v, out, dout, dq), (self.scale * LOG2_E, self.scale))

    def _make_dkdv(self, *tensors: torch.Tensor) -> Launch:
        q, k, v, dout, dk, dv, _, _ = tensors
        return self._make(
            *("dkdv", dkdv_kernel, tensors, (q, k, v, dout, dk, dv), (self.scale * LOG2_E, self.scale)),
            extra={"GROUPED": self.group > 1},
        )

    def _make(
        self,
        name: str,
        kernel: Any,
        tensors: tuple[torch.Tensor, ...],
        strided: tuple[torch.Tensor, ...],
        scales: tuple[float, ...],
        extra: dict[str, Any] | None = None,
    ) -> Launch:
        over_keys = name == "dkdv"
        heads = self.batch * (self.num_kv_heads if over_keys else self.num_heads)
        rows = self.seqlen_k if over_keys else self.seqlen_q
        scalars = (
            *(stride for tensor in strided for stride in tensor.stride()[:3]),
            *(self.num_heads, self.group, heads, self._heads_at_once(over_keys)),
            *(self.seqlen_q, self.seqlen_k, self.left, self.right, *scales),
        )
        per_multiprocessor = heads * rows / self.multiprocessors if self.multiprocessors else math.inf
        tiles = tuning.tiles(name, self.chip, self.precision, self.block_d, per_multiprocessor)

        def programs(tile: tuning.Tile) -> int:
            return heads * -(-rows // (tile.block_n if over_keys else tile.block_m))

        with _device_guard(self.device):
            return make_launch(kernel, tensors, scalars, {**self.constants, **(extra or {})}, tiles, programs)

    def _heads_at_once(self, over_keys: bool) -> int:
        """How many heads' streamed tensors (k and v, or q and dout) fit in half of the L2."""
        if over_keys:
            streamed = 2 * self.group * self.seqlen_q * self.bytes_per_row
            return max(1, self.l2_bytes // 2 // max(1, streamed))
        streamed = 2 * self.seqlen_k * self.bytes_per_row
        return self.group * max(1, self.l2_bytes // 2 // max(1, streamed))


class _NoGuard:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


_NO_GUARD = _NoGuard()


def _device_guard(device: torch.device) -> Any:
    """Triton launches on the current device; nothing to do when the tensors are there."""
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return _NO_GUARD
    return torch.cuda.device(device)


def _too_far(x: torch.Tensor) -> bool:
    return x.stride(-2) >= MAX_ROW_STRIDE


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    problems = (
        (q.dim() != 4 or k.dim() != 4, "q, k and v must be (batch, heads, seqlen, head_dim)"),
        (k.shape != v.shape, "k and v must have the same shape"),
        (q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1], "q and k must agree in batch and head_dim"),
        (
            k.dim() == 4 and (not k.shape[1] or bool(q.shape[1] % k.shape[1])),
            "num_heads must be a multiple of num_kv_heads",
        ),
        (q.shape[-1] > 256, "head_dim must be at most 256"),
        (
            not (q.dtype == k.dtype == v.dtype),
            f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}",
        ),
        (
            not (q.device == k.device == v.device),
            f"q, k and v must be on one device, not {q.device}, {k.device} and {v.device}",
        ),
        (any(map(_too_far, (q, k, v))), f"a row stride must be below {MAX_ROW_STRIDE} elements; call .contiguous()"),
    )
    problem = next((text for failed, text in problems if failed), None)
    if problem:
        raise UnsupportedCase(f"triton_fa2 got {shapes}: {problem}.")
