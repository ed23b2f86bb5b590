"""The tensors of a case's features: what `results.features` names, as `kernels.features` takes it."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from kernels.features import Features, SequenceBounds, block_mask
from results.features import lengths_of, listed_blocks, parsed
from results.records import Case, case_to_json

_SEED = 1  # of dropout and of listed blocks; every implementation drops and lists the same ones


def options_of(case: Case, device: str) -> dict[str, Any]:
    """Return the keyword arguments of a call besides q, k and v; sinks and biases are uninitialized.

    `features` and `bounds` are left out where the case has none. Masks and lengths depend on the case alone, not on the
    seed of the data, so that an implementation may prepare them once.
    """
    asked, window = parsed(case.features), case.window_size or 0
    found: dict[str, Any] = {"causal": bool(case.causal), "window_size": window}
    if "ahead" in asked:
        found["window_size"] = (window - 1, int(asked["ahead"]))
    lengths = lengths_of(case_to_json(case)) if asked else ()
    fields = {name: value for name in asked for name, value in _fields(name, asked[name], case, lengths, device)}
    if fields:
        found["features"] = Features(**fields)
    if "varlen" in asked:
        found["bounds"] = _bounds(lengths[0], device)
    return found


def random_tensors(options: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a call's options that hold random numbers."""
    asked: Features | None = options.get("features")
    tensors = (asked.sinks, asked.mask) if asked else ()
    return tuple(x for x in tensors if x is not None and x.is_floating_point())


def _fields(name: str, value: str, case: Case, lengths: Sequence[Sequence[int]], device: str) -> list[tuple[str, Any]]:
    """Return the fields of Features of one feature."""
    heads, seqlen = int(case.num_heads or 1), int(case.seqlen_k or 1)
    dtype = getattr(torch, str(case.dtype))
    if name == "softcap":
        return [("softcap", float(value))]
    if name == "dropout":
        return [("dropout_p", float(value)), ("dropout_seed", torch.tensor(_SEED, device=device))]
    if name == "sinks":
        return [("sinks", torch.empty(heads, dtype=dtype, device=device))]
    if name == "alibi":
        return [("alibi_slopes", torch.tensor(slopes(heads), device=device))]
    if name == "mask" and value == "padding":
        real = torch.tensor(lengths, device=device) > torch.arange(seqlen, device=device)
        return [("mask", real[:, None, None])]
    if name == "mask":
        bias = torch.empty(1, heads, int(case.seqlen_q or 1), seqlen, dtype=dtype, device=device)
        return [("mask", bias.requires_grad_("bias_gradient" in parsed(case.features)))]
    if name == "prefix":
        return [("prefix_lengths", torch.tensor(lengths, device=device)[:, 0])]
    if name == "blocks":
        return [("block_mask", block_mask(_listed(case).to(device)))]
    if name == "documents":
        rows = [[at for at, length in enumerate(row) for _ in range(length)] for row in lengths]
        return [("document_ids", torch.tensor(rows, device=device))]
    return []


def _listed(case: Case) -> torch.Tensor:
    """Return (1, num_heads, blocks, blocks): for each query block its own block and others drawn at random."""
    _, counts = listed_blocks(case_to_json(case)) or (0, [])
    blocks = len(counts)
    order = torch.rand(int(case.num_heads or 1), blocks, blocks, generator=torch.Generator().manual_seed(_SEED))
    if case.causal:
        order.masked_fill_(torch.ones(blocks, blocks, dtype=torch.bool).triu(1), 2.0)
    order.diagonal(dim1=1, dim2=2).fill_(-1.0)
    return (order.argsort(2).argsort(2) < torch.tensor(counts)[:, None])[None]


def _bounds(lengths: Sequence[int], device: str) -> SequenceBounds:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return SequenceBounds(starts[:-1], starts[1:], starts[:-1], starts[1:], longest, longest, packed=True)


def slopes(heads: int) -> list[float]:
    """Return ALiBi's slope of each head (arXiv 2108.12409): 2^(-8 i / n), interleaved where n is no power of two."""
    n = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    return found + [2.0 ** (-4 * (2 * i + 1) / n) for i in range(heads - n)]
