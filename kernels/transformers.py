"""Our attention inside any model of Hugging Face's transformers, by the names of `attn_implementation=`.

`register` adds a function for each implementation to transformers' AttentionInterface, and one that describes masks to
its AttentionMaskInterface. Causal masks and sliding windows reach the kernels as such, key heads are never repeated,
and padding is cut off: sequences of a batch that are padded alike are one call on their own tokens, and no mask of
queries by keys is made. Other masks (packed sequences, blocks of images, chunks) are made as transformers makes them
for scaled_dot_product_attention, which then computes them under the front door's name.

A name holds no slash, because transformers would look for it on its hub, and no "flash", because it would look for the
package FlashAttention. Nothing here imports transformers before `register` is called.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from kernels import dispatch, registry
from kernels.registry import Attention, UnsupportedCase

FRONT_DOOR = "attnbench"
NEEDS = "kernels.transformers needs transformers: pip install 'transformers>=5.17,<6'."
# What kernels here do not compute, by the argument with which a module of transformers asks for it.
_REFUSED = {
    "softcap": "a cap on the scores (softcap)",
    "s_aux": "attention sinks",
    "position_bias": "a bias by position",
    "cache": "a paged cache",
    "output_attentions": "the probabilities as a result (output_attentions)",
}


class PaddedAlike(NamedTuple):
    """Sequences of a batch whose real tokens stand at the same places."""

    rows: slice | list[int]  # of the batch
    tokens: slice | torch.Tensor  # of the keys
    first: int
    last: int  # after the last one


_PADDED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # by mask, which all layers of a model share


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
    Raises UnsupportedCase for what kernels here do not compute.
    """
    _refuse(dropout, asked)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is not None and attention_mask.dim() != 2:
        out = _by_mask_tensor(attention, query, key, value, attention_mask, scaling)
        return out.transpose(1, 2).contiguous(), None
    options = {"causal": causal, "window_size": sliding_window or 0, "softmax_scale": scaling}
    if options["window_size"] and not causal:
        raise UnsupportedCase("A sliding window without a causal mask comes as a mask tensor; this call has none.")
    if attention_mask is None:
        out = attention(query, key, value, **options)
    else:
        length = attention_mask.shape[1]  # of a static cache what is filled
        out = _without_padding(attention, query, key[:, :, :length], value[:, :, :length], attention_mask, options)
    return out.transpose(1, 2).contiguous(), None


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
    not full; and (batch, 1, q_length, kv_length) for any other mask than causal, causal in a window, and full.
    """
    kind = _kind(mask_function)
    if kind is None:
        from transformers.masking_utils import sdpa_mask

        sizes = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(batch_size, **sizes, mask_function=mask_function, attention_mask=attention_mask, **options)
    filled = min(kv_length, int(q_offset) + q_length - kv_offset) if kind == "causal" else kv_length
    if attention_mask is None:
        device = options.get("device", "cpu")
        return None if filled == kv_length else torch.ones(batch_size, filled, dtype=torch.bool, device=device)
    real = attention_mask[:, -kv_length:][:, :filled].bool()
    return None if real.shape[1] == kv_length and real.all() else real


def _kind(mask_function: Callable[..., Any] | None) -> str | None:
    """Return causal (in a window or not) or full; None for another mask."""
    if mask_function is None:
        return "causal"
    codes = _known_codes()
    if getattr(mask_function, "__code__", None) is codes["both"]:
        if torch.compiler.is_compiling():  # which does not read what a function closes over
            return None
        (parts,) = (cell.cell_contents for cell in mask_function.__closure__)
    else:
        parts = (mask_function,)
    found = {getattr(part, "__code__", None) for part in parts}
    if found == {codes["full"]}:
        return "full"
    return "causal" if codes["causal"] in found and found <= {codes["causal"], codes["window"]} else None


@cache
def _known_codes() -> dict[str, Any]:
    """Return the code of transformers' mask functions: those made for one call are new functions of the same code."""
    from transformers import masking_utils

    return {
        "causal": masking_utils.causal_mask_function.__code__,
        "full": masking_utils.bidirectional_mask_function.__code__,
        "window": masking_utils.sliding_window_overlay(1).__code__,
        "both": masking_utils.and_masks(masking_utils.causal_mask_function).__code__,
    }


def _refuse(dropout: float, asked: dict[str, Any]) -> None:
    """Raise UnsupportedCase if a call asks for what is not computed here."""
    found = ["dropout"] if dropout else []
    found += [words for name, words in _REFUSED.items() if asked.get(name) is not None and asked[name] is not False]
    if found:
        raise UnsupportedCase(f"Attention of attnbench does not compute {' and '.join(found)}; use 'sdpa' or 'eager'.")


def _by_mask_tensor(
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """Attend under a mask of queries by keys, which PyTorch does for the front door alone."""
    if attention is not dispatch.attention:
        raise UnsupportedCase(
            f"This model asks for a mask tensor of shape {tuple(mask.shape)}; implementations by name take causal "
            f"masks, sliding windows and padding. Under {FRONT_DOOR!r} PyTorch computes it."
        )
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


def _without_padding(
    attention: Attention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    real: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor:
    """Attend among real tokens, in one call for all sequences that are padded alike; out is 0 at padding.

    Under a causal mask the last query stands at the last key; otherwise every query sees all real keys.
    """
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    before = k.shape[2] - q.shape[2]  # keys before the first query
    for alike in _padded_alike(real):
        queries: slice | torch.Tensor = slice(None)
        if options["causal"] and isinstance(alike.tokens, slice):
            queries = slice(max(0, alike.first - before), max(0, alike.last - before))
        elif options["causal"]:
            if options["window_size"]:
                raise UnsupportedCase("A sliding window over tokens with padding between them is not supported.")
            queries = alike.tokens[alike.tokens >= before] - before
        some_q, some_k, some_v = q[alike.rows], k[alike.rows], v[alike.rows]
        tensors = (some_q[:, :, queries], some_k[:, :, alike.tokens], some_v[:, :, alike.tokens])
        if tensors[0].shape[2]:
            out[alike.rows, :, queries] = attention(*tensors, **options)
    return out


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
            yield PaddedAlike(slice(row, row + 1), real[row].nonzero()[:, 0], start, end)
    for (start, end), rows in spans.items():
        together = rows[-1] - rows[0] + 1 == len(rows)
        yield PaddedAlike(slice(rows[0], rows[-1] + 1) if together else rows, slice(start, end), start, end)


def _checked(name: str) -> Attention:
    """Return the attention of an implementation, which says why where it does not take a call.

    Values narrower than keys are filled up with zeros where the implementation needs equal widths.
    """
    implementation = registry.get(name)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        q, k, v = dispatch.autocasted(q, k, v)
        width, missing = v.shape[3], k.shape[3] - v.shape[3]
        mask = {"causal": options["causal"], "window_size": options["window_size"]}
        reason = registry.reason_against_tensors(name, q, k, v, **mask)
        if reason and missing > 0:
            v = functional.pad(v, (0, missing))
            reason = registry.reason_against_tensors(name, q, k, v, **mask)
        if reason:
            raise UnsupportedCase(reason)
        return implementation.attention(q, k, v, **options)[..., :width]

    return attention
