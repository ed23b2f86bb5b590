"""The engine of the adapters of other projects' packages: layout of tensors, masks, refusals, and missing packages.

These packages use (batch, seqlen, heads, head_dim). Our tensors are passed as transposed views, so that every
implementation reads the same memory.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from .decode.step import DecodeStep
from .features import Features, SequenceBounds, Window
from .registry import DecodeAttention, Implementation, UnsupportedCase, declarations, declare

Step = Callable[[], torch.Tensor]
# A function of q, k and v (batch, seqlen, heads, head_dim) with keywords causal, window_size and softmax_scale. It
# returns the output, or a tuple that begins with it.
Call = Callable[..., Any]
_NO_MASKS: dict[str, Any] = {"causal": False, "window_size": 0, "softmax_scale": None}


@dataclass(frozen=True)
class Package:
    """A package that may be missing."""

    title: str
    install: str
    distribution: str | None = None  # its name in the package index; several distributions share one module name
    module: str | None = None  # for a package without a distribution

    @property
    def unavailable(self) -> str | None:
        """Return why the package cannot be used here, or None."""
        if self.distribution is None:
            found = importlib.util.find_spec(self.module) is not None
        else:
            found = any(importlib.metadata.distributions(name=self.distribution))
        return None if found else f"{self.title} is not installed: {self.install}."


@cache
def package_of(name: str) -> Package:
    """Return the package that implementations of this name run."""
    return Package(**declarations()["packages"][name])


def op(name: str, call: Call, *, packed: Call | None = None, **rules: Any) -> tuple[Implementation, ...]:
    """Return a package's implementation of level op; `rules` are fields that implementations.toml does not have.

    `packed` is a Call for packed sequences: q is (total_q, heads, head_dim), and a keyword `bounds` has their
    `kernels.features.SequenceBounds`.
    """
    unavailable = package_of(name).unavailable
    keywords: Mapping[str, str] = declarations()["keywords"].get(name, {})

    def attention(
        *tensors: torch.Tensor, features: Features | None = None, bounds: SequenceBounds | None = None, **masks: Any
    ) -> torch.Tensor:
        if unavailable:
            raise UnsupportedCase(unavailable)
        options = _NO_MASKS | masks
        if features is not None:
            asked = {keyword: getattr(features, name) for name, keyword in keywords.items()}
            options |= {keyword: x for keyword, x in asked.items() if x is not None}
        q, k, v = (x.transpose(1, 2) for x in tensors)
        if bounds is None or packed is None:
            return _heads_first(call(q, k, v, **options))
        out = packed(q[0], k[0], v[0], bounds=bounds, **options)
        return _heads_first((out[0] if isinstance(out, tuple) else out)[None])

    return (declare(name, attention, unavailable=unavailable, **rules),)


def decode(name: str, prepare: DecodeAttention, **rules: Any) -> tuple[Implementation, ...]:
    """Return a package's implementation of level decode; `rules` as for `op`."""
    unavailable = package_of(name).unavailable

    def attention(step: DecodeStep) -> Step:
        if unavailable:
            raise UnsupportedCase(unavailable)
        return prepare(step)

    return (declare(name, attention, "decode", unavailable=unavailable, **rules),)


def step_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> Step:
    """Return a step as a call of a function that returns the output as (batch, tokens, heads, head_dim)."""
    return lambda: _heads_first(function(*arguments, **options))


@lru_cache(maxsize=8)
def cumulative(starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the starts of packed sequences and the end of the last one, kept for the bounds of one call."""
    return torch.cat((starts, ends[-1:]))


def flash_lengths(bounds: SequenceBounds) -> dict[str, Any]:
    """Return the bounds of packed sequences as the FlashAttention packages take them."""
    return {
        "cu_seqlens_q": cumulative(bounds.starts_q, bounds.ends_q),
        "cu_seqlens_k": cumulative(bounds.starts_k, bounds.ends_k),
        "max_seqlen_q": bounds.longest_q,
        "max_seqlen_k": bounds.longest_k,
    }


def flash_call(module: str, every: int | None = -1) -> Call:
    """Return the Call of a FlashAttention package, packed or not, whose functions are in a module; see `masked`."""

    def call(*tensors: Any, causal: bool, window_size: Window, bounds: SequenceBounds | None = None, **own: Any) -> Any:
        functions, masks = importlib.import_module(module), masked(causal, window_size, every)
        if bounds is None:
            return functions.flash_attn_func(*tensors, **own, **masks)
        return functions.flash_attn_varlen_func(*tensors, **flash_lengths(bounds), **own, **masks)

    return call


def masked(causal: bool, window_size: Window, every: int | None = -1) -> dict[str, Any]:
    """Return causal and window_size as the FlashAttention packages take them; `every` means an unlimited side.

    With a window causal is False, and the window ends at the position of the query.
    """
    if not window_size:
        return {"causal": causal, "window_size": (every, every)}
    if isinstance(window_size, tuple):
        return {"causal": False, "window_size": window_size}
    return {"causal": False, "window_size": (window_size - 1, 0 if causal else window_size - 1)}


def supported(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function. Raises UnsupportedCase where it raises NotImplementedError because it has no kernel."""
    try:
        return function(*arguments, **options)
    except NotImplementedError as error:
        raise UnsupportedCase(" ".join(str(error).split())) from error


def reason(name: str, *checks: tuple[object, str]) -> str | None:
    """Return the sentence of the first check that holds, or None."""
    return next((f"{name} {sentence}." for holds, sentence in checks if holds), None)


def first(out: Any) -> torch.Tensor:
    """Return the output of a function that may return more."""
    return out[0] if isinstance(out, tuple) else out


def _heads_first(out: Any) -> torch.Tensor:
    return first(out).transpose(1, 2)
