"""Level op: one attention call on q, k and v, forward and backward."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels import reference, registry
from kernels.features import Features, head_by_head
from kernels.registry import Attention
from results.records import Case, attention_case
from runner.levels import STRIDE, DifferentiableCalls, Growth, Pass, Place, fill_normal, generator_of, measured
from runner.levels.op_features import options_of, random_tensors

PASSES = (
    Pass("fwd", "forward", ("fwd", "bwd", "fwd_bwd"), ("out",)),
    Pass("bwd", "backward", ("bwd", "fwd_bwd"), ("dq", "dk", "dv")),
)
_WITH_MASK = (PASSES[0], replace(PASSES[1], tensors=(*PASSES[1].tensors, "dmask")))
_OUTLIERS, _OUTLIER_SIZE = 3, 30.0  # number of outlier channels, and their factor
_LARGE = 8.0
_SMALLEST_DIVISOR = {torch.bfloat16: 1e-3, torch.float16: 1e-2, torch.float32: 1e-3}
_FP8_ROWS, _FP8_LARGEST = 128, 448.0  # rows per scale, largest number of e4m3
_SMALL_SEQLEN = 64
_CHANGE = 2.0**-10  # relative change of the scale for its slope


@dataclass(frozen=True)
class OpInputs:
    """q, k, v, the gradient of out, and the options of a call. Packed sequences (varlen) are the rows of a batch of 1.

    `normal`: all are standard normal. `outliers`: in a few channels of k the values of all tokens are 30 times larger,
    as in trained models (KIVI, arXiv 2402.02750, section 3.2, figure 2). `large`: q, k and v are 8 times larger, so
    that one key dominates every softmax. `heavy_tails`: q, k and v are normal numbers divided by uniform ones of at
    least 0.001, so that scores reach 10^5; at least 0.01 in float16, whose largest number is 65504.
    """

    case: Case
    q: torch.Tensor  # (batch, num_heads, seqlen_q, head_dim)
    k: torch.Tensor  # (batch, num_kv_heads, seqlen_k, head_dim)
    v: torch.Tensor  # (batch, num_kv_heads, seqlen_k, head_dim_v)
    dout: torch.Tensor  # (batch, num_heads, seqlen_q, head_dim_v)
    options: dict[str, Any] = field(default_factory=dict)  # keywords of a call: masks, features, bounds

    @property
    def learned(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors whose gradients a backward computes: q, k, v and a mask that requires one."""
        asked: Features | None = self.options.get("features")
        return (self.q, self.k, self.v, *((asked.mask,) if asked and asked.mask_is_learned else ()))

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.q.device

    def fill(self, seed: int) -> None:
        """Write the data of a seed into the tensors; a seed gives the same data on all devices of a type."""
        generator = generator_of(self.case, self.device, seed)
        fill_normal((self.q, self.k, self.v, self.dout, *random_tensors(self.options)), generator)
        with torch.no_grad():
            if self.case.inputs == "outliers":
                self.k[..., :: max(1, self.case.head_dim // _OUTLIERS)] *= _OUTLIER_SIZE
            elif self.case.inputs == "large":
                for tensor in (self.q, self.k, self.v):
                    tensor *= _LARGE
            elif self.case.inputs == "heavy_tails":
                for tensor in (self.q, self.k, self.v):
                    uniform = torch.rand(tensor.shape, generator=generator, device=tensor.device)
                    tensor /= uniform.clamp_(min=_SMALLEST_DIVISOR[tensor.dtype])

    def bytes_of(self, mode: str) -> int:
        """Return the bytes of the inputs of a call in a mode."""
        given = (self.q, self.k, self.v) if mode == "fwd" else (self.q, self.k, self.v, self.dout)
        return sum(tensor.numel() * tensor.element_size() for tensor in given)

    def result_shapes(self) -> list[torch.Size]:
        """Return the shapes of the gradients and of out, each twice."""
        return [tensor.shape for tensor in (*self.learned, self.dout)] * 2


def empty_inputs(case: Case, device: str) -> OpInputs:
    """Return the tensors of a case, uninitialized."""
    dtype = getattr(torch, case.dtype)
    options, batch, longer = options_of(case, device), case.batch, 1
    if "bounds" in options:
        batch, longer = 1, case.batch
    queries, keys = (batch, case.num_heads, case.seqlen_q * longer), (batch, case.num_kv_heads, case.seqlen_k * longer)
    width = case.head_dim_v or case.head_dim
    shapes = ((*queries, case.head_dim), (*keys, case.head_dim), (*keys, width), (*queries, width))
    q, k, v, dout = (torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    return OpInputs(case, q, k, v, dout, options)


def forward(attention: Attention, inputs: OpInputs) -> torch.Tensor:
    """Return out, with its autograd graph if gradients are enabled."""
    return attention(inputs.q, inputs.k, inputs.v, **inputs.options)


def backward(inputs: OpInputs, out: torch.Tensor, *, keep: bool = False) -> tuple[torch.Tensor, ...]:
    """Return dq, dk, dv and perhaps dmask of an out; `keep` retains the graph for another call."""
    return torch.autograd.grad(out, inputs.learned, inputs.dout, retain_graph=keep)


_CALLS = DifferentiableCalls(forward, backward)
call, trial, kept_for_backward = _CALLS.call, _CALLS.trial, _CALLS.kept_for_backward


def oracle(inputs: OpInputs, modes: tuple[str, ...], *, fp8: bool = False) -> dict[str, torch.Tensor]:
    """Return out, and with the mode bwd dq, dk and dv, in float64; with `fp8` of q, k and v rounded to e4m3."""
    qkv = (tensor.detach() for tensor in (inputs.q, inputs.k, inputs.v))
    return _results(inputs, modes, *(map(rounded_to_fp8, qkv) if fp8 else qkv))


def fused_oracle(inputs: OpInputs, modes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return the results of a kernel that rounds only its factors and its results to the dtype; none of features."""
    qkv = (tensor.detach() for tensor in (inputs.q, inputs.k, inputs.v))
    return {} if inputs.case.features else _results(inputs, modes, *qkv, stored_as=inputs.q.dtype)


def _results(inputs: OpInputs, modes: tuple[str, ...], *qkv: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
    options = {**options, **inputs.options}
    if inputs.case.features:
        options = {"features": Features(), **options, "dout": inputs.dout.double() if "bwd" in modes else None}
        q, k, v = (x.double() for x in qkv)
        return head_by_head(q, k, v, **options)
    q, k, v = qkv
    if "bwd" not in modes:
        return {"out": reference.attention(q, k, v, **options).out}
    found = reference.gradients(q, k, v, inputs.dout, **options)
    return {name: getattr(found, name) for name in ("out", "dq", "dk", "dv")}


def harden(inputs: OpInputs, seed: int) -> tuple[OpInputs, Place] | None:
    """Fill in `large` data, which shows clipped scores; return the last key head. None of features and other data."""
    if inputs.case.features or inputs.case.inputs not in (None, "normal"):
        return None
    large = replace(inputs, case=replace(inputs.case, inputs="large"))
    large.fill(seed)
    return _last_head(large)


def slope(inputs: OpInputs) -> tuple[torch.Tensor, Place] | None:
    """Return the change of the last key head's out with the logarithm of the scale; None of a case with features."""
    if inputs.case.features:
        return None
    part, place = _last_head(inputs)
    scales = [float(inputs.case.head_dim) ** -0.5 * (1 + change) for change in (_CHANGE, -_CHANGE)]
    more, less = (replace(part, options={**part.options, "softmax_scale": scale}) for scale in scales)
    return (oracle(more, ("fwd",))["out"] - oracle(less, ("fwd",))["out"]) / (2 * _CHANGE), place


def _last_head(inputs: OpInputs) -> tuple[OpInputs, Place]:
    last, group = slice(-1, None), slice(-(inputs.q.shape[1] // inputs.k.shape[1]), None)
    q, dout = inputs.q[last, group], inputs.dout[last, group]
    return replace(inputs, q=q, k=inputs.k[last, last], v=inputs.v[last, last], dout=dout), (last, group)


@contextlib.contextmanager
def doubled(inputs: OpInputs, mode: str, number: int = 0) -> Iterator[Growth]:
    """Double v, dout or both within the block and yield the growth of the results; tensor versions do not change.

    A result that an implementation cached by the address and version of its inputs does not grow. With another number
    only one column of v grows in a forward, which an implementation that looks at a few numbers of it does not notice.
    """
    of_columns = torch.ones(inputs.v.shape[-1], device=inputs.device)
    some = number * STRIDE % len(of_columns) if mode == "fwd" and number else slice(None)
    of_columns[some] = 2.0
    factors: dict[str, tuple[tuple[torch.Tensor, ...], Growth]] = {
        "fwd": ((inputs.v,), {"out": of_columns}),
        "bwd": ((inputs.dout,), {"dq": 2.0, "dk": 2.0, "dv": 2.0, "dmask": 2.0}),
        "fwd_bwd": ((inputs.v, inputs.dout), {"dq": 4.0, "dk": 4.0, "dv": 2.0, "dmask": 4.0}),
    }
    tensors, growth = factors[mode]
    for tensor in tensors:
        tensor.data[..., some].mul_(2.0)  # `.data` has a separate version counter
    try:
        yield growth
    finally:
        for tensor in tensors:
            tensor.data[..., some].mul_(0.5)


def rounded_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Return x: (batch, heads, rows, columns) rounded to e4m3, with one power of two as scale for each 128 rows."""
    blocks = [block.double() for block in x.split(_FP8_ROWS, dim=2)]
    scales = [(block.abs().amax((2, 3), keepdim=True) / _FP8_LARGEST).log2().ceil().exp2() for block in blocks]
    scales = [torch.where(scale > 0, scale, 1.0) for scale in scales]
    rounded = [(b / s).float().to(torch.float8_e4m3fn).double() * s for b, s in zip(blocks, scales, strict=True)]
    return torch.cat(rounded, dim=2)


def small_case(dtype: str, head_dim: int) -> Case:
    """Return one causal head of 64 tokens."""
    return attention_case(batch=1, num_heads=1, seqlen=_SMALL_SEQLEN, head_dim=head_dim, dtype=dtype, causal=True)


LEVEL = measured(
    globals(),
    implementations=lambda: registry.implementations("op"),
    passes=lambda case: _WITH_MASK if "mask_gradient" in case.asked else PASSES,
    checks_rows=True,
)
