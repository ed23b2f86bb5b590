"""Level op: one attention call on q, k and v, forward and backward."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch

from kernels import reference, registry
from kernels.features import Features, SequenceBounds, block_mask, head_by_head
from kernels.registry import Attention
from results.features import lengths_of, listed_blocks, parsed
from results.records import Case, attention_case, case_to_json
from runner.levels import STRIDE, DifferentiableCalls, Growth, Pass, Place, fill_normal, generator_of, measured

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
_SEED = 1  # of dropout and of listed blocks; every implementation drops and lists the same ones
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


def options_of(case: Case, device: str) -> dict[str, Any]:
    """Return the keyword arguments of a call besides q, k and v; sinks and biases are uninitialized.

    `features` and `bounds` are left out where the case has none. Masks and lengths depend on the case alone, not on the
    seed of the data, so that an implementation may prepare them once.
    """
    asked, window = parsed(case.features), case.window_size or 0
    found: dict[str, Any] = {"causal": bool(case.causal), "window_size": window}
    if "ahead" in asked:
        found["window_size"] = (window - 1, int(asked["ahead"]))
    lengths = lengths_of(case_to_json(case)) if asked else ()
    fields = {name: value for name in asked for name, value in _fields(name, asked[name], case, lengths, device)}
    if fields:
        found["features"] = Features(**fields)
    if "varlen" in asked:
        found["bounds"] = _bounds(lengths[0], device)
    return found


def random_tensors(options: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a call's options that hold random numbers."""
    asked: Features | None = options.get("features")
    tensors = (asked.sinks, asked.mask) if asked else ()
    return tuple(x for x in tensors if x is not None and x.is_floating_point())


def _fields(name: str, value: str, case: Case, lengths: Sequence[Sequence[int]], device: str) -> list[tuple[str, Any]]:
    """Return the fields of Features of one feature."""
    heads, seqlen = int(case.num_heads or 1), int(case.seqlen_k or 1)
    dtype = getattr(torch, str(case.dtype))
    if name == "softcap":
        return [("softcap", float(value))]
    if name == "dropout":
        return [("dropout_p", float(value)), ("dropout_seed", torch.tensor(_SEED, device=device))]
    if name == "sinks":
        return [("sinks", torch.empty(heads, dtype=dtype, device=device))]
    if name == "alibi":
        return [("alibi_slopes", torch.tensor(slopes(heads), device=device))]
    if name == "mask" and value == "padding":
        real = torch.tensor(lengths, device=device) > torch.arange(seqlen, device=device)
        return [("mask", real[:, None, None])]
    if name == "mask":
        bias = torch.empty(1, heads, int(case.seqlen_q or 1), seqlen, dtype=dtype, device=device)
        return [("mask", bias.requires_grad_("bias_gradient" in parsed(case.features)))]
    if name == "prefix":
        return [("prefix_lengths", torch.tensor(lengths, device=device)[:, 0])]
    if name == "blocks":
        return [("block_mask", block_mask(_listed(case).to(device)))]
    if name == "documents":
        rows = [[at for at, length in enumerate(row) for _ in range(length)] for row in lengths]
        return [("document_ids", torch.tensor(rows, device=device))]
    return []


def _listed(case: Case) -> torch.Tensor:
    """Return (1, num_heads, blocks, blocks): for each query block its own block and others drawn at random."""
    _, counts = listed_blocks(case_to_json(case)) or (0, [])
    blocks = len(counts)
    order = torch.rand(int(case.num_heads or 1), blocks, blocks, generator=torch.Generator().manual_seed(_SEED))
    if case.causal:
        order.masked_fill_(torch.ones(blocks, blocks, dtype=torch.bool).triu(1), 2.0)
    order.diagonal(dim1=1, dim2=2).fill_(-1.0)
    return (order.argsort(2).argsort(2) < torch.tensor(counts)[:, None])[None]


def _bounds(lengths: Sequence[int], device: str) -> SequenceBounds:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return SequenceBounds(starts[:-1], starts[1:], starts[:-1], starts[1:], longest, longest, packed=True)


def slopes(heads: int) -> list[float]:
    """Return ALiBi's slope of each head (arXiv 2108.12409): 2^(-8 i / n), interleaved where n is no power of two."""
    n = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    return found + [2.0 ** (-4 * (2 * i + 1) / n) for i in range(heads - n)]


LEVEL = measured(
    globals(),
    implementations=lambda: registry.implementations("op"),
    passes=lambda case: _WITH_MASK if "mask_gradient" in case.asked else PASSES,
    checks_rows=True,
)
