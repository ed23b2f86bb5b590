"""What a call of attention asks for, as rules describe it, and the chip that computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

FORWARD, TRAINING = "forward", "training"  # directions: without gradients; forward and backward
EAGER, CAPTURED = "eager", "captured"  # regimes: host and device time; device time alone
FEW_QUERIES = 16  # query tokens, as when text is generated

# What a factor of two counts, a fifth of it beyond 256, where tiles are full. Fitted on halves of `real_models` by
# `python -m runner.validate tune`. A causal mask and none are as far from each other as twice as many keys. Kernels are
# compiled for powers of two of head_dim, so that 72 is nearer to 96 than to 64.
WEIGHTS = {"head_dim": 0.35, "head_dim_v": 0.35, "padded": 0.3, "seqlen_q": 2.0, "keys": 1.0, "causal": 1.0,
           "group": 0.25, "heads": 0.1}  # fmt: skip
_FULL, _BEYOND = 256, 0.2
REACH = 3.0  # the largest distance at which a measured problem decides
_SIZES = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "window_size")
_CLASS = ("operator", "direction", "regime", "dtype", "kinds", "has_window", "few_queries")


@dataclass(frozen=True)
class Chip:
    """A processor; for a CPU only the name is known."""

    name: str
    compute_capability: tuple[int, int] | None = None
    sms: float | None = None
    shared_memory: float | None = None  # bytes that a block can use
    l2: float | None = None  # bytes

    def distance(self, other: Chip) -> tuple[float, ...]:
        """Return how far another chip is, the compute capability first, then SMs, shared memory and L2."""
        if not self.compute_capability or not other.compute_capability:
            return (math.inf,)
        major, minor = (abs(a - b) for a, b in zip(self.compute_capability, other.compute_capability, strict=True))
        pairs = ((self.sms, other.sms), (self.shared_memory, other.shared_memory), (self.l2, other.l2))
        return major, minor, *(abs(math.log2(a / b)) if a and b else math.inf for a, b in pairs)


@dataclass(frozen=True)
class Problem:
    """One attention call. In a rule, a size or a layout that is None was not stated and matches every call."""

    dtype: str
    mask: str  # full, causal, window, causal window
    batch: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    seqlen_q: int | None = None
    seqlen_k: int | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None
    window_size: int = 0
    features: tuple[str, ...] = ()  # names of kernels.registry.FEATURES
    layout: str | None = None  # contiguous; transposed: heads inside tokens; other
    operator: str = "attention"
    direction: str = FORWARD
    regime: str = EAGER
    chip: str | None = None

    @property
    def few_queries(self) -> bool:
        """Return whether there are only the query tokens of generated text, which other kernels serve."""
        return self.seqlen_q is not None and self.seqlen_q <= FEW_QUERIES

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the features that no size tells; the width of the values is one of WEIGHTS."""
        return tuple(name for name in self.features if name != "head_dim_v")

    @property
    def has_window(self) -> bool:
        """Return whether the mask has a window, for which some implementations make a tensor of all scores."""
        return self.window_size > 0

    @property
    def sizes(self) -> dict[str, float | None]:
        """Return the sizes of WEIGHTS."""
        heads, kv_heads, seen = self.num_heads, self.num_kv_heads, self.window_size or math.inf
        return {name: getattr(self, name) for name in ("head_dim", "head_dim_v", "seqlen_q")} | {
            "padded": self.head_dim and 1 << (self.head_dim - 1).bit_length(),
            "keys": min(self.seqlen_k, seen) if self.seqlen_k else None,
            "causal": 1 + self.mask.startswith("causal"),
            "group": heads / kv_heads if heads and kv_heads else None,
            "heads": self.batch * heads if self.batch and heads else None,
        }

    @property
    def words(self) -> str:
        """Return the problem in a few words."""
        heads = f"{self.num_heads}" if self.num_kv_heads == self.num_heads else f"{self.num_heads}:{self.num_kv_heads}"
        lengths = f"{self.seqlen_q}" if self.seqlen_k == self.seqlen_q else f"{self.seqlen_q}x{self.seqlen_k}"
        mask = f"{self.mask} {self.window_size}" if self.window_size else self.mask
        return f"{self.dtype} {mask}, batch {self.batch}, heads {heads}, seqlen {lengths}, head_dim {self.head_dim}"

    @property
    def case(self) -> Any:
        """Return the fields that implementations read of a case, see `kernels.registry.AttentionCase`."""
        level = "op" if self.operator == "attention" else self.operator
        cache = next((name.removeprefix("cache ") for name in self.features if name.startswith("cache ")), None)
        own = {"page_size": int("paged" in self.features), "cache_dtype": cache, "lengths": None}
        own["latent_dim"] = "latent" in self.features and self.head_dim_v
        asked = {"asked": self.features if level == "op" else (), "causal": self.mask.startswith("causal")}
        return SimpleNamespace(**vars(self) | own | asked, level=level)

    def distance(self, measured: Problem) -> float | None:
        """Return the doublings between this and a measured problem; None if of another class or out of REACH."""
        if any(getattr(self, name) != getattr(measured, name) for name in _CLASS):
            return None
        if measured.layout not in (None, self.layout):
            return None
        sizes = measured.sizes
        known = {name: value for name, value in self.sizes.items() if value and sizes[name]}
        found = sum(WEIGHTS[name] * abs(_doublings(value) - _doublings(sizes[name])) for name, value in known.items())
        return found if found <= REACH else None


def of_tensors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, direction: str = FORWARD
) -> Problem | None:
    """Return the problem of q, k and v (batch, heads, seqlen, head_dim); None if they do not belong together."""
    if not q.dim() == k.dim() == v.dim() == 4 or not (q.numel() and k.numel() and v.numel()):
        return None
    (batch, heads, seqlen_q, head_dim), (_, kv_heads, seqlen_k, _) = q.shape, k.shape
    if not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        return None
    if tuple(k.shape) != (batch, kv_heads, seqlen_k, head_dim) or v.shape[:3] != k.shape[:3] or heads % kv_heads:
        return None
    layouts = {_layout(x) for x in (q, k, v)}
    return Problem(
        str(q.dtype).removeprefix("torch."), mask_of(causal, window_size), batch, heads, kv_heads, seqlen_q, seqlen_k,
        head_dim, v.shape[3], window_size, ("head_dim_v",) if v.shape[3] != head_dim else (),
        layouts.pop() if len(layouts) == 1 else "other", direction=direction, chip=chip_of(q.device).name,
    )  # fmt: skip


def of_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int, causal: bool, window_size: int, direction: str
) -> Problem:
    """Return the problem of packed sequences, rows of (total, heads, head_dim): its lengths are their means."""
    mean_q, mean_k = (max(1, round(x.shape[0] / max(1, sequences))) for x in (q, k))
    features = (*(("head_dim_v",) if v.shape[2] != q.shape[2] else ()), "varlen")
    return Problem(
        str(q.dtype).removeprefix("torch."), mask_of(causal, window_size), sequences, q.shape[1], k.shape[1],
        mean_q, mean_k, q.shape[2], v.shape[2], window_size, features,
        direction=direction, chip=chip_of(q.device).name,
    )  # fmt: skip


def of_cache(
    q: torch.Tensor, cache: torch.Tensor, sizes: Mapping[str, Any], causal: bool, window_size: int, **own: bool
) -> Problem:
    """Return the problem of queries over a cache; `sizes`: batch, num_heads and so on; own: "paged" and "latent".

    Device time alone decides it: all kernels that can read the lengths where they are cost the host the same.
    """
    dtype, held = (str(x.dtype).removeprefix("torch.") for x in (q, cache))
    features = (*(name for name, there in own.items() if there), *([f"cache {held}"] if held != dtype else []))
    return Problem(
        dtype, mask_of(causal and sizes["seqlen_q"] > 1, window_size), **sizes, window_size=window_size,
        features=features, operator="decode", regime=CAPTURED, chip=chip_of(q.device).name,
    )  # fmt: skip


def of_case(case: Any, direction: str, regime: str, chip: str | None = None) -> Problem:
    """Return the problem of a case of level op, which names no layout."""
    head_dim_v = case.head_dim_v or case.head_dim
    return Problem(
        case.dtype, mask_of(bool(case.causal), case.window_size or 0), case.batch, case.num_heads, case.num_kv_heads,
        case.seqlen_q, case.seqlen_k, case.head_dim, head_dim_v, case.window_size or 0,
        (*(["head_dim_v"] if head_dim_v != case.head_dim else []), *(case.asked or ())), direction=direction,
        regime=regime, chip=chip,
    )  # fmt: skip


def of_record(record: Mapping[str, Any]) -> Problem:
    """Return the problem of a rule's record. Raises TypeError if a field is missing, unknown or of the wrong type."""
    problem = Problem(**{**record, "features": tuple(record.get("features") or ())})
    for name in _SIZES:
        value = getattr(problem, name)
        if value is not None and (type(value) is not int or value < (name != "window_size")):
            raise TypeError(f"{name} must be a positive integer, not {value!r}")
    return problem


def mask_of(causal: bool, window_size: int) -> str:
    """Return the kind of a mask."""
    return " ".join(word for word, there in (("causal", causal), ("window", window_size)) if there) or "full"


@cache
def chip_of(device: torch.device) -> Chip:
    """Return the chip of a device."""
    if device.type != "cuda":
        return Chip(device.type.upper())
    found = torch.cuda.get_device_properties(device)
    capability = (found.major, found.minor)
    shared = found.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in PyTorch's stubs
    return Chip(found.name, capability, found.multi_processor_count, shared, found.L2_cache_size)


def _layout(x: torch.Tensor) -> str:
    if x.is_contiguous():
        return "contiguous"
    return "transposed" if x.transpose(1, 2).is_contiguous() else "other"


def _doublings(size: float) -> float:
    return math.log2(min(size, _FULL)) + _BEYOND * math.log2(max(size, _FULL) / _FULL)
