"""Split-KV decoding of this repository as an implementation of level decode, for keys and values or for latents.

Nothing is planned before a call: lengths and page tables are read on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..registry import AttentionCase, Device, declare, reason_against_interpreter, triton_missing
from .step import DecodeStep
from .triton_decode import MAX_HEAD_DIM, MAX_SEQLEN_Q
from .triton_decode import decode as split_kv
from .triton_decode.tuning import DecodeTile
from .triton_mla import mla_decode


def decode(step: DecodeStep, *, one_launch: bool = False, form: Any = None) -> Callable[[], Any]:
    """Return the step as a call; `triton_decode.decode` describes `one_launch`, which latents do not have.

    A form of the table "triton_decode" decides the tile (`kernels.forms`).

    If all lengths of a contiguous cache are equal, the used part of the cache is passed, as for PyTorch's backends, and
    no length is read from the device.
    """
    plain = step.page_table is None and step.uniform
    where: dict[str, Any] = {} if plain else {"cache_seqlens": step.cache_seqlens, "page_table": step.page_table}
    k, v = step.in_use() if plain else (step.k_cache, step.v_cache)
    if form:
        where["tile"] = DecodeTile(*form.result)
    if step.latent_dim:
        records = k.squeeze(1 if step.page_table is None else 2)
        latent: dict[str, Any] = {"softmax_scale": step.scale, "latent_dim": step.latent_dim, "causal": step.causal}
        return partial(mla_decode, step.q, records, **latent, **where)
    where |= {"k_scale": step.k_scale, "v_scale": step.v_scale, "one_launch": one_launch}
    return partial(split_kv, step.q, k, v, **step.masks, **where)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if (case.seqlen_q or 1) > MAX_SEQLEN_Q:
        return f"triton_split_kv takes up to {MAX_SEQLEN_Q} query tokens, not {case.seqlen_q}."
    if case.cache_dtype not in (None, case.dtype) and case.dtype == "float32":
        return "triton_split_kv takes an e4m3 cache with q in 16 bits alone."
    return refuses_device("triton_split_kv", case, device)


def refuses_device(name: str, case: AttentionCase, device: Device) -> str | None:
    """Return why the kernels over keys and values cannot run there, in the name of an implementation, or None."""
    if not case.latent_dim and max(case.head_dim or 0, case.head_dim_v or 0) > MAX_HEAD_DIM:
        return f"{name} does not support head_dim {case.head_dim} (up to {MAX_HEAD_DIM})."
    return reason_against_interpreter(name, case.dtype) if device.type == "cpu" else None


IMPLEMENTATIONS = (declare("triton_split_kv", decode, "decode", unavailable=triton_missing(), refuses=_refuses),)
