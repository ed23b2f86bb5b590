"""What every attention implementation declares, and the discovery that finds them in `kernels/attention/`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch


class UnsupportedCase(RuntimeError):
    """An implementation was called with what it cannot compute; the message says what is possible."""


class AttentionCase(Protocol):
    """The fields of a case that an implementation may ask about; None where the caller did not say."""

    num_heads: int | None
    num_kv_heads: int | None
    seqlen_q: int | None
    seqlen_k: int | None
    head_dim: int | None
    head_dim_v: int | None
    dtype: str | None
    causal: bool | None
    window_size: int | None


@dataclass(frozen=True)
class Device:
    """Where a case would run."""

    type: str  # "cuda" or "cpu"
    name: str
    compute_capability: tuple[int, int] | None = None
    shared_memory_bytes: int | None = None  # a block's opt-in limit
    memory_bytes: int | None = None


class Attention(Protocol):
    """The callable every implementation provides; gradients flow through autograd.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim);
    returns out like q. `window_size=0` is no window; otherwise a query sees the last `window_size` keys up to
    its own position if causal, and the keys less than `window_size` away if not. Causal masks are aligned
    bottom-right when lengths differ.
    """

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window_size: int = 0,
        softmax_scale: float | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention, and what it can do."""

    name: str
    description: str
    attention: Attention
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    devices: tuple[str, ...] = ("cuda", "cpu")
    max_head_dim: int | None = None
    causal: bool = True
    unequal_causal: bool = True  # causal with seqlen_q != seqlen_k
    window: bool = True
    gqa: bool = True
    backward: bool = True
    min_compute_capability: tuple[int, int] | None = None
    max_compute_capability: tuple[int, int] | None = None
    materialises_scores: bool = False  # memory grows with seqlen squared
    interpreted_on_cpu: bool = False  # runs there only to be checked, never to be timed
    unavailable: str | None = None  # why it cannot run on this machine at all
    optional: bool = False  # another project's package: a sweep that does not name it goes without where it is missing
    refuses: Callable[[AttentionCase, Device], str | None] | None = None  # further rules of its own

    @property
    def tf32(self) -> bool:
        """Whether it rounds the factors of float32 products to TF32; such implementations say so in their name."""
        return self.name.endswith("_tf32")

    @property
    def fp8(self) -> bool:
        """Whether it rounds 16-bit inputs to 8 bits; such implementations say so in their name."""
        return self.name.endswith("_fp8")

    def reason_against(self, case: AttentionCase, device: Device) -> str | None:
        """Why this case cannot run here, in one sentence, or None if it can."""
        return self.unavailable or _declared_reason(self, case, device) or self._own_reason(case, device)

    def _own_reason(self, case: AttentionCase, device: Device) -> str | None:
        return self.refuses(case, device) if self.refuses else None


def _declared_reason(impl: Implementation, case: AttentionCase, device: Device) -> str | None:
    capability, wanted = device.compute_capability, (impl.min_compute_capability, impl.max_compute_capability)
    head_dim = max(case.head_dim or 0, case.head_dim_v or 0)
    checks = (
        (device.type not in impl.devices, f"runs on {' and '.join(impl.devices)}, not on {device.type}"),
        (case.dtype not in (None, *impl.dtypes), f"does not support {case.dtype} (supports {', '.join(impl.dtypes)})"),
        (
            bool(impl.max_head_dim and head_dim > impl.max_head_dim),
            f"does not support head_dim {head_dim} (up to {impl.max_head_dim})",
        ),
        (bool(case.causal and not impl.causal), "does not support causal masks"),
        (
            bool(case.causal and case.seqlen_q != case.seqlen_k and not impl.unequal_causal),
            "does not support causal masks with seqlen_q different from seqlen_k",
        ),
        (bool(case.window_size and not impl.window), "does not support sliding windows"),
        (case.num_heads != case.num_kv_heads and not impl.gqa, "does not support fewer key heads than query heads"),
        (
            bool(capability and wanted[0] and capability < wanted[0]),
            f"needs compute capability {wanted[0]}, this is {capability}",
        ),
        (
            bool(capability and wanted[1] and capability > wanted[1]),
            f"is for compute capability up to {wanted[1]}, this is {capability}",
        ),
    )
    return next((f"{impl.name} {reason}." for failed, reason in checks if failed), None)


@cache
def implementations() -> dict[str, Implementation]:
    """All implementations by name, in the order of their files; a file or package offers a tuple IMPLEMENTATIONS."""
    folder = importlib.import_module("kernels.attention")  # `kernels.attention` is the front door, a function

    found: dict[str, Implementation] = {}
    for module in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        for implementation in importlib.import_module(f"kernels.attention.{module.name}").IMPLEMENTATIONS:
            found[implementation.name] = implementation
    return found


def get(name: str) -> Implementation:
    """The implementation of that name. Raises KeyError naming those that exist."""
    try:
        return implementations()[name]
    except KeyError:
        raise KeyError(f"Unknown implementation {name!r}. Available: {', '.join(implementations())}.") from None


def describe_device(device: torch.device | str) -> Device:
    """What the rules above need to know about a torch device."""
    device = torch.device(device)
    if device.type == "cpu":
        return Device(type="cpu", name="CPU")
    properties = torch.cuda.get_device_properties(device)
    return Device(
        type="cuda",
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        shared_memory_bytes=properties.shared_memory_per_block_optin,
        memory_bytes=properties.total_memory,
    )
