"""Replace torch.nn.functional.scaled_dot_product_attention with our attention, for the calls that it supports.

The function is replaced for the whole process while a context is open, so that the threads of a backward, which
recompute a checkpointed forward, use the same attention. Contexts may be nested and opened in several threads; the
first one replaces the function and the last one restores it. A function that was imported by name before
(`from torch.nn.functional import scaled_dot_product_attention`) is not replaced.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from . import choice, dispatch, feature_calls, registry, routes
from .attention import torch_sdpa  # imported now: within a context it would import the replacement
from .features import Features
from .plans import NO_KEY, Seen, SeenCalls
from .problem import FEW_QUERIES
from .registry import UnsupportedCase

_ORIGINAL = functional.scaled_dot_product_attention
_LEFT = _FASTER, _LEARNED = ("calls that PyTorch computes faster, by a rule or a table", "a mask that wants a gradient")
_SEEN = _NOTHING = SeenCalls()  # of the implementation in effect; nothing is noted where there is none
_SEEN_BY: defaultdict[str | None, SeenCalls] = defaultdict(SeenCalls)  # by implementation
_records, _tracing, _address = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling, torch.Tensor.data_ptr
_TALLIES: dict[str | None, list[int]] = {}  # how many calls: None, of ours; else left to PyTorch, by reason


class SdpaCalls:
    """Count the calls that are made while a context is open, by an implementation or, by None, `kernels.attention`."""

    def __init__(self, implementation: str | None = None) -> None:
        """Count from now on."""
        self.implementation = implementation
        self._before = {reason: tally[0] for reason, tally in _TALLIES.items()}
        self._after: dict[str | None, list[int]] = _TALLIES

    def end(self) -> None:
        """Count no more."""
        self._after = {reason: [*tally] for reason, tally in _TALLIES.items()}

    @property
    def served(self) -> int:
        """Return how many calls our attention computed."""
        return self._calls()[None]

    @property
    def passed_on(self) -> Counter[str | None]:
        """Return how many calls were left to PyTorch, by reason."""
        return self._calls() - Counter({None: self.served})

    def __repr__(self) -> str:
        return f"SdpaCalls(served={self.served}, passed_on={self.passed_on})"

    def _calls(self) -> Counter[str | None]:
        return Counter({reason: tally[0] - self._before.get(reason, 0) for reason, tally in self._after.items()})


_OPEN: list[SdpaCalls] = []  # the last one is in effect
_LOCK = threading.Lock()
_OBSERVED: Callable[..., Any] | None = None  # the replacement, with an observer of its calls


@contextmanager
def sdpa_replacement(implementation: str | None = None) -> Iterator[SdpaCalls]:
    """Compute calls of scaled_dot_product_attention with `kernels.attention`, or with the implementation of that name.

    Yields the counts of the calls that were computed here and of those left to PyTorch, each with its reason: masks
    that require a gradient, tensors of less than four dimensions or not on a GPU, masks and dropout that the
    implementation does not support, transforms of torch.func, forward-mode differentiation, torch.jit.trace. Within
    torch.compile, `kernels.attention` is used and nothing is counted; a named implementation leaves such calls to
    PyTorch. There are no second derivatives: they raise a RuntimeError. Raises KeyError for an unknown implementation.
    """
    if implementation is not None:
        registry.get(implementation)
    opened = SdpaCalls(implementation)
    with _LOCK:
        _OPEN.append(opened)
        _install(len(_OPEN) == 1)
    try:
        yield opened
    finally:
        with _LOCK:
            _OPEN.remove(opened)
            _install(False)
        opened.end()


def observe(around: Callable[[Callable[..., Any]], Callable[..., Any]] | None) -> None:
    """Call PyTorch's function, replaced or not, through what `around` returns for it; None ends that."""
    global _OBSERVED
    with _LOCK:
        _OBSERVED = around and around(_replaced)
        _install(around is not None)


def _install(opening: bool) -> None:
    """Put in place what the open contexts need; later, leave what another package has put there alone."""
    global _SEEN
    _SEEN = _SEEN_BY[_OPEN[-1].implementation] if _OPEN else _NOTHING
    found = functional.scaled_dot_product_attention
    if opening or found is _replaced or hasattr(found, "__wrapped__") and found.__wrapped__ is _replaced:
        functional.scaled_dot_product_attention = _OBSERVED or (_replaced if _OPEN else _ORIGINAL)


def _replaced(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute the result of PyTorch's function, which aligns a causal mask with the first key."""
    tensors: Any = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    known: Any = None
    if _tracing():
        if not dropout_p and _OPEN and _OPEN[-1].implementation is None:
            from . import torch_ops

            out = torch_ops.in_program(query, key, value, attn_mask, is_causal, 0, scale, grouped=enable_gqa)
            if out is not None:
                return out
    else:
        seen: Any = _SEEN.last.then
        try:
            options = seen.holds and (attn_mask is None, _records(), dropout_p, is_causal, scale, enable_gqa)
            plain = options and seen.options == options and not (query.is_nested or key.is_nested or value.is_nested)
            plain = plain and (attn_mask is None or not attn_mask.is_nested)
            if plain and not (_address(query) | _address(key) | _address(value)) & 15 and seen.holds(*tensors):
                _SEEN.last = seen
            else:
                known = (
                    query.shape, key.shape, query.dtype, query.requires_grad, _records(), dropout_p, is_causal, scale,
                    enable_gqa, None if attn_mask is None else attn_mask.requires_grad,
                )  # fmt: skip
                if known == seen.key:
                    _SEEN.last = seen
                else:
                    seen = _SEEN.find(known, *tensors)
        except NO_KEY:
            known = seen = None
        if seen and (seen.key or forward_ad._current_level < 0):
            seen.tally[0] += 1  # anything more would take as long as the rest where a program's code fills the caches
            return seen.attend(*tensors)
    return _first(known, (attn_mask is None, _records(), dropout_p, is_causal, scale, enable_gqa), tensors)


def _first(known: Any, options: Any, tensors: Any) -> torch.Tensor:
    """Compute a call that was not seen before, and note what it was bound to."""
    _, _, dropout_p, is_causal, scale, enable_gqa = options
    given: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    given = {name: x for name, x in given.items() if x or (name == "scale" and x is not None)}  # parsing takes time
    attend: Callable[..., torch.Tensor] = partial(_ORIGINAL, **given) if given else _ORIGINAL
    opened, compiling = _OPEN[-1:], torch.compiler.is_compiling()
    if not opened or (compiling and opened[0].implementation):
        return attend(*tensors)
    # Windows of images: of more than four dimensions PyTorch keeps all scores, as its math backend does.
    if tensors[0].dim() > 4 and len(tensors) == 3 and all(x.shape[:-3] == tensors[0].shape[:-3] for x in tensors):
        return _replaced(*(x.flatten(0, -4) for x in tensors), **given).unflatten(0, tensors[0].shape[:-3])
    mode = None if compiling else _reason_against_mode()
    reason = mode or _reason_against_tensors(*tensors, causal=is_causal, grouped=enable_gqa)
    if reason is None:
        reason, ours = _bound(opened[0].implementation, *tensors, causal=is_causal, scale=scale, dropout_p=dropout_p)
        try:
            out = ours(*tensors) if reason is None else None
        except UnsupportedCase as refused:  # such as strides that a kernel cannot address
            reason = str(refused)
    tally = [0] if compiling else _TALLIES.setdefault(reason, [0])
    tally[0] += 1
    if reason is None:
        attend = ours
    else:
        out = attend(*tensors)
    if known and reason in _LEFT and not mode and not (reason == _FASTER and choice.anything_named(tensors[0].device)):
        _SEEN.remember(known, Seen(attend, tally, known))
    elif known and not mode:  # a rule may ask for strides too
        _SEEN.note(known, options, tensors, attend, tally)
    return out


def _reason_against_mode() -> str | None:
    """Return the mode of PyTorch in which nothing is computed here; None if there is none."""
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return "torch.jit.trace" if torch.jit.is_tracing() else None


def _reason_against_tensors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, *, causal: bool, grouped: bool
) -> str | None:
    """Return why no implementation takes the tensors; None if there is no reason."""
    if mask is not None:
        if mask.requires_grad:
            return _LEARNED
        if mask.dtype not in (torch.bool, torch.float32, q.dtype):
            return "a mask of another dtype"
        if mask.dim() < 2:
            return "a mask without a dimension for queries"
        if causal:
            return "a mask together with a causal one"
    if not (type(q) in dispatch.PLAIN and type(k) in dispatch.PLAIN and type(v) in dispatch.PLAIN):
        return "tensors of another class"
    if q.is_nested or k.is_nested or v.is_nested:
        return "nested tensors"
    if not q.dim() == k.dim() == v.dim() == 4:
        return "tensors that are not (batch, heads, tokens, width)"
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        return "batches or heads that are broadcast"
    if not (q.numel() and k.numel()):
        return "no elements"
    if causal and q.shape[2] > k.shape[2]:
        return "a causal mask over more queries than keys"
    return None if grouped or k.shape[1] in (1, q.shape[1]) else "heads that are broadcast"


def _bound(
    implementation: str | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool,
    scale: float | None,
    dropout_p: float,
) -> tuple[str | None, Callable[..., torch.Tensor]]:
    """Return None and what computes such calls, or the reason why they are not computed here."""
    seen = min(q.shape[2], k.shape[2]) if causal else k.shape[2]  # a causal mask hides the later keys
    asked = Features(mask=mask, dropout_p=dropout_p).asked
    masks: dict[str, Any] = {"causal": causal, "softmax_scale": scale}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        features: dict[str, Any] = {} if mask is None else {"mask": mask}
        features |= {"dropout_p": dropout_p} if dropout_p else {}
        k, v = (k, v) if seen == k.shape[2] else (k[:, :, :seen], v[:, :, :seen])
        if implementation is None:
            return dispatch.attention(q, k, v, **masks, **features)
        given = {"features": feature_calls.features_of(features, q.device)} if features else {}
        return registry.get(implementation).attention(*dispatch.autocasted(q, k, v), **masks, **given)

    cut = seen < k.shape[2]
    tensors = dispatch.autocasted(q, *(x[:, :, :seen] if cut else x for x in (k, v)))
    if implementation is not None:
        named = registry.get(implementation)
        reason = named.reason_against_features(asked)
        return reason or registry.reason_against_tensors(implementation, *tensors, causal=causal, window_size=0), attend
    ruled = not (asked or torch.compiler.is_compiling()) and choice.anything_named(q.device)
    takes = feature_calls.takes(*tensors, asked) if asked else routes.takes(*tensors)
    if not (takes or (ruled and routes.route_of(*tensors, causal, 0, scale) is not None)):
        return "a device, dtype or width that no kernel of ours takes", attend
    if asked:
        return (_FASTER if routes.left_to_pytorch(*tensors[:2], causal, 0, asked) else None), attend
    if torch.compiler.is_compiling():
        return None, attend
    found = dispatch.bound(*tensors, causal, 0, scale)[0]
    asked = () if ruled or q.shape[2] <= FEW_QUERIES else (routes.name("forward", *tensors[:2], scale, 0, causal),)
    if torch_sdpa.is_pytorch(found) or (asked and routes.left_to_pytorch(*tensors[:2], causal, 0, asked)):
        return _FASTER, attend
    return None, attend if cut or not dispatch.same(tensors, (q, k, v)) else found
