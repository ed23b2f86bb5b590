"""Input checks, cached plans, autograd and the device guard of our attention packages.

A plan holds the kernels for one set of shapes, strides and alignments. The first call makes it, and later calls find it
by `plan_key` and do little more than allocate and launch. Nothing here needs Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Protocol, TypeVar, cast

import torch
from torch._C._dynamo.guards import TensorGuards
from torch.autograd.function import once_differentiable

from .registry import UnsupportedCase

LOG2_E = math.log2(math.e)
MAX_PLANS = 4096
MAX_HEAD_DIM = 512
NO_KEY = (AttributeError, RuntimeError, TypeError)  # raised by tensors, and classes like them, that have no key
_address = torch.Tensor.data_ptr
_ENTRIES = 7  # older entries of a key that are kept
_ON_CURRENT_DEVICE = nullcontext()

P = TypeVar("P")
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Options = tuple[bool, int, float | None]  # causal, window_size, softmax_scale
Masks = tuple[bool, int, float]  # the same with a scale that is decided
Prepare = Callable[[torch.Tensor], torch.Tensor]


class AttentionPlan(Protocol):
    """Forward and backward of attention for tensors with one `plan_key`."""

    @property
    def prepare(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return what copies tensors that the kernels cannot address; None: nothing."""
        ...

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return out (batch, num_heads, seqlen_q, head_dim)."""
        ...

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (batch, num_heads, seqlen_q), +inf for a row that sees no key."""
        ...

    def backward(self, *saved: torch.Tensor) -> Tensors:
        """Return dq, dk and dv; saved: q, k, v, out, lse and dout."""
        ...


class GradientRoom:
    """Allocates dq, dk and dv of tensors like q, k and v.

    If q, k and v, or k and v, are parts of the rows of one tensor, as a fused projection returns them, so are their
    gradients: the gradient of that tensor then needs no copy (`kernels.layers`).
    """

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Prepare the allocations; `new` allocates one tensor like another."""
        tensors = (q, k, v)
        self._new = new
        self._alone = next((first for first in (0, 1) if _side_by_side(tensors[first:])), len(tensors))
        sizes = [x.shape[1] * x.shape[3] for x in tensors[self._alone :]]
        self._numbers = sum(sizes) * k.shape[0] * k.shape[2]
        begins = [sum(sizes[:i]) for i in range(len(sizes))]
        self._views = [(x.shape, x.stride(), begin) for x, begin in zip(tensors[self._alone :], begins, strict=True)]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Tensors:
        """Return room for dq, dk and dv."""
        if not self._views:
            return self._new(q), self._new(k), self._new(v)
        room = k.new_empty(self._numbers)
        found = [room.as_strided(*view) for view in self._views]
        return (found[0], found[1], found[2]) if not self._alone else (self._new(q), found[0], found[1])


def _side_by_side(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors (batch, heads, seqlen, head_dim) have strides as parts of the rows of one tensor."""
    batch, _, seqlen, _ = tensors[0].shape
    width = sum(x.shape[1] * x.shape[3] for x in tensors)
    return all(
        (x.shape[0], x.shape[2], x.shape[3] % 8) == (batch, seqlen, 0)  # TMA takes addresses of whole 16 bytes
        and x.stride() == (seqlen * width, x.shape[3], width, 1)
        for x in tensors
    )


class PlanCache(dict[tuple[Any, ...], P]):
    """Plans by their key, emptied when it holds MAX_PLANS."""

    made: ClassVar[list[PlanCache[Any]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def remember(self, key: tuple[Any, ...], plan: P) -> P:
        """Keep a plan under a key and return it."""
        if len(self) >= MAX_PLANS:
            self.clear()
        self[key] = plan
        return plan


class Decided(PlanCache[P]):
    """Plans and choices that rules decide, which `kernels.routes.forget` forgets."""


class Seen:
    """What computes calls that were seen before: `holds` is a guard for their tensors, which have these options.

    Without a guard PyTorch's function computes every call with the key, which is right whatever else the tensors are.
    `then` is what followed last time: to ask it first takes half the time of a look-up.
    """

    __slots__ = ("attend", "holds", "key", "options", "tally", "then")

    def __init__(self, attend: Any = None, tally: Any = None, key: Any = None, holds: Any = None, options: Any = None):
        self.attend, self.tally, self.key = attend, tally, key
        self.holds, self.options, self.then = holds, options, self


class SeenCalls(Decided[Any]):
    """What calls ran that were seen before, by a key of sizes and options; `last` is the one used last.

    A guard is one C call. It holds for tensors with the classes, dtypes, devices, sizes and strides of the first call,
    whose gradients are wanted as then, in the same state of dispatch (autocast, inference mode, transforms of
    torch.func, tracing). It ends the process for tensors without strides: a key reads sizes, and `is_aligned` the rest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = Seen()

    def note(
        self, key: tuple[Any, ...], options: Any, tensors: Sequence[torch.Tensor], attend: Any, tally: Any = None
    ) -> None:
        """Keep what computes such calls, as the first one of its key, where a guard can hold."""
        if not is_aligned(*tensors):
            return
        guard = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        others = self.get(key, ())
        if guard.check(*tensors) and type(others) is tuple:  # no guard holds for one tensor in two places
            entry = Seen(attend, tally, None, guard.check, options)
            self.remember(key, (entry, *others[:_ENTRIES]))
            self.last.then = self.last = entry

    def find(self, key: tuple[Any, ...], *tensors: Any) -> Seen | None:
        """Return what computes a call, to be expected after the last one; None if no such call was seen."""
        found: Any = self.last.then if key == self.last.then.key else self.get(key, ())
        for each in (found,) if type(found) is Seen else found if is_aligned(*tensors) else ():
            if each.holds is None or each.holds(*tensors):
                self.last.then = self.last = each
                return each
        return None

    def clear(self) -> None:
        super().clear()
        self.last = Seen()


def is_aligned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> bool:
    """Return whether a guard can be asked about tensors, whose addresses are multiples of 16 bytes."""
    try:
        nested = v.is_nested or (mask is not None and mask.is_nested)
        return not (nested or (_address(q) | _address(k) | _address(v)) & 15)
    except NO_KEY:  # such as sparse ones
        return False


def forget(kind: type[PlanCache[Any]] = PlanCache) -> None:
    """Forget all plans, or what caches of a kind hold, so that the next call of each shape makes it again."""
    for cache in PlanCache.made:
        if isinstance(cache, kind):
            cache.clear()


def plan_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key of a plan: dtypes, devices, shapes, strides, alignment to 16 bytes, and the options."""
    return (
        q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.shape, k.shape, v.shape,
        q.stride(), k.stride(), v.stride(), q.data_ptr() & 15, k.data_ptr() & 15, v.data_ptr() & 15, options,
    )  # fmt: skip


def attend(plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention by the plan of these tensors; gradients flow if any of them wants one."""
    return bound(plan, q, k, v)(q, k, v)


def bound(plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return what computes attention of such tensors by their plan: with gradients, if any of them wants one."""
    if wants_gradients(q, k, v):
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return partial(_PlannedAttention.apply, plan)
        return partial(_APPLY, plan)
    return plan.output if plan.prepare is None else partial(_prepared, plan)


def attend_with_sinks(plan: Any, *tensors: torch.Tensor | None) -> torch.Tensor:
    """Compute attention of q, k, v and sinks, which may be None, by what also returns the gradient of sinks."""
    return _PlannedAttention.apply(plan, *tensors)


def _prepared(plan: AttentionPlan, *tensors: torch.Tensor) -> torch.Tensor:
    return plan.output(*map(cast(Prepare, plan.prepare), tensors))


def wants_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether autograd records a call with these tensors."""
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


class _PlannedAttention(torch.autograd.Function):
    """Saves q, k, v, out and lse; the backward recomputes the scores."""

    @staticmethod
    def forward(
        ctx: Any, plan: AttentionPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *sinks: torch.Tensor | None
    ) -> torch.Tensor:
        if plan.prepare is not None:
            q, k, v = map(plan.prepare, (q, k, v))
        out, lse = plan.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _differentiated_once(ctx, dout)
        return None, *ctx.plan.backward(*ctx.saved_tensors, dout)


@once_differentiable  # where a graph of the gradients is made, to refuse a second time
def _differentiated_once(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return None, *ctx.plan.backward(*ctx.saved_tensors, dout)


# Both lines call PyTorch's C++ without the Python around it, which takes 1.5 us of the 4 us of an apply. That Python
# also unwraps tensors of a finished transform; they have no address, so `plan_key` refuses them.
_PlannedAttention._backward_cls.apply = _PlannedAttention.backward
_APPLY = super(torch.autograd.Function, _PlannedAttention).apply


def device_guard(device: torch.device) -> Any:
    """Return a context in which a CUDA device is the current one, on which Triton launches."""
    if device.type == "cpu" or device.index == torch._C._cuda_getDevice():  # CUDA tensors exist, so CUDA is ready
        return _ON_CURRENT_DEVICE
    return torch.cuda.device(device)


def scale_of(softmax_scale: float | None, head_dim: int) -> float:
    """Return the factor of the scores, 1 / sqrt(head_dim) by default. Raises UnsupportedCase if it is no number."""
    if softmax_scale is None:
        return head_dim**-0.5
    if not isinstance(softmax_scale, Real) or not -math.inf < softmax_scale < math.inf:
        raise UnsupportedCase(
            f"softmax_scale must be a finite number, or None for 1 / sqrt(head_dim), not {softmax_scale!r}; "
            "of a tensor, pass its .item()."
        )
    return float(softmax_scale)


def given_scale(softmax_scale: float | torch.Tensor | None, head_dim: int) -> float:
    """Return `scale_of` what a caller gave, also a tensor of one number without a gradient, as flash-attn takes it."""
    if isinstance(softmax_scale, torch.Tensor) and softmax_scale.numel() == 1 and not softmax_scale.requires_grad:
        softmax_scale = float(softmax_scale)
    return scale_of(softmax_scale, head_dim)  # type: ignore[arg-type]


def check_inputs(
    name: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    largest: float = MAX_HEAD_DIM,
    *,
    any_width: bool = False,
) -> None:
    """Raise UnsupportedCase, in the implementation's name, if q, k and v do not belong together.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim); largest: head_dim. With
    `any_width`, head_dim_v may be another one. No text is made before one is shown: torch.compile fixes sizes in it.
    """
    if not q.dim() == k.dim() == v.dim() == 4:
        problem = "q, k and v must be (batch, heads, seqlen, head_dim)"
    elif k.shape[:3] != v.shape[:3] or (k.shape[3] != v.shape[3] and not any_width):
        problem = f"k and v must have the same shape{', up to head_dim' if any_width else ''}"
    elif q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        problem = "q and k must agree in batch and head_dim"
    elif not k.shape[1] or q.shape[1] % k.shape[1]:
        problem = "num_heads must be a multiple of num_kv_heads"
    elif not (0 < q.shape[3] <= largest and 0 < v.shape[3] <= largest):
        problem = f"head_dim must be 1 to {largest}"
    elif not q.dtype == k.dtype == v.dtype or q.dtype not in dtypes:
        found = ", ".join(str(x.dtype) for x in (q, k, v))
        problem = f"q, k and v must have one dtype of {', '.join(map(str, dtypes))}, not {found}"
    elif not q.device == k.device == v.device:
        problem = f"q, k and v must be on one device, not {q.device}, {k.device} and {v.device}"
    else:
        return
    raise UnsupportedCase(f"{name} got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: {problem}.")
