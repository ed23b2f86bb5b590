"""Our attention inside any model of Hugging Face's transformers, by the names of `attn_implementation=`.

`register` adds a function for each implementation to transformers' AttentionInterface, and one that describes masks to
its AttentionMaskInterface. Causal masks, sliding windows, padding and packed sequences reach the kernels without a mask
of queries by keys, and key heads are never repeated. Other masks are tensors; softcaps, sinks and dropout are features
of the call (`kernels.features`).

Whether a batch has padding is read from the device once per forward, as transformers does for PyTorch's attention.
Nothing is read during the capture of a CUDA graph, within torch.compile, or in decoding into a static cache.

A name contains no slash, because transformers would look for it on its hub, and no "flash", because it would look for
the package FlashAttention. This module does not import transformers before `register` is called.
"""

import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from . import choice, dispatch, feature_calls, plans, registry, routes
from .attention import torch_sdpa
from .features import Features
from .registry import Attention, UnsupportedCase

FRONT_DOOR = "attnbench"
NEEDS = "kernels.transformers needs transformers: pip install 'transformers>=5.17,<6'."
_DATA = tomllib.loads(Path(__file__).with_name("transformers.toml").read_text())
_REFUSED: dict[str, str] = _DATA["refused"]
_FAMILIES = {name: frozenset(families.split()) for name, families in _DATA["families"].items()}
_FEATURES = {"softcap": "softcap", "s_aux": "sinks"}  # argument of a module -> our name
_ASKED = frozenset(("indices", "position_bias", "cu_seq_lens_q", *_REFUSED, *_FEATURES))  # others are of no interest
_KEPT = "transformers takes no attention of others for the models of {}."
_BACKENDS = ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn")  # declared by a model of transformers
# Rows of a batch whose real tokens have the same positions, and those positions of the keys.
PaddingGroup = tuple[slice | list[int], slice | torch.Tensor]
# By mask, which all layers of a model share: groups of rows, bounds and biases by what they depend on; causality.
_DERIVED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_CAUSAL: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_CODES: dict[str, Any] = {}  # filled by `_known_codes`
_registered: set[str] = set()
_SEEN = plans.SeenCalls()  # calls without a mask
_records, _tracing = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling


def register(names: Iterable[str] | None = None) -> dict[str, str]:
    """Offer implementations to transformers, and return by implementation the name for `attn_implementation=`.

    Without `names`, all implementations of level op. The dispatcher `kernels.attention` is always included, as
    "attnbench". An implementation that cannot run here raises its reason at the model's first call. Raises
    UnsupportedCase if transformers is missing, KeyError for an unknown implementation.
    """
    if not importlib.util.find_spec("transformers"):
        raise UnsupportedCase(NEEDS)
    from transformers import AttentionInterface, AttentionMaskInterface

    _known_codes()  # an import that torch.compile traces ends its graph (torch 2.11 with transformers 5.17)
    torch.compiler.assume_constant_result(_has_its_own.__wrapped__)  # not where it is defined: it loads torch._dynamo
    chosen = registry.implementations() if names is None else names
    others = {name: partial(attend, _checked(name)) for name in chosen if name != FRONT_DOOR}
    attends = {FRONT_DOOR: partial(attend, dispatch.attention), **others}
    flash = {name: name.replace("flash", "Flash") for name in attends}  # transformers takes "flash" for FlashAttention
    registered = {name: name if name == FRONT_DOOR else f"{FRONT_DOOR}:{flash[name]}" for name in attends}
    for name, function in attends.items():
        AttentionInterface.register(registered[name], function)
        AttentionMaskInterface.register(registered[name], describe_mask)
    if not _registered:
        _leave_their_own()
    _registered.update(registered.values())
    return registered


def _leave_their_own() -> None:
    """Let models that keep an attention of their own have what transformers gives them by default, and say so once."""
    from transformers import PreTrainedModel

    choose: Any = PreTrainedModel.get_correct_attn_implementation

    @wraps(choose)
    def chosen(model: Any, requested_attention: str | None, *rest: Any, **more: Any) -> str:
        if requested_attention not in _registered or not _has_its_own(type(model).__module__):
            return choose(model, requested_attention, *rest, **more)
        found = choose(model, None, *rest, **more)
        tip = "; kernels.sdpa_replacement() reaches it." if found == "sdpa" else "."
        choice.warn_once(f"{_KEPT.format(type(model).__module__)} They use {found!r}, not {requested_attention!r}{tip}")
        return found

    PreTrainedModel.get_correct_attn_implementation = chosen


def attend(
    attention: Attention,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a module of transformers.

    query: (batch, num_heads, tokens, width); key, value: (batch, num_kv_heads, context, width). attention_mask is the
    result of `describe_mask`, or a tensor of queries by keys. Returns out (batch, tokens, num_heads, width) and None.
    A 2-d mask of booleans is padding, one of integers holds the document ids of packed sequences. Without a mask,
    cu_seq_lens_q and cu_seq_lens_k are the starts of sequences in a batch of 1, as for FlashAttention. Raises
    UnsupportedCase for what is not supported.
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    known: Any = None
    plain = attention is dispatch.attention and not _asked_for(asked)
    if plain and _tracing():
        from . import torch_ops

        masks = (causal, sliding_window or 0) if attention_mask is None else (False, 0)
        out = None if dropout else torch_ops.in_program(query, key, value, attention_mask, *masks, scaling)
        if out is not None:
            return out.transpose(1, 2).contiguous(), None
    elif plain:
        sizes = query.shape, key.shape, query.dtype, query.requires_grad, _records()
        known = (type(module), *sizes, causal, dropout, scaling, sliding_window)
        if attention_mask is not None:
            if passed := _DERIVED.get(attention_mask, {}).get(known):
                return passed(query, key, value).transpose(1, 2).contiguous(), None
        elif seen := _SEEN.find(known, query, key, value):
            return seen.attend(query, key, value).transpose(1, 2).contiguous(), None
    named = {name: asked[name] for name in asked if name in _ASKED and asked[name] is not None}
    _refuse(named)
    if query.shape[0] < key.shape[0]:  # learned queries, the same for all sequences
        query, known = query.expand(key.shape[0], -1, -1, -1), None
    if attention_mask is not None and not torch.compiler.is_compiling():
        causal = _CAUSAL.get(attention_mask, causal)
    features = {ours: named[name] for name, ours in _FEATURES.items() if name in named} if named else {}
    if dropout:
        features["dropout_p"] = dropout
    call = _Call(attention, query, key, value, causal, sliding_window or 0, scaling, features)
    if "indices" in named:
        attention_mask = _chosen(named["indices"], call.as_tensor(attention_mask), key.shape[2])
    if "position_bias" in named:
        attention_mask = _biased(named["position_bias"], call.as_tensor(attention_mask))
    out = _by_mask(call, attention_mask, asked).transpose(1, 2).contiguous()
    if known:
        _note(known, call, attention_mask)
    return out, None


def describe_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor | None:
    """Return what `attend` needs of a mask in addition to the module's causality and window.

    The result is None where every token is real; (batch, keys) with True for real tokens where some are padding or a
    static cache is not full; (batch, keys) of integers for packed sequences, an id per document; and (batch, 1,
    q_length, kv_length) for any mask that is not causal, causal in a window, or full, for decoding into a static cache,
    and for models that need it. Raises UnsupportedCase for a model that keeps its own.
    """
    config = options.get("config")
    file = type(config).__module__.replace(".configuration_", ".modeling_")
    if _has_its_own(file):
        raise UnsupportedCase(_KEPT.format(file))
    kind, documents = _kind(mask_function)
    unread = _unreadable(attention_mask, q_offset)
    if kind == "near" and (q_length != kv_length or unread or not (attention_mask is None or attention_mask.all())):
        kind = None
    if _needs_tensor(config, kind, documents, options) or (unread and isinstance(q_offset, torch.Tensor)):
        from transformers.masking_utils import sdpa_mask

        sizes: Any = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(batch_size, **sizes, mask_function=mask_function, attention_mask=attention_mask, **options)
    if documents is not None:
        return documents
    filled = kv_length if kind in ("full", "near") else min(kv_length, int(q_offset) + q_length - kv_offset)
    if attention_mask is None:
        device = options.get("device", "cpu")
        return None if filled == kv_length else torch.ones(batch_size, filled, dtype=torch.bool, device=device)
    real = attention_mask[:, kv_offset : kv_offset + filled].bool()
    real = functional.pad(real, (0, filled - real.shape[1]))  # keys without an entry are not seen
    if filled == kv_length and not unread and real.all():
        return None
    if not torch.compiler.is_compiling():
        _CAUSAL[real] = kind != "full"
    return real


def _unreadable(*tensors: Any) -> bool:
    """Return whether the values of tensors cannot be read now, or would be kept for later replays."""
    if torch.compiler.is_compiling():
        return True
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in tensors)
    return on_gpu and torch.cuda.is_current_stream_capturing()


def _kind(mask_function: Callable[..., Any] | None) -> tuple[str | None, torch.Tensor | None]:
    """Return the kind of a mask and the ids of packed sequences.

    The kind is causal, window (causal in a window), near (a window to both sides), full, or None for another mask.
    """
    if mask_function is None:
        return "causal", None
    codes = _known_codes()
    if torch.compiler.is_compiling() and _code(mask_function) is codes["both"]:
        return None, None  # torch.compile does not read the closure of a function
    leaves = list(_leaves(mask_function))
    found = {_code(leaf) for leaf in leaves} - {codes["documents"]}
    documents = [_closed_over(leaf)[0] for leaf in leaves if _code(leaf) is codes["documents"]]
    if found == {codes["full"]} and not documents:
        return "full", None
    if found == {codes["full"], codes["near"]} and not documents:
        return "near", None
    if len(documents) > 1 or codes["causal"] not in found or not found <= {codes["causal"], codes["window"]}:
        return None, None
    return "window" if codes["window"] in found else "causal", documents[0] if documents else None


def _leaves(mask_function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the masks whose intersection a mask function is.

    Positions that restart in each packed document differ by as much as rows do, so a function of positions is the same
    as one of rows.
    """
    codes = _known_codes()
    if _code(mask_function) is codes["both"]:
        for part in _closed_over(mask_function)[0]:
            yield from _leaves(part)
    elif "remapped" in codes and _code(mask_function) is codes["remapped"]:
        yield from _leaves(_closed_over(mask_function)[0])
    else:
        yield mask_function


def _code(function: Callable[..., Any]) -> Any:
    return getattr(function, "__code__", None)


def _closed_over(function: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__)


def _known_codes() -> dict[str, Any]:
    """Return the code of transformers' mask functions: those made for one call are new functions with the same code."""
    if not _CODES:
        from transformers import masking_utils

        causal, nothing = masking_utils.causal_mask_function, torch.zeros(0)
        remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)  # newer than transformers 5.17
        near = getattr(masking_utils, "sliding_window_bidirectional_overlay", None)
        _CODES.update(
            causal=causal.__code__,
            full=masking_utils.bidirectional_mask_function.__code__,
            window=masking_utils.sliding_window_overlay(1).__code__,
            near=near and near(1).__code__,
            both=masking_utils.and_masks(causal).__code__,
            documents=masking_utils.packed_sequence_mask_function(nothing).__code__,
            **({"remapped": remap(causal, nothing).__code__} if remap else {}),
        )
    return _CODES


def _needs_tensor(config: Any, kind: str | None, documents: torch.Tensor | None, options: dict[str, Any]) -> bool:
    """Return whether a mask must be a tensor, because the model reads it or its modules do not pass on what it says."""
    if kind is None or kind == "full":
        return kind is None or not options.get("allow_is_bidirectional_skip", True)
    name = type(config).__module__
    family = name.split(".")[2] if name.startswith("transformers.models.") else name
    if kind == "near":
        allowed = options.get("allow_is_bidirectional_skip", True)
        return not allowed or family not in _FAMILIES["pass_their_window_to_both_sides"]
    # For packed sequences transformers requests a tensor in the name of every model.
    if not options.get("allow_is_causal_skip", True) and (documents is None or family in _FAMILIES["read_masks"]):
        return True
    if config is None or family in _FAMILIES["read_every_mask"]:
        return config is not None
    if kind == "window" and family not in _FAMILIES["pass_their_window"]:
        return True
    encodes = getattr(config, "is_encoder_decoder", False) and family not in _FAMILIES["decoders_say_causal"]
    return bool(encodes) or family in _FAMILIES["decoders_say_full"]


def _asked_for(asked: dict[str, Any]) -> list[str]:
    """Return the arguments that ask for something, unlike output_attentions=False."""
    return [name for name, x in asked.items() if x is not None and x is not False and name in _ASKED]


def _refuse(named: dict[str, Any]) -> None:
    """Raise UnsupportedCase if a module requests what is not supported."""
    if found := [words for name, words in _REFUSED.items() if named.get(name, False) is not False]:
        raise UnsupportedCase(f"Attention of attnbench does not compute {' and '.join(found)}; use 'sdpa' or 'eager'.")


@cache
def _has_its_own(file: str) -> bool:
    """Return whether models of a module declare 'eager' alone, or choose among classes by the name of an attention."""
    defined = vars(sys.modules[file]).values() if file in sys.modules else ()
    if any(isinstance(x, dict) and isinstance(x.get("eager"), type) for x in defined):
        return True
    models = [x for x in defined if isinstance(x, type) and x.__module__ == file and hasattr(x, _BACKENDS[0])]
    return bool(models) and not any(getattr(x, each) for x in models for each in _BACKENDS)


@dataclass(eq=False)  # not frozen, which takes three times as long to make
class _Call:
    """A call of a module: (batch, heads, tokens, width) tensors, the mask by distance, and features."""

    attention: Attention
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    window_size: int
    scale: float | None
    features: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of the attention."""
        masks = {"causal": self.causal, "window_size": self.window_size}
        return {**masks, "softmax_scale": self.scale, **self.features}

    @property
    def is_dispatched(self) -> bool:
        """Return whether `kernels.attention` computes it."""
        return self.attention is dispatch.attention

    def out(self, **more: Any) -> torch.Tensor:
        """Return out of these tensors, with dropout by PyTorch where a table says so."""
        if self.features and not more and self.left_to_pytorch():
            return _by_pytorch(self.q, self.k, self.v, self.scale, is_causal=self.causal, **self.features)
        return self.attention(self.q, self.k, self.v, **self.options, **more)

    def left_to_pytorch(self, *masked: str) -> bool:
        """Return whether a table leaves a call with dropout, or masked, to PyTorch.

        PyTorch has no fused kernel for a mask where query heads share key heads.
        """
        if not self.is_dispatched or not self.features.keys() <= {"dropout_p"}:
            return False
        asked = (*masked, "dropout") if self.features else masked
        one_each = not masked or self.q.shape[1] == self.k.shape[1]
        return one_each and routes.left_to_pytorch(self.q, self.k, self.causal, self.window_size, asked)

    def bound(self) -> Callable[..., torch.Tensor] | None:
        """Return what computes all such calls without a mask; None for features that PyTorch is not left with."""
        if self.features:
            masks: dict[str, Any] = {"is_causal": self.causal, "enable_gqa": self.q.shape[1] != self.k.shape[1]}
            by_pytorch = partial(functional.scaled_dot_product_attention, scale=self.scale, **masks, **self.features)
            return by_pytorch if self.left_to_pytorch() else None
        tensors = self.q, self.k, self.v
        if torch._C._are_functorch_transforms_active() or not all(type(x) is torch.Tensor for x in tensors):
            return None
        found, cast = dispatch.bound(*tensors, self.causal, self.window_size, self.scale)
        return found if dispatch.same(cast, tensors) or torch_sdpa.is_pytorch(found) else None

    def as_tensor(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Return a mask tensor with causality, window and the mask in it; None if all queries see all keys."""
        if mask is not None and mask.dim() != 2:
            return mask
        queries, keys = self.q.shape[2], self.k.shape[2]
        filled = keys if mask is None else mask.shape[1]  # the part of a static cache that is filled
        if mask is not None and mask.dtype == torch.bool:
            mask = functional.pad(mask, (0, keys - filled))[:, None, None, :]
        elif mask is not None:
            mask = mask[:, None, None, :] == mask[:, None, filled - queries :, None]
        if not self.causal:
            return mask
        seen = torch.ones(queries, keys, dtype=torch.bool, device=self.q.device).tril(filled - queries)
        seen = seen.triu(filled - queries - self.window_size + 1) if self.window_size else seen
        return seen if mask is None else mask & seen

    def is_step(self) -> bool:
        """Return whether it is one query token of the dispatcher, without features or gradients."""
        one = self.is_dispatched and self.q.shape[2] == 1 and not self.features
        return one and not plans.wants_gradients(self.q, self.k, self.v)

    def step(self, mask: torch.Tensor, keys: slice = slice(None)) -> torch.Tensor:
        """Compute one query token under a mask (batch, 1, 1, keys) by PyTorch; query heads of a key head are its rows.

        On an H200 it takes 0.04 ms, where a launch with features takes the host 0.37 ms (8 sequences, 512 keys).
        """
        q, k, v, mask = self.q, self.k[:, :, keys], self.v[:, :, keys], mask[..., keys]
        rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3]) if mask.shape[1] == 1 else q
        out = _by_pytorch(rows, k, v, self.scale, attn_mask=mask)
        return out.reshape(*q.shape[:3], v.shape[3])


def _note(known: Any, call: _Call, mask: torch.Tensor | None) -> None:
    """Note what computes later calls of the same key, if nothing but the addresses of tensors can differ."""
    if mask is not None:
        bias = _DERIVED.get(mask, {}).get((call.q.shape[2], call.causal, call.q.dtype))
        whole = bias is not None and mask.shape[1] == call.k.shape[2] and not call.is_step()
        if whole and call.left_to_pytorch("mask"):
            _DERIVED[mask][known] = partial(_by_pytorch, scale=call.scale, attn_mask=bias, **call.features)
    elif found := call.bound():
        if torch_sdpa.is_pytorch(found) and not choice.anything_named(call.q.device):
            _SEEN.remember(known, plans.Seen(found, None, known))
        else:
            _SEEN.note(known, None, (call.q, call.k, call.v), found)


def _by_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, **masks: Any) -> torch.Tensor:
    masks |= {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}  # no symbol, in a program with dynamic sizes
    return functional.scaled_dot_product_attention(q, k, v, scale=scale, **masks)


def _by_mask(call: _Call, mask: torch.Tensor | None, asked: dict[str, Any]) -> torch.Tensor:
    """Return out (batch, num_heads, tokens, width) for a mask that is None, a tensor, ids or padding."""
    if mask is not None and mask.dim() != 2:
        return _by_mask_tensor(_Call(call.attention, call.q, call.k, call.v, False, 0, call.scale, call.features), mask)
    if mask is None:
        return call.out() if asked.get("cu_seq_lens_q") is None else _packed(call, asked)
    if call.window_size and not call.causal:
        raise UnsupportedCase("Under a sliding window without a causal mask, padding comes as a mask tensor.")
    if mask.dtype != torch.bool:
        return call.out(document_ids=mask)
    length = mask.shape[1]  # the part of a static cache that is filled
    return _without_padding(replace(call, k=call.k[:, :, :length], v=call.v[:, :, :length]), mask)


def _packed(call: _Call, asked: dict[str, Any]) -> torch.Tensor:
    """Compute each of the sequences that are concatenated in a batch of 1."""
    if not call.is_dispatched or call.q.shape[0] != 1:
        raise UnsupportedCase(f"Sequences told by cu_seq_lens are computed under {FRONT_DOOR!r}, in a batch of 1.")
    starts = [asked[name].int() for name in ("cu_seq_lens_q", "cu_seq_lens_k")]
    longest = [int(asked[name]) for name in ("max_length_q", "max_length_k")]
    rows = [x[0].transpose(0, 1) for x in (call.q, call.k, call.v)]
    arguments: list[Any] = [*rows, *starts, *longest]
    return feature_calls.attention_varlen(*arguments, **call.options).transpose(0, 1)[None]


def _chosen(indices: torch.Tensor, mask: torch.Tensor | None, keys: int) -> torch.Tensor:
    """Return the mask without the keys that a query has not chosen; indices: (batch, queries, chosen keys)."""
    chosen = torch.zeros((*indices.shape[:2], keys), dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter(-1, indices.long(), True)[:, None]
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, float("-inf"))


def _biased(bias: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return a bias by position with the mask in it, to be added to the scores."""
    if mask is None:
        return bias
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def _by_mask_tensor(call: _Call, mask: torch.Tensor) -> torch.Tensor:
    """Compute a call under a mask tensor that holds all masks; PyTorch computes one that requires a gradient."""
    if mask.requires_grad and not (call.is_dispatched and call.features.keys() <= {"dropout_p"}):
        raise UnsupportedCase(f"A mask that wants a gradient is computed under {FRONT_DOOR!r}, with dropout at most.")
    if call.is_step() and mask.shape[2] == 1 and not mask.requires_grad:
        return call.step(mask)
    if mask.requires_grad or (mask.dtype in (torch.bool, call.q.dtype) and call.left_to_pytorch("mask")):
        return _by_pytorch(call.q, call.k, call.v, call.scale, attn_mask=mask, **call.features)
    return call.out(mask=mask)


def _without_padding(call: _Call, real: torch.Tensor) -> torch.Tensor:
    """Attend among real tokens; out is 0 before a sequence's first token and after its last one.

    If all sequences have the same padding, the call is made on their real tokens. If there are several groups, or
    the mask cannot be read, one launch computes all. Under a causal mask the last query is at the last key; otherwise
    every query sees all real keys.
    """
    unread = _unreadable(real)
    groups = [] if unread else _once(real, ("groups",), lambda: list(_find_groups(real)))
    several = unread or len(groups) > 1
    if several and call.is_step():
        return call.step(real[:, None, None], slice(-call.window_size, None) if call.causal else slice(None))
    holes = any(not isinstance(tokens, slice) for _, tokens in groups)
    compiling = torch.compiler.is_compiling()
    if (several or holes) and (compiling or not unread) and call.left_to_pytorch("mask"):
        key = call.q.shape[2], call.causal, call.q.dtype
        bias = _bias(call, real) if compiling else _once(real, key, lambda: _bias(call, real))
        return _by_pytorch(call.q, call.k, call.v, call.scale, attn_mask=bias, **call.features)
    asked = ("varlen", "mask", *Features(**call.features).asked)
    if call.is_dispatched and (several or holes) and feature_calls.takes(call.q, call.k, call.v, asked):
        sizes = call.q.shape[2], call.causal
        bounds = None if unread else _once(real, sizes, lambda: feature_calls.bounds_of(real, *sizes))
        tensors = call.q, call.k, call.v, real, bounds
        return feature_calls.attention_padded(*tensors, holes=holes or unread, **call.options)
    if unread or (holes and call.window_size):
        return call.out(mask=real[:, None, None, :])
    return _each_group(call, groups)


def _each_group(call: _Call, groups: list[PaddingGroup]) -> torch.Tensor:
    """Make a call for each group, on the tokens of its sequences; out is 0 elsewhere."""
    q, k, v = call.q, call.k, call.v
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    before = k.shape[2] - q.shape[2]  # keys before the first query
    for rows, tokens in groups:
        queries: slice | torch.Tensor = slice(None)
        if call.causal and isinstance(tokens, slice):
            queries = slice(max(0, tokens.start - before), max(0, tokens.stop - before))
        elif call.causal:
            real = cast(torch.Tensor, tokens)
            queries = real[real >= before] - before
        part = replace(call, q=q[rows][:, :, queries], k=k[rows][:, :, tokens], v=v[rows][:, :, tokens])
        if part.q.shape[2]:
            out[rows, :, queries] = part.out()
    return out


def _bias(call: _Call, real: torch.Tensor) -> torch.Tensor:
    """Return what hides the keys that a call does not see, to be added to the scores."""
    seen = cast(torch.Tensor, call.as_tensor(real))
    return torch.zeros(seen.shape, dtype=call.q.dtype, device=seen.device).masked_fill(~seen, float("-inf"))


def _once(real: torch.Tensor, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return what `make` returns, called once for all layers that share a mask."""
    of_mask = _DERIVED.setdefault(real, {})
    if key not in of_mask:
        of_mask[key] = make()
    return of_mask[key]


def _find_groups(real: torch.Tensor) -> Iterator[PaddingGroup]:
    """Group the sequences of a mask (batch, tokens) by the places of their real tokens, which reads the device."""
    first = real.int().argmax(1)
    last = real.shape[1] - real.flip(1).int().argmax(1)
    spans: dict[tuple[int, int], list[int]] = {}
    for row, (start, end, count) in enumerate(torch.stack((first, last, real.sum(1)), 1).tolist()):
        if count == end - start:
            spans.setdefault((start, end), []).append(row)
        elif count:
            yield slice(row, row + 1), real[row].nonzero()[:, 0]
    for (start, end), rows in spans.items():
        together = rows[-1] - rows[0] + 1 == len(rows)
        yield slice(rows[0], rows[-1] + 1) if together else rows, slice(start, end)


def _checked(name: str) -> Callable[..., torch.Tensor]:
    """Return the attention of an implementation, which raises the reason where it does not take a call.

    Values narrower than keys are padded with zeros where the implementation needs equal widths.
    """
    implementation = registry.get(name)

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window_size: int,
        softmax_scale: float | None, **features: Any,
    ) -> torch.Tensor:  # fmt: skip
        q, k, v = dispatch.autocasted(q, k, v)
        width, missing = v.shape[3], k.shape[3] - v.shape[3]
        mask: dict[str, Any] = {"causal": causal, "window_size": window_size}
        asked = feature_calls.features_of(features, q.device) if features else None
        reason = implementation.reason_against_features(asked.asked) if asked else None
        reason = reason or registry.reason_against_tensors(name, q, k, v, **mask)
        if reason and missing > 0:
            v = functional.pad(v, (0, missing))
            reason = registry.reason_against_tensors(name, q, k, v, **mask)
        if reason:
            raise UnsupportedCase(reason)
        options = {**mask, "softmax_scale": softmax_scale} | ({"features": asked} if asked else {})
        return implementation.attention(q, k, v, **options)[..., :width]

    return attention
