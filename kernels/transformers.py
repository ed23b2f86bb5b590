"""Our attention inside any model of Hugging Face's transformers, by the names of `attn_implementation=`.

`register` adds a function for each implementation to transformers' AttentionInterface, and one that describes masks to
its AttentionMaskInterface. Causal masks, sliding windows, padding and packed sequences reach the kernels without a mask
of queries by keys, and key heads are never repeated. Other masks are tensors; softcaps, sinks and dropout are features
of the call (`kernels.features`).

Whether a batch has padding is read from the device once a forward, as transformers does it for PyTorch's attention.
Nothing is read while a CUDA graph is captured, within torch.compile, or in decoding into a static cache.

A name holds no slash, because transformers would look for it on its hub, and no "flash", because it would look for the
package FlashAttention. Nothing here imports transformers before `register` is called.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from . import dispatch, feature_calls, plans, registry
from .features import Features, SequenceBounds
from .registry import Attention, UnsupportedCase

FRONT_DOOR = "attnbench"
NEEDS = "kernels.transformers needs transformers: pip install 'transformers>=5.17,<6'."
# What is not computed here, by the argument with which a module of transformers asks for it.
_REFUSED = {
    "cache": "a paged cache",
    "output_attentions": "the probabilities as a result (output_attentions)",
    "sinks": "sinks of tokens (sinks; those of heads come as s_aux)",
    "block_indices": "blocks of keys chosen for each query (block_indices)",
    "head_mask": "a mask of heads (head_mask)",
}
_BACKENDS = ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn")  # what a model of transformers declares
_FEATURES = {"softcap": "softcap", "s_aux": "sinks"}  # argument of a module -> our name
_MOST_CALLS = 1  # of sequences that are padded alike, before one launch computes all of them


class PaddedAlike(NamedTuple):
    """Sequences of a batch whose real tokens stand at the same places."""

    rows: slice | list[int]  # of the batch
    tokens: slice | torch.Tensor  # of the keys


# By mask, which all layers of a model share: what was read of it, and bounds by number of queries and causality.
_PADDED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_BOUNDS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_CAUSAL: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # of masks of padding, as some modules say it wrongly


def register(names: Iterable[str] | None = None) -> dict[str, str]:
    """Offer implementations to transformers, and return by implementation the name for `attn_implementation=`.

    Without `names` all of level op. The front door `kernels.attention`, under "attnbench", is always among them. An
    implementation that cannot run here says so at the model's first call. Raises UnsupportedCase if transformers is
    missing, KeyError for an unknown implementation.
    """
    if not importlib.util.find_spec("transformers"):
        raise UnsupportedCase(NEEDS)
    from transformers import AttentionInterface, AttentionMaskInterface

    chosen = list(registry.implementations()) if names is None else list(names)
    attends = {FRONT_DOOR: partial(attend, dispatch.attention)}
    attends |= {name: partial(attend, _checked(name)) for name in chosen if name != FRONT_DOOR}
    registered = {name: registered_name(name) for name in attends}
    for name, function in attends.items():
        AttentionInterface.register(registered[name], function)
        AttentionMaskInterface.register(registered[name], describe_mask)
    return registered


def registered_name(implementation: str) -> str:
    """Return the name under which transformers knows an implementation: "attnbench:triton_fa2"."""
    if implementation == FRONT_DOOR:
        return FRONT_DOOR
    return f"{FRONT_DOOR}:{implementation.replace('flash', 'Flash')}"


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
    """Attend as a module of transformers asks it.

    query: (batch, num_heads, tokens, width); key, value: (batch, num_kv_heads, context, width). attention_mask is what
    `describe_mask` returned, or a tensor of queries by keys. Returns out (batch, tokens, num_heads, width) and None.
    A 2-d mask of booleans is padding, one of integers tells the documents of packed sequences. Without a mask,
    cu_seq_lens_q and cu_seq_lens_k tell where sequences of a batch of 1 start, as for FlashAttention. Raises
    UnsupportedCase for what is not computed here.
    """
    _refuse(asked, type(module))
    if query.shape[0] < key.shape[0]:  # learned queries, the same for all sequences
        query = query.expand(key.shape[0], -1, -1, -1)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is not None and not torch.compiler.is_compiling():
        causal = _CAUSAL.get(attention_mask, causal)
    options = {"causal": causal, "window_size": sliding_window or 0, "softmax_scale": scaling}
    features = {ours: asked[name] for name, ours in _FEATURES.items() if asked.get(name) is not None}
    if dropout:
        features["dropout_p"] = dropout
    if asked.get("indices") is not None:
        attention_mask = _chosen(asked["indices"], attention_mask, query, key, options)
    if asked.get("position_bias") is not None:
        attention_mask = _biased(asked["position_bias"], attention_mask, query, key, options)
    out = _by_mask(attention, (query, key, value), attention_mask, asked, options, features)
    return out.transpose(1, 2).contiguous(), None


def _by_mask(
    attention: Attention,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    asked: dict[str, Any],
    options: dict[str, Any],
    features: dict[str, Any],
) -> torch.Tensor:
    """Return out (batch, num_heads, tokens, width) of q, k and v by what the mask is: none, a tensor, ids, padding."""
    as_tensor = mask is not None and mask.dim() != 2
    if options["window_size"] and not options["causal"] and not as_tensor:
        raise UnsupportedCase("A sliding window without a causal mask comes as a mask tensor; this call has none.")
    if mask is None and asked.get("cu_seq_lens_q") is not None:
        return _packed(attention, *tensors, asked, options | features)
    if mask is None:
        return attention(*tensors, **options, **features)
    if as_tensor:
        everything = options | {"causal": False, "window_size": 0}
        return _by_mask_tensor(attention, *tensors, mask, everything, features)
    if mask.dtype != torch.bool:
        return attention(*tensors, **options, **features, document_ids=mask)
    query, key, value = tensors
    length = mask.shape[1]  # of a static cache what is filled
    return _without_padding(attention, query, key[:, :, :length], value[:, :, :length], mask, options, features)


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
    """Return what `attend` needs of a mask beside the module's causality and window, as transformers' mask interface.

    None where every token is real; (batch, keys) with True for real ones where some are padding or a static cache is
    not full; (batch, keys) of integers for packed sequences, an id a document; and (batch, 1, q_length, kv_length) for
    any other mask than causal, causal in a window, and full, for decoding into a static cache, and where the model asks
    for it, such as to append another mask. Raises UnsupportedCase for a model that has no attention but its own.
    """
    file = type(options.get("config")).__module__.replace(".configuration_", ".modeling_")
    _refuse_model(file)
    kind, documents = _kind(mask_function)
    unread = _unreadable(attention_mask, q_offset)
    if _needs_tensor(file, kind, documents, options) or (unread and isinstance(q_offset, torch.Tensor)):
        from transformers.masking_utils import sdpa_mask

        sizes = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(batch_size, **sizes, mask_function=mask_function, attention_mask=attention_mask, **options)
    if documents is not None:
        return documents
    filled = kv_length if kind == "full" else min(kv_length, int(q_offset) + q_length - kv_offset)
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
    """Return whether the values of tensors cannot be read now, or would be taken for those of later replays."""
    if torch.compiler.is_compiling():
        return True
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in tensors)
    return on_gpu and torch.cuda.is_current_stream_capturing()


def _kind(mask_function: Callable[..., Any] | None) -> tuple[str | None, torch.Tensor | None]:
    """Return causal, window (causal in one), full, or None for another mask; and the documents of packed sequences."""
    if mask_function is None:
        return "causal", None
    if torch.compiler.is_compiling() and _code(mask_function) is _known_codes()["both"]:
        return None, None  # it does not read what a function closes over
    leaves = list(_leaves(mask_function))
    codes, found = _known_codes(), {_code(leaf) for leaf in leaves}
    documents = [_closed_over(leaf)[0] for leaf in leaves if _code(leaf) is codes["documents"]]
    found.discard(codes["documents"])
    if found == {codes["full"]} and not documents:
        return "full", None
    if len(documents) > 1 or codes["causal"] not in found or not found <= {codes["causal"], codes["window"]}:
        return None, None
    return "window" if codes["window"] in found else "causal", documents[0] if documents else None


def _leaves(mask_function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the masks that a mask function is the intersection of.

    Of packed sequences, positions counted anew in each document are as far apart as its rows, so the function of
    positions is that of rows.
    """
    codes = _known_codes()
    if _code(mask_function) is codes["both"]:
        (parts,) = _closed_over(mask_function)
        for part in parts:
            yield from _leaves(part)
    elif "remapped" in codes and _code(mask_function) is codes["remapped"]:
        yield from _leaves(_closed_over(mask_function)[0])
    else:
        yield mask_function


def _code(function: Callable[..., Any]) -> Any:
    return getattr(function, "__code__", None)


def _closed_over(function: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__)


@cache
def _known_codes() -> dict[str, Any]:
    """Return the code of transformers' mask functions: those made for one call are new functions of the same code."""
    from transformers import masking_utils

    causal, nothing = masking_utils.causal_mask_function, torch.zeros(0)
    remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)  # newer than transformers 5.17
    return {
        "causal": causal.__code__,
        "full": masking_utils.bidirectional_mask_function.__code__,
        "window": masking_utils.sliding_window_overlay(1).__code__,
        "both": masking_utils.and_masks(causal).__code__,
        "documents": masking_utils.packed_sequence_mask_function(nothing).__code__,
    } | ({"remapped": remap(causal, nothing).__code__} if remap else {})


def _refuse(asked: dict[str, Any], kind: type[nn.Module]) -> None:
    """Raise UnsupportedCase if a module of this kind asks for what is not computed here."""
    found = [words for name, words in _REFUSED.items() if asked.get(name) is not None and asked[name] is not False]
    if found:
        raise UnsupportedCase(f"Attention of attnbench does not compute {' and '.join(found)}; use 'sdpa' or 'eager'.")
    _refuse_model(kind.__module__)


def _refuse_model(file: str) -> None:
    """Raise UnsupportedCase if transformers would not let other attention than a model's own compute it.

    `file` is the Python module that defines the model. Its masks and arguments need not be those of other models.
    """
    if _eager_alone(file):
        raise UnsupportedCase(f"transformers declares no attention but 'eager' for the models of {file}.")


@torch.compiler.assume_constant_result
@cache
def _eager_alone(file: str) -> bool:
    """Return whether all models that a Python module defines declare no attention but their own eager one."""
    defined = vars(sys.modules[file]).values() if file in sys.modules else ()
    beside = [x for x in defined if isinstance(x, type) and x.__module__ == file]
    models = [x for x in beside if hasattr(x, _BACKENDS[0])]
    return bool(models) and not any(getattr(x, each) for x in models for each in _BACKENDS)


def _needs_tensor(file: str, kind: str | None, documents: torch.Tensor | None, options: dict[str, Any]) -> bool:
    """Return whether a mask of a kind is to be a tensor for the models that a Python module defines.

    Some read their masks. They forbid to leave one out, which transformers does of any packed sequences, or say nothing
    (Doge in transformers 5.17). Of some the mask alone knows that they are causal (PEGASUS-X) or have a window
    (Phi-3.5-MoE), which most tell `attend`.
    """
    if kind == "full":
        return not options.get("allow_is_bidirectional_skip", True)
    asks = not options.get("allow_is_causal_skip", True)
    asks = asks and (documents is None or bool(_mentions(file, "allow_is_causal_skip")))
    windowed = kind == "window" and _mentions(file, "sliding_window=") is False
    causal = _mentions(file, "is_causal: bool = False") and not _mentions(file, "is_causal=True")
    return kind is None or asks or windowed or bool(causal or _mentions(file, "prepare_dynamic_mask"))


@torch.compiler.assume_constant_result
@cache
def _mentions(file: str, word: str) -> bool | None:
    """Return whether the source of a Python module has a word, as transformers itself looks; None if it has none."""
    try:
        return word in inspect.getsource(sys.modules[file])
    except (KeyError, OSError, TypeError):  # not imported, or its source is not there
        return None


def _packed(
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    asked: dict[str, Any],
    options: dict[str, Any],
) -> torch.Tensor:
    """Attend within each of the sequences that lie one after the other in a batch of 1."""
    if attention is not dispatch.attention or q.shape[0] != 1:
        raise UnsupportedCase(f"Sequences told by cu_seq_lens are computed under {FRONT_DOOR!r}, in a batch of 1.")
    starts = [asked[name].int() for name in ("cu_seq_lens_q", "cu_seq_lens_k")]
    longest = [int(asked[name]) for name in ("max_length_q", "max_length_k")]
    rows = [x[0].transpose(0, 1) for x in (q, k, v)]
    return feature_calls.attention_varlen(*rows, *starts, *longest, **options).transpose(0, 1)[None]


def _chosen(
    indices: torch.Tensor, mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, options: dict[str, Any]
) -> torch.Tensor:
    """Return the mask with keys hidden that are not chosen; indices: (batch, queries, keys chosen for a query)."""
    if mask is None or mask.dim() == 2:
        mask = _seen(mask, q, k, options["causal"], options["window_size"])
    shape = (*indices.shape[:2], k.shape[2])
    chosen = torch.zeros(shape, dtype=torch.bool, device=q.device).scatter(-1, indices.long(), True)[:, None]
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, float("-inf"))


def _biased(
    bias: torch.Tensor, mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, options: dict[str, Any]
) -> torch.Tensor:
    """Return a bias by position with all masks in it, to be added to the scores."""
    if mask is None or mask.dim() == 2:
        mask = _seen(mask, q, k, options["causal"], options["window_size"])
    if mask is None:
        return bias
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def _seen(
    mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: int
) -> torch.Tensor | None:
    """Return which keys queries see by causality, window and a 2-d mask; None: all."""
    filled = k.shape[2] if mask is None else mask.shape[1]  # of a static cache what is filled
    if mask is not None and mask.dtype == torch.bool:
        mask = functional.pad(mask, (0, k.shape[2] - filled))[:, None, None, :]
    elif mask is not None:
        mask = mask[:, None, None, :] == mask[:, None, filled - q.shape[2] :, None]
    if not causal:
        return mask
    before = filled - q.shape[2]
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(before)
    seen = seen.triu(before - window_size + 1) if window_size else seen
    return seen if mask is None else mask & seen


def _by_mask_tensor(
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    options: dict[str, Any],
    features: dict[str, Any],
) -> torch.Tensor:
    """Attend under a mask tensor that holds all masks; PyTorch computes one that wants a gradient."""
    if _is_step(attention, q, k, v, features) and mask.shape[2] == 1 and not mask.requires_grad:
        return _step(q, k, v, mask, options["softmax_scale"])
    if not mask.requires_grad:
        return attention(q, k, v, **options, **features, mask=mask)
    if attention is not dispatch.attention or features:
        raise UnsupportedCase(
            f"A mask tensor that wants a gradient is computed under {FRONT_DOOR!r}, without features."
        )
    grouped, scale = q.shape[1] != k.shape[1], options["softmax_scale"]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


def _without_padding(
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    real: torch.Tensor,
    options: dict[str, Any],
    features: dict[str, Any],
) -> torch.Tensor:
    """Attend among real tokens; out is 0 before a sequence's first token and after its last one.

    Sequences that are padded alike are one call on their own tokens. Where there are many kinds, or the mask cannot be
    read, one launch computes all. Under a causal mask the last query stands at the last key; otherwise every query sees
    all real keys.
    """
    unread = _unreadable(real)
    if _is_step(attention, q, k, v, features) and (unread or len(_padded_alike(real)) > 1):
        keys = slice(-options["window_size"], None) if options["causal"] else slice(None)  # all without a window
        return _step(q, k[:, :, keys], v[:, :, keys], real[:, None, None, keys], options["softmax_scale"])
    alike = () if unread else _padded_alike(real)
    holes = any(not isinstance(each.tokens, slice) for each in alike)
    if attention is dispatch.attention and (unread or len(alike) > _MOST_CALLS or holes):
        asked = Features(**features).asked
        if feature_calls.takes(q, k, v, ("varlen", "mask", *asked)):
            bounds = None if unread else _bounds(real, q.shape[2], options["causal"])
            holes |= unread  # possibly
            return feature_calls.attention_padded(q, k, v, real, bounds, holes=holes, **options, **features)
    if unread or (holes and options["window_size"]):
        return attention(q, k, v, **options, **features, mask=real[:, None, None, :])
    return _each_alike(attention, q, k, v, alike, options, features)


def _each_alike(
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    alike: Sequence[PaddedAlike],
    options: dict[str, Any],
    features: dict[str, Any],
) -> torch.Tensor:
    """Attend in a call for each kind of padding, on the tokens of its sequences; out is 0 elsewhere."""
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    before = k.shape[2] - q.shape[2]  # keys before the first query
    for rows, tokens in alike:
        queries: slice | torch.Tensor = slice(None)
        if options["causal"] and isinstance(tokens, slice):
            queries = slice(max(0, tokens.start - before), max(0, tokens.stop - before))
        elif options["causal"]:
            queries = tokens[tokens >= before] - before
        some_q, some_k, some_v = q[rows], k[rows], v[rows]
        tensors = (some_q[:, :, queries], some_k[:, :, tokens], some_v[:, :, tokens])
        if tensors[0].shape[2]:
            out[rows, :, queries] = attention(*tensors, **options, **features)
    return out


def _is_step(attention: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, features: dict[str, Any]) -> bool:
    """Return whether a call is one of the front door for one query token, without features or gradients."""
    one = attention is dispatch.attention and q.shape[2] == 1 and not features
    return one and not plans.wants_gradients(q, k, v)


def _step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attend with one query token under a mask (batch, 1, 1, keys), by PyTorch; query heads of a key head are its rows.

    On an H200 it takes 0.04 ms where a launch with features takes the host 0.37 (8 sequences, 512 keys, 2026-11).
    """
    rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3]) if mask.shape[1] == 1 else q
    out = functional.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=scale, enable_gqa=rows is q)
    return out.reshape(*q.shape[:3], v.shape[3])


def _bounds(real: torch.Tensor, seqlen_q: int, causal: bool) -> SequenceBounds:
    """Return the bounds of sequences; computed once for all layers."""
    of_mask = _BOUNDS.setdefault(real, {})
    if (seqlen_q, causal) not in of_mask:
        of_mask[seqlen_q, causal] = feature_calls.bounds_of(real, seqlen_q, causal)
    return of_mask[seqlen_q, causal]


def _padded_alike(real: torch.Tensor) -> list[PaddedAlike]:
    """Return the sequences of a mask (batch, tokens) by where their real tokens are; read back from the device once."""
    found = _PADDED.get(real)
    if found is None:
        found = _PADDED[real] = list(_find_padded_alike(real))
    return found


def _find_padded_alike(real: torch.Tensor) -> Iterator[PaddedAlike]:
    length = real.shape[1]
    first = real.int().argmax(1)
    last = length - real.flip(1).int().argmax(1)
    spans: dict[tuple[int, int], list[int]] = {}
    for row, (start, end, count) in enumerate(torch.stack((first, last, real.sum(1)), 1).tolist()):
        if count == end - start:
            spans.setdefault((start, end), []).append(row)
        elif count:
            yield PaddedAlike(slice(row, row + 1), real[row].nonzero()[:, 0])
    for (start, end), rows in spans.items():
        together = rows[-1] - rows[0] + 1 == len(rows)
        yield PaddedAlike(slice(rows[0], rows[-1] + 1) if together else rows, slice(start, end))


def _checked(name: str) -> Attention:
    """Return the attention of an implementation, which says why where it does not take a call.

    Values narrower than keys are filled up with zeros where the implementation needs equal widths.
    """
    implementation = registry.get(name)

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window_size: int,
        softmax_scale: float | None, **features: Any,
    ) -> torch.Tensor:  # fmt: skip
        q, k, v = dispatch.autocasted(q, k, v)
        width, missing = v.shape[3], k.shape[3] - v.shape[3]
        mask = {"causal": causal, "window_size": window_size}
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
