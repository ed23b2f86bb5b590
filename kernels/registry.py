"""The declarations of implementations, and their discovery in a folder of `kernels` for each level."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from .decode.step import DecodeStep


class UnsupportedCase(RuntimeError):
    """An implementation does not support a call; the message says what is possible."""


class AttentionCase(Protocol):
    """The fields of a case that an implementation may read; None where the caller did not specify one."""

    level: str | None
    num_heads: int | None
    num_kv_heads: int | None
    seqlen_q: int | None  # at level decode the query tokens
    seqlen_k: int | None  # at level decode the context
    head_dim: int | None
    head_dim_v: int | None
    dtype: str | None
    causal: bool | None
    window_size: int | None
    page_size: int | None
    latent_dim: int | None
    cache_dtype: str | None  # dtype of the cache, if it differs from dtype
    lengths: str | None  # uniform, ragged, or a batch spec: sequences with different numbers of query tokens
    asked: tuple[str, ...] | None  # names of FEATURES that the case needs, beyond head_dim_v


@dataclass(frozen=True)
class Device:
    """The device on which a case would run."""

    type: str  # "cuda" or "cpu"
    name: str
    compute_capability: tuple[int, int] | None = None
    shared_memory_bytes: int | None = None  # opt-in limit of a block
    memory_bytes: int | None = None


class Attention(Protocol):
    """The callable of an implementation at level op; gradients flow through autograd.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim);
    returns out like q. `window_size=0` is no window; otherwise a query sees the last `window_size` keys up to
    its own position if causal, and the keys less than `window_size` away if not. Causal masks are aligned
    bottom-right when lengths differ. An implementation that declares features also takes `features` and `bounds`, a
    `kernels.features.Features` and a `SequenceBounds`, and with "two_windows" a window_size of two numbers.
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


class DecodeAttention(Protocol):
    """The callable of an implementation at level decode: it prepares one step and returns it as a function.

    The preparation, such as work on lengths and page tables, is not timed, because a model does it once for all layers;
    `Implementation.planned` describes it. The tensors of the step keep their addresses, and all but the lengths and the
    page table hold other data at each call. The function returns out like q, head_dim_v wide, without gradients.
    """

    def __call__(self, step: DecodeStep) -> Callable[[], torch.Tensor]: ...


@cache
def declarations() -> dict[str, dict[str, Any]]:
    """Return the tables of implementations.toml."""
    return tomllib.loads(Path(__file__).with_name("implementations.toml").read_text())


FEATURES: Mapping[str, str] = declarations()["features"]  # name of a feature -> its words in a refusal
_BOOLEANS = ("causal", "window", "gqa", "backward", "paged", "ragged", "mixed", "quantised", "latent")
CAPABILITIES = (*_BOOLEANS, *FEATURES)  # a reader may select implementations by them
REFUSED: Mapping[str, Callable[[AttentionCase], object]] = {  # cases that `Implementation.refused` may name
    "keys": lambda case: not case.latent_dim,
    "contiguous": lambda case: not case.page_size,
    "ragged_contiguous": lambda case: case.lengths == "ragged" and not case.page_size,
    "pages_not_of_64": lambda case: case.page_size != 64,
    "not_packed": lambda case: "varlen" not in (case.asked or ()),
    "window_in_packed": lambda case: case.window_size and "varlen" in (case.asked or ()),
    "window_to_both_sides": lambda case: case.window_size and not case.causal,
    "window_over_pages": lambda case: case.window_size and case.page_size,
    "window_over_latents": lambda case: case.window_size and case.latent_dim,
    "latents_in_another_dtype": lambda case: case.latent_dim and case.cache_dtype not in (None, case.dtype),
}
_RECORDED = (  # fields that a run records
    "level", "family", "precision", "memory", "colour", "causal", "window", "gqa", "backward", "paged",
)  # fmt: skip


@dataclass(frozen=True)
class Implementation:
    """One way to compute attention at a level, with its capabilities. `level` and `name` are its key."""

    name: str
    description: str
    attention: Any  # an Attention; at level decode a DecodeAttention, at level model what kernels.models makes of both
    level: str = "op"  # one of FOLDERS or AROUND
    family: str = "own"  # pytorch; own: this repository; peer: another project's package, which may be missing
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    devices: tuple[str, ...] = ("cuda", "cpu")
    precision: str | None = None  # tf32 or fp8, if factors are rounded to less than the case's dtype
    max_head_dim: int | None = None  # of what is no latent
    head_dim_multiple: int = 1
    page_multiple: int = 1  # tokens
    latents: tuple[int, int] | None = None  # the only latent and rotary dimensions that it takes
    causal: bool = True
    no_causal: str | None = None  # why it takes no causal mask, and what to use
    unequal_causal: bool = True  # causal with seqlen_q != seqlen_k
    window: bool = True
    gqa: bool = True
    backward: bool = True
    paged: bool = False
    ragged: bool = False  # takes sequences of different lengths in a batch
    mixed: bool = False  # takes sequences with different numbers of query tokens in a batch
    quantised: bool = False  # caches in e4m3 with a scale for each head
    latent: bool = False  # caches of latents
    features: tuple[str, ...] = ()  # names of FEATURES that it computes, see kernels.features
    planned: str | None = None  # the preparation of a decoding step, which is not timed; None: there is none
    min_compute_capability: tuple[int, int] | None = None
    max_compute_capability: tuple[int, int] | None = None
    memory: Mapping[str, Any] | None = None  # fields of results.levels.memory.MemoryLaw; None: unknown
    colour: str | None = None  # in charts, #rrggbb; None: the next spare one
    compiled: str | None = None  # ahead: can be compiled before a run; first_call: cannot; None: is a binary
    interpreted_on_cpu: bool = False  # runs on a CPU to be checked, never to be timed
    model_families: tuple[str, ...] = ()  # at level model: model_types of transformers that it takes; (): any
    unavailable: str | None = None  # why it cannot run on this machine
    refused: Mapping[str, str] | None = None  # names of REFUSED with the rest of a sentence
    refuses: Callable[[AttentionCase, Device], str | None] | None = None  # further rules

    @property
    def materialises_scores(self) -> bool:
        """Return whether memory grows with the square of seqlen."""
        return bool(self.memory) and self.memory.get("growth") == "matrix"

    @property
    def fused(self) -> bool:
        """Return whether it is known to keep the scores out of memory, in the precision of its accumulators."""
        return bool(self.memory) and self.memory.get("growth") == "linear"

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts that a run records of an implementation, ready for JSON."""
        names = (*_RECORDED, *(("planned",) if self.planned else ()))
        features = {"features": list(self.features)} if self.features else {}
        return {name: getattr(self, name) for name in names} | features

    def reason_against(self, case: AttentionCase, device: Device) -> str | None:
        """Return why this case cannot run here, in one sentence, or None if it can."""
        declared = next((f"{self.name} {reason}." for reason in _declared_reasons(self, case, device)), None)
        return self.unavailable or declared or (self.refuses(case, device) if self.refuses else None)

    def declares(self, capability: str) -> bool:
        """Return whether it has a capability, a name of CAPABILITIES."""
        return capability in self.features or (capability in _BOOLEANS and getattr(self, capability))

    def reason_against_features(self, names: Iterable[str]) -> str | None:
        """Return why features of these names cannot be computed, in one sentence, or None if they can."""
        missing = [FEATURES[name] for name in names if name not in self.features]
        return f"{self.name} does not support {' or '.join(missing)}." if missing else None


def _declared_reasons(impl: Implementation, case: AttentionCase, device: Device) -> Iterator[str]:
    capability, least, most = device.compute_capability, impl.min_compute_capability, impl.max_compute_capability
    head_dim = max(case.head_dim or 0, case.head_dim_v or 0)
    if case.level not in (None, impl.level):
        yield f"computes cases of level {impl.level}, not of level {case.level}"
    if device.type not in impl.devices:
        yield f"runs on {' and '.join(impl.devices)}, not on {device.type}"
    if case.dtype not in (None, *impl.dtypes):
        yield f"does not support {case.dtype} (supports {', '.join(impl.dtypes)})"
    if impl.max_head_dim and head_dim > impl.max_head_dim and not (case.latent_dim and impl.latents):
        yield f"does not support head_dim {head_dim} (up to {impl.max_head_dim})"
    if (case.head_dim or 0) % impl.head_dim_multiple:
        yield f"needs a head_dim divisible by {impl.head_dim_multiple}, not {case.head_dim}"
    if (case.page_size or 0) % impl.page_multiple:
        yield f"takes pages of a multiple of {impl.page_multiple} tokens, not of {case.page_size}"
    if case.latent_dim and impl.latents and impl.latents != (case.latent_dim, case.head_dim - case.latent_dim):
        yield "takes only latents of {} and {} rotary dimensions".format(*impl.latents)
    widths_differ = impl.level == "op" and case.head_dim_v not in (None, case.head_dim)
    missing = [*(("head_dim_v",) if widths_differ else ()), *(case.asked or ())]
    if missing := [FEATURES[name] for name in dict.fromkeys(missing) if name not in impl.features]:
        yield f"does not support {' or '.join(missing)}"
    if case.causal and not impl.causal:
        yield ": ".join(("does not support causal masks", *filter(None, (impl.no_causal,))))
    if case.causal and case.seqlen_q != case.seqlen_k and not impl.unequal_causal:
        yield "does not support causal masks with seqlen_q different from seqlen_k"
    mixed = case.lengths not in (None, "uniform", "ragged")
    lacking = (
        (case.window_size, impl.window, "sliding windows"),
        (case.num_heads != case.num_kv_heads, impl.gqa, "fewer key heads than query heads"),
        (case.page_size, impl.paged, "paged caches"),
        (case.latent_dim and impl.level not in AROUND, impl.latent, "latent caches"),
        (case.lengths == "ragged", impl.ragged, "sequences of different lengths"),
        (mixed, impl.mixed, "batches with different numbers of query tokens"),
        (case.cache_dtype not in (None, case.dtype), impl.quantised, f"caches in {case.cache_dtype}"),
    )
    yield from (f"does not support {words}" for asked, has, words in lacking if asked and not has)
    yield from (words for name, words in (impl.refused or {}).items() if REFUSED[name](case))
    if capability and least and capability < least:
        yield f"needs compute capability {least}, this is {capability}"
    if capability and most and capability > most:
        yield f"is for compute capability up to {most}, this is {capability}"


def declare(name: str, attention: Any, level: str = "op", **more: Any) -> Implementation:
    """Return the implementation of this name and level with its fields of implementations.toml and `more`."""
    found = {key: tuple(x) if isinstance(x, list) else x for key, x in declarations()[level][name].items()}
    return Implementation(name=name, attention=attention, level=level, **found | more)


FOLDERS = {"op": "attention", "decode": "decode"}  # level -> folder within `kernels`


def _layers() -> list[Implementation]:
    """Return the implementations of level op except FP8 ones, which have no layer oracle: it would round q, k and v."""
    return [replace(each, level="layer") for each in _found("op").values() if each.precision != "fp8"]


def _models() -> list[Implementation]:
    from . import models

    return models.implementations(_found("op"), _found("decode"))


AROUND = {"layer": _layers, "model": _models}  # levels whose implementations are those of other levels, used inside


def implementations(level: str = "op") -> dict[str, Implementation]:
    """Return all implementations of a level by name, in the order of their files; for a layer, those of its attention.

    A file or package of the level's folder defines a tuple IMPLEMENTATIONS, mostly by `declare`. One without it holds
    kernels for others.
    Raises KeyError with the names of the levels.
    """
    if level not in (*FOLDERS, *AROUND):
        raise KeyError(f"No implementations of level {level!r}. Levels: {', '.join((*FOLDERS, *AROUND))}.")
    return _found(level)


class _Found(dict[str, Implementation]):
    """Implementations by name, and forms of them (`kernels.forms`), which are found by name and not listed."""

    def __missing__(self, name: str) -> Implementation:
        from . import forms

        return forms.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


@cache
def _found(level: str) -> dict[str, Implementation]:
    if level in AROUND:
        return {each.name: each for each in AROUND[level]()}
    package = f"{__package__}.{FOLDERS[level]}"
    folder = importlib.import_module(package)  # the attribute `attention` of this package is the dispatching function
    found = _Found()
    for module in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        for implementation in getattr(importlib.import_module(f"{package}.{module.name}"), "IMPLEMENTATIONS", ()):
            found[implementation.name] = implementation
    return found


def get(name: str, level: str = "op") -> Implementation:
    """Return the implementation of that name and level. Raises KeyError with the names that exist."""
    try:
        return implementations(level)[name]
    except KeyError:
        names = ", ".join(implementations(level))
        raise KeyError(f"Unknown implementation {name!r} at level {level}. Available: {names}.") from None


def reason_against_tensors(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, asked: tuple[str, ...] = (), **masks: Any
) -> str | None:
    """Return why an implementation of level op does not take a call with these tensors, or None if it does.

    q: (batch, num_heads, seqlen_q, head_dim); k, v: (batch, num_kv_heads, seqlen_k, head_dim, of v head_dim_v); asked:
    names of FEATURES; masks: causal and window_size.
    """
    sizes = (*q.shape[1:], *k.shape[1:3], v.shape[3])
    return _reason_against_sizes(name, sizes, q.dtype, q.device, asked, bool(masks["causal"]), masks["window_size"])


@lru_cache(maxsize=4096)
def _reason_against_sizes(
    name: str, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, *asked: *tuple[Any, bool, int]
) -> str | None:
    fields = ("num_heads", "seqlen_q", "head_dim", "num_kv_heads", "seqlen_k", "head_dim_v")
    said = dict(zip((*fields, "asked", "causal", "window_size"), (*sizes, *asked), strict=True))
    said |= {"dtype": str(dtype).removeprefix("torch."), "level": "op"}
    case = SimpleNamespace(**dict.fromkeys(AttentionCase.__annotations__) | said)
    return get(name).reason_against(case, describe_device(device))


def triton_missing() -> str | None:
    """Return why kernels in Triton cannot run here, or None if it is installed."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; it exists for Linux: pip install 'triton>=3.6,<4'."
    return None


def reason_against_interpreter(name: str, dtype: str | None) -> str | None:
    """Return why an implementation in Triton cannot compute a dtype on a CPU, or None."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return f"{name} runs on the CPU only in Triton's interpreter: set TRITON_INTERPRET=1 before Python starts."
    return interpreter_lacks(dtype)


def refuse_cpu(name: str, x: torch.Tensor) -> None:
    """Raise UnsupportedCase if an implementation in Triton cannot compute a tensor on a CPU."""
    if reason := reason_against_interpreter(name, str(x.dtype).removeprefix("torch.")):
        raise UnsupportedCase(reason)


@cache
def interpreter_lacks(dtype: str | None) -> str | None:
    """Return why Triton's interpreter does not compute a dtype, or None."""
    if dtype == "bfloat16":
        return (
            "Triton's interpreter multiplies bfloat16 wrongly (triton issue 11584); on a CPU, use float16 or float32."
        )
    if missing := triton_missing():
        return missing
    versions = [tuple(map(int, importlib.metadata.version(name).split(".")[:2])) for name in ("triton", "numpy")]
    if versions[0] < (3, 7) and versions[1] >= (2, 4):
        return "The interpreter of Triton 3.6 fails with numpy 2.4 and later; install numpy<2.4 or a later Triton."
    return None


def describe_device(device: torch.device | str) -> Device:
    """Return the facts about a torch device that the rules above need."""
    device = torch.device(device)
    if device.type == "cpu":
        return Device(type="cpu", name="CPU", memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    properties = torch.cuda.get_device_properties(device)
    return Device(
        type="cuda",
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        shared_memory_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]  # not in PyTorch's stubs
        memory_bytes=properties.total_memory,
    )
