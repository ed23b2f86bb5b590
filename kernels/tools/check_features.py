"""Run every feature that an implementation declares and compare it with the float64 oracle, forward and backward.

    python -m kernels.tools.check features [--device cuda] [--processes 8] [NAME ...]

The tolerance is twice the error of the definition (`kernels.features.attention`) in the same dtype, plus a rounding
floor. The printed number is the error divided by the tolerance. An implementation in TF32 is compared with the
definition in TF32. Tests run the same cases, small ones in Triton's interpreter.
`python -m runner.validate.features` runs the same checks and records the result.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

import torch

from .. import registry
from ..features import BlockMask, Features, SequenceBounds, Window, block_mask
from ..features import attention as define
from ..reference import tf32_products
from ..registry import FEATURES, Implementation

NAMES = ("out", "dq", "dk", "dv", "dsinks or dmask")
_TF32_FLOOR = 2.0**-9  # two units: tensor cores cut the factors' low bits off (PTX ISA, mma .tf32)
Attend = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class FeatureCase:
    """A call with a feature, on the CPU until it is run."""

    feature: str  # a name of kernels.registry.FEATURES
    shape: tuple[int, ...]  # batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v
    causal: bool = False
    window_size: Window = 0
    asked: dict[str, Any] = field(default_factory=dict)  # fields of Features
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # lengths of packed sequences in q and in k


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    """Return standard normal numbers that depend on the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def blocks(batch: int, seqlen: int, size: int) -> torch.Tensor:
    """Return document ids (batch, seqlen) of documents of one size."""
    return torch.arange(seqlen).div(size, rounding_mode="floor").expand(batch, seqlen)


def cases(times: int = 1, head_dim: int = 16, lengths: tuple[int, int] = (17, 20)) -> dict[str, FeatureCase]:
    """Return by name at least one case of every feature; `lengths`: those of queries and keys, `times` as long."""
    q, k, d = lengths[0] * times, lengths[1] * times, head_dim
    seen = numbers(1, 2, q, k) > 0
    seen[:, :, 3] = False  # a query that sees no key
    of_heads, of_batches = numbers(2).abs(), numbers(2, 2).abs()
    padding = torch.ones(4, 1, 1, k, dtype=torch.bool)  # behind, on both sides with a hole, in front; nothing is seen
    padding[0, ..., 13 * times :] = padding[1, ..., : 2 * times] = padding[1, ..., 9] = padding[1, ..., q:] = False
    padding[2, ..., : 7 * times] = padding[3] = False
    added = numbers(2, 1, k, q).mT.log().nan_to_num(-torch.inf)  # -inf for half of the keys
    added[:, :, 3] = -torch.inf  # a query that sees no key
    prefixes, packed = torch.tensor([0, k // 2 - 1, 5 * k]), ((3 * times, 0, k, 7 * times), (5 * times, 10, q, 0))
    rows, sinks = tuple(map(sum, packed)), torch.tensor([0.5, -torch.inf])  # the second head has no sink
    listed = numbers(2, 2, -(-4 * q // 64), -(-7 * k // 64)) > 0
    listed[0, 1, 0] = listed[:, 0, :, 1] = False  # queries without a key, and keys without a query
    of_blocks, of_all = block_mask(listed[:, :1]), block_mask(listed[:1])
    several = {"softcap": 2.0, "sinks": numbers(2), "alibi_slopes": of_heads, "dropout_p": 0.2}
    kept, bent = {"dropout_p": 0.3, "dropout_seed": (7 << 32) + 5}, several | {"dropout_p": 0.0}
    return {
        "narrower values": FeatureCase("head_dim_v", (1, 2, 2, q, k, d + 8, d - 7), True),
        "192 and 128": FeatureCase("head_dim_v", (1, 1, 1, q, q, 192, 128), True),
        "softcap": FeatureCase("softcap", (1, 2, 1, q, k, d, d), asked={"softcap": 3.0}),
        "slopes of heads": FeatureCase("alibi_slopes", (1, 2, 1, q, k, d, d), True, asked={"alibi_slopes": of_heads}),
        "slopes of batches": FeatureCase("alibi_slopes", (2, 2, 2, k, q, d, d), asked={"alibi_slopes": of_batches}),
        "sinks and rows without a key": FeatureCase("sinks", (1, 2, 1, k + q, q, d, d), True, asked={"sinks": sinks}),
        "boolean mask": FeatureCase("mask", (1, 2, 1, q, k, d, d), asked={"mask": seen}),
        "boolean mask of keys": FeatureCase("mask", (1, 2, 1, q, k, d, d), True, asked={"mask": seen[:, :1, :1]}),
        "padding mask": FeatureCase("mask", (4, 2, 1, q, k, d, d), asked={"mask": padding}),
        "padding mask in a window": FeatureCase("mask", (4, 2, 1, q, k, d, d), True, 9 * times, {"mask": padding}),
        "additive mask": FeatureCase("mask", (2, 2, 2, q, k, d, d), asked={"mask": added}),
        "learned mask": FeatureCase("mask_gradient", (2, 2, 2, q, k, d, d), asked={"mask": numbers(1, 2, q, k)}),
        "prefixes": FeatureCase("prefix_lengths", (3, 1, 1, k, k, d, d), True, asked={"prefix_lengths": prefixes}),
        "documents": FeatureCase("document_ids", (1, 2, 1, q, k, d, d), True, asked={"document_ids": blocks(1, k, 7)}),
        "blocks": FeatureCase("block_mask", (2, 1, 1, 4 * q, 7 * k, d, d), asked={"block_mask": of_blocks}),
        "blocks, causal": FeatureCase("block_mask", (2, 2, 1, 4 * q, 7 * k, d, d), True, asked={"block_mask": of_all}),
        "dropout": FeatureCase("dropout", (2, 2, 1, q, k, d, d), True, asked=kept),
        "packed": FeatureCase("varlen", (1, 2, 1, *rows, d, d), True, lengths=packed),
        "two widths": FeatureCase("two_windows", (1, 2, 1, q, k, d, d), window_size=(5, 2)),
        "several, packed": FeatureCase("softcap", (1, 2, 1, *rows, d, d), True, 0, bent, packed),
        "several, in a window": FeatureCase("sinks", (1, 2, 1, k, k, d, d), True, 9, several),
        "several, narrower values": FeatureCase("mask", (1, 2, 1, q, k, d, d - 5), False, 5, several | {"mask": seen}),
    }


def worst_error(
    case: FeatureCase, attention: Attend, dtype: torch.dtype, device: str, *, tf32: bool = False
) -> tuple[float, str]:
    """Return the largest error of out and gradients over what is allowed, at most 1 if right, and of which it is.

    `attention` is called as that of an implementation, with `features` and `bounds`; `tf32`: it rounds float32 to that.
    """
    tensors = inputs(case, dtype, device)
    exact = results(case, define, *tensors, dtype=torch.float64)
    with tf32_products(allowed=tf32):
        plain = results(case, define, *tensors)
    found = results(case, attention, *tensors)
    floor = (_TF32_FLOOR if tf32 else 4 * torch.finfo(dtype).eps) * max(x.abs().max().item() for x in exact)
    ratios = [
        ((a - c).abs().max() / (2 * (b - c).abs().max() + floor)).nan_to_num(nan=float("inf")).item()
        for a, b, c in zip(found, plain, exact, strict=True)
    ]
    worst = max(ratios)
    return worst, NAMES[ratios.index(worst)]


def inputs(case: FeatureCase, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Return random q, k, v and dout of a call."""
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v = case.shape
    sizes = ((seqlen_q, heads, head_dim), (seqlen_k, kv_heads, head_dim), (seqlen_k, kv_heads, head_dim_v))
    tensors = [numbers(batch, *size, seed=i).transpose(1, 2) for i, size in enumerate(sizes)]
    dout = numbers(batch, heads, seqlen_q, head_dim_v, seed=9)
    return [x.to(device, dtype) for x in (*tensors, dout)]


def results(
    case: FeatureCase,
    attend: Attend,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Return out, dq, dk, dv and the gradient of sinks or a learned mask; `dtype`: to convert the inputs to."""
    device, to = q.device, dtype or q.dtype
    tensors = [x.to(to).detach().requires_grad_() for x in (q, k, v)]
    asked: dict[str, Any] = {
        name: x.to(device) if isinstance(x, torch.Tensor | BlockMask) else x for name, x in case.asked.items()
    }
    found = Features(**asked)
    learned = "sinks" if found.sinks is not None else "mask" if case.feature == "mask_gradient" else ""
    if learned:
        tensors.append(getattr(found, learned).to(to).requires_grad_())
        more: dict[str, Any] = {learned: tensors[-1]}
        found = replace(found, **more)
    options: dict[str, Any] = {"features": found} if case.asked else {}
    if case.lengths:
        options["bounds"] = _bounds(case.lengths, device)
    out = attend(*tensors[:3], causal=case.causal, window_size=case.window_size, **options)
    return [x.detach().double() for x in (out, *torch.autograd.grad(out, tensors, dout.to(to)))]


def _bounds(lengths: tuple[tuple[int, ...], tuple[int, ...]], device: torch.device) -> SequenceBounds:
    of_q, of_k = (torch.tensor([0, *x], device=device).cumsum(0).int() for x in lengths)
    longest_q, longest_k = (max(x) for x in lengths)
    return SequenceBounds(of_q[:-1], of_q[1:], of_k[:-1], of_k[1:], longest_q, longest_k, packed=True)


def check(implementation: Implementation, case: FeatureCase, device: str, dtype: torch.dtype) -> float | None:
    """Return the largest error over what is allowed; None for what it does not declare, or refuses for its sizes."""
    if not declares(implementation, case) or refuses(implementation, case, device, dtype):
        return None
    tf32 = implementation.precision == "tf32"
    return worst_error(case, implementation.attention, dtype, device, tf32=tf32)[0]


def declares(implementation: Implementation, case: FeatureCase) -> bool:
    """Return whether an implementation declares all features of a case."""
    return {case.feature, *Features(**case.asked).asked} <= set(implementation.features)


def refuses(implementation: Implementation, case: FeatureCase, device: str, dtype: torch.dtype) -> bool:
    """Return whether an implementation does not take a case's sizes, features, masks or dtype."""
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v = case.shape
    sizes = ((heads, seqlen_q, head_dim), (kv_heads, seqlen_k, head_dim), (kv_heads, seqlen_k, head_dim_v))
    q, k, v = (torch.empty(batch, *size, dtype=dtype, device=device) for size in sizes)
    asked: dict[str, Any] = {"causal": case.causal, "window_size": case.window_size}
    asked["asked"] = case.feature, *Features(**case.asked).asked
    return registry.reason_against_tensors(implementation.name, q, k, v, **asked) is not None


@dataclass(frozen=True)
class FeatureCheck:
    """A case of a feature that one implementation computes in one dtype."""

    implementation: str
    case: str  # a name of `cases`
    dtype: str
    head_dim: int
    device: str

    def run(self) -> tuple[float | None, str]:
        """Return the error over what is allowed, as `check`, and why there is none if it could not be computed."""
        case = cases(16, self.head_dim)[self.case]
        try:
            return check(registry.get(self.implementation), case, self.device, getattr(torch, self.dtype)), ""
        except Exception as error:  # a kernel that does not compile or start is a finding; the other checks go on
            return float("inf"), f"{type(error).__name__}: {str(error)[:200]}"


def checks(names: Sequence[str], dtype: str | None, head_dim: int, device: str) -> list[FeatureCheck]:
    """Return what there is to check of implementations, in one dtype or all that they take."""
    every = cases(16, head_dim)
    return [
        FeatureCheck(name, case, each, head_dim, device)
        for name in names
        for each in reversed(registry.get(name).dtypes)  # float32 compiles longest
        for case, of_case in every.items()
        if dtype in (None, each) and declares(registry.get(name), of_case)
    ]


def report(names: Sequence[str], asked: Sequence[FeatureCheck], processes: int = 1) -> dict[str, dict[str, Any]]:
    """Return by implementation and feature the reason against it, or the largest error over what is allowed.

    That is by dtype, None where a check did not end, and comes with what went wrong: {"errors", "why"}. Features whose
    every case was refused for its sizes are left out. Prints a line a check.
    """
    found = {name: _refusals(name) for name in names}
    if processes > 1:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            _add(found, zip(asked, pool.map(FeatureCheck.run, asked), strict=True))
    else:
        _add(found, ((each, each.run()) for each in asked))
    return found


def _refusals(name: str) -> dict[str, Any]:
    implementation = registry.get(name)
    reasons = {feature: implementation.reason_against_features((feature,)) for feature in FEATURES}
    return {feature: reason for feature, reason in reasons.items() if reason}


def _add(found: dict[str, dict[str, Any]], done: Iterable[tuple[FeatureCheck, tuple[float | None, str]]]) -> None:
    """Add what checks gave to a report, and print it."""
    for each, (ratio, why) in done:
        if ratio is None:
            continue
        wrong = "" if ratio <= 1 else f" WRONG {why}"
        print(f"{each.implementation:16} {each.dtype:9} {each.case:30} {ratio:5.2f}{wrong}", flush=True)
        feature = cases()[each.case].feature
        entry = found[each.implementation].setdefault(feature, {"errors": {}, "why": None})
        before = entry["errors"].get(each.dtype, 0.0)
        ended = before is not None and math.isfinite(ratio)
        entry["errors"][each.dtype] = max(before, round(ratio, 3)) if ended else None
        entry["why"] = entry["why"] or why or None


def is_right(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether every feature of a report has errors within what is allowed."""
    entries = [entry for of_name in found.values() for entry in of_name.values() if not isinstance(entry, str)]
    return all(error is not None and error <= 1 for entry in entries for error in entry["errors"].values())


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add to a command line what `chosen_report` reads."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="implementations; all if none is named")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="one of those that an implementation takes; all if none is named")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1, help="at a time, as kernels take seconds to compile")


def chosen_report(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Check what a command line chose."""
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("No CUDA device here: features are checked on a GPU. The tests check small cases on a CPU.")
    names = options.names or list(registry.implementations())
    return report(names, checks(names, options.dtype, options.head_dim, options.device), options.processes)
