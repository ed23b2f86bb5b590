"""The baseline of decoding: eager PyTorch over any cache, with the softmax in float32.

A contiguous cache of one length is read in place. At every call, pages are gathered and rows beyond a length are
replaced by zeros. Heads that share keys are rows of one matrix product, so keys and values are not repeated. Sequences
with different numbers of query tokens are computed group by group.
"""

from collections.abc import Callable

import torch

from ..registry import declare
from .step import DecodeStep, by_groups


def decode(step: DecodeStep) -> Callable[[], torch.Tensor]:
    """Return the step as a call, one group of sequences with as many query tokens after the other."""
    return by_groups(_decode, step)


def _decode(step: DecodeStep) -> Callable[[], torch.Tensor]:
    """Return the step as a call: softmax(scale q k^T) v over the keys of each sequence; masks are made before it."""
    hidden = _hidden(step)
    unused = None  # or (batch, longest), true beyond a sequence's length
    if not step.uniform or step.page_table is not None:
        unused = torch.arange(step.longest, device=step.q.device) >= step.cache_seqlens[:, None]
    table = None if step.page_table is None else step.readable_table()

    def attend() -> torch.Tensor:
        k, v = step.in_use() if table is None else _gathered(step, table)
        if unused is not None:
            v = v.masked_fill(unused[:, None, :, None], 0) if table is None else _zeroed(v, unused)
        if v.dtype != step.q.dtype:  # e4m3
            k, v = k.to(step.q.dtype), v.to(step.q.dtype)
        return _attend(step, k, v, hidden)

    return attend


def _attend(step: DecodeStep, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Return attention of grouped queries to k and v: (batch, num_kv_heads, keys, head_dim)."""
    batch, num_heads, query_tokens, head_dim = step.q.shape
    num_kv_heads, keys = k.shape[1], k.shape[2]
    grouped = (step.q * step.scale).reshape(batch, num_kv_heads, -1, head_dim)  # group x query tokens rows a key head
    scores = (grouped @ k.mT).float()
    if step.k_scale is not None:
        scores *= step.k_scale[:, None, None]
    if hidden is not None:
        scores.view(batch, num_heads, query_tokens, keys).masked_fill_(hidden, float("-inf"))
    p = scores.softmax(-1)
    out = p.to(v.dtype) @ v
    if step.v_scale is not None:
        out = (out.float() * step.v_scale[:, None, None]).to(out.dtype)
    return out.view(batch, num_heads, query_tokens, v.shape[-1])


def _gathered(step: DecodeStep, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of each sequence's pages: (batch, num_kv_heads, keys, head_dim), a view of latents twice.

    e4m3 is gathered as bytes, which PyTorch can index.
    """
    k = _of_pages(step.k_cache, table)[:, :, : step.longest]
    return k, k[..., : step.latent_dim] if step.latent_dim else _of_pages(step.v_cache, table)[:, :, : step.longest]


def _of_pages(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    plain = cache.view(torch.uint8) if cache.element_size() == 1 else cache
    return plain[table].flatten(1, 2).transpose(1, 2).view(cache.dtype)


def _zeroed(v: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
    """Return v with zeros where no key is in use; of e4m3, whose zero is the byte 0, without arithmetic."""
    plain = v.view(torch.uint8) if v.element_size() == 1 else v
    return plain.masked_fill(unused[:, None, :, None], 0).view(v.dtype)


def _hidden(step: DecodeStep) -> torch.Tensor | None:
    """Return (batch, 1, query tokens, longest), true for hidden keys; None if every query sees every key.

    The last query of a sequence is aligned with its last key.
    """
    if step.uniform and not step.window_size and (step.query_tokens == 1 or not step.causal):
        return None
    device = step.q.device
    keys = torch.arange(step.longest, device=device)
    queries = torch.arange(step.query_tokens, device=device)
    positions = (step.cache_seqlens[:, None] - step.query_tokens + queries)[:, None, :, None]
    hidden = keys >= step.cache_seqlens[:, None, None, None]
    if step.causal:
        hidden = hidden | (keys > positions)
    elif step.window_size:
        hidden = hidden | (keys >= positions + step.window_size)
    if step.window_size:
        hidden = hidden | (keys <= positions - step.window_size)
    return hidden


IMPLEMENTATIONS = (declare("torch_naive", decode, "decode"),)
