"""Level decode: query tokens of each sequence against its KV cache, no gradients.

More query tokens than a decoding step has, and different numbers of them, lie in memory one token after the other, as
in a serving engine. Caches are contiguous or paged, hold keys and values or latents, and have q's dtype or e4m3. Reads
of unused memory are detected: unused rows and spare pages hold NaN, and unused entries of the page table name a page
that does not exist. Pages are permuted, and no two sequences share one.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels import reference, registry
from kernels.decode.step import DecodeStep
from kernels.problem import FEW_QUERIES
from kernels.registry import DecodeAttention, UnsupportedCase
from results.levels.decode import lengths_of, query_lengths_of
from results.records import Case, case_to_json, decode_case
from runner.levels import STRIDE, Call, Growth, Pass, Place, Trial, fill_normal, generator_of, measured

PASSES = (Pass("decode", "decode step", ("decode",), ("out",), also_recorded=(("out", "out_original"),)),)
ROOM = 128  # least number of tokens of a contiguous cache beyond the longest sequence
_ALIGNED = 64  # the capacity of a contiguous cache is a multiple of it
SPARE_PAGES = 3  # pages without a sequence
NO_PAGE = 2_147_480_000  # value of unused entries of the page table
LATENT_HEADS_WIDTH = 192  # head_dim before absorption, 128 and 64 rotary; scores are divided by its square root
_E4M3, _LARGEST_E4M3, _NAN_E4M3 = torch.float8_e4m3fn, 448.0, 0x7F
_MAGNITUDES = (1.0, 0.5, 2.0)  # factors of successive heads of a quantized cache, so that their scales differ
_CHUNK_NUMBERS = 1 << 26  # elements quantized at a time
_SMALL_CONTEXT = 64
_HIGH = 60.0  # score of the last key, above a usual softcap
Laid = tuple[tuple[int, int, int], torch.Tensor | None, tuple[torch.Tensor, ...]]  # rows, page table, unused rows


@dataclass(frozen=True)
class DecodeInputs:
    """The arguments of an implementation, and the tensors that filling and checking them need; all standard normal."""

    case: Case
    step: DecodeStep
    originals: tuple[torch.Tensor, ...]  # keys and values, or latents, before quantization; otherwise the caches
    unused: tuple[torch.Tensor, ...]  # indices or mask of unused rows

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.step.q.device

    @property
    def caches(self) -> tuple[torch.Tensor, ...]:
        """Return the caches as stored: keys and values, or latents."""
        return (self.step.k_cache,) if self.case.latent_dim else (self.step.k_cache, self.step.v_cache)

    def fill(self, seed: int, *, ends: bool = False) -> None:
        """Write the data of a seed into the tensors; a seed gives the same data on all devices of a type.

        With `ends` the first and the last key that a sequence's last token sees have large scores in one query head of
        each group, so that each of them decides about half of out.
        """
        fill_normal((self.step.q, *self.originals), generator_of(self.case, self.device, seed))
        if ends:
            self._raise_ends()
        if self.step.k_scale is not None:
            scales = (self.step.k_scale, self.step.v_scale)
            for original, cache, scale in zip(self.originals, self.caches, scales, strict=False):
                self._quantise(original, cache, scale)
        for cache in self.caches:
            self._poison(cache)

    def bytes_of(self, mode: str) -> int:
        """Return the bytes of q, the used part of the cache, the page table and the scales."""
        widths = sum(cache.shape[3] * cache.element_size() for cache in self.caches)
        table = (self.step.page_table,) if self.step.page_size else ()
        scales = (self.step.k_scale, self.step.v_scale) if self.step.k_scale is not None else ()
        given = sum(tensor.numel() * tensor.element_size() for tensor in (self.step.q, *table, *scales))
        return given + sum(self.step.lengths) * self.step.num_kv_heads * widths

    def result_shapes(self) -> list[torch.Size]:
        """Return the shape of out, twice."""
        return [torch.Size((*self.step.q.shape[:3], self.step.v_cache.shape[3]))] * 2

    def sequences(self, *, original: bool = False) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield q, keys and values of each sequence, (1, heads, tokens, head_dim); quantized ones in float64.

        `original` yields them as they were before quantization.
        """
        quantised = self.step.k_scale is not None and not original
        scales = (self.step.k_scale, self.step.v_scale)[: len(self.caches)]
        ends = self.step.query_starts.tolist()[1:] if self.step.query_lengths else None
        for at, length in enumerate(self.step.lengths):
            found = [self._rows(cache, at, length) for cache in (self.originals if original else self.caches)]
            if quantised:
                found = [x.double() * scale[:, None, None] for x, scale in zip(found, scales, strict=True)]
            values = found[-1][..., : self.case.latent_dim] if self.case.latent_dim else found[-1]
            q = self.step.q[at : at + 1]
            if ends:
                q = self.step.q[:, :, ends[at] - self.step.query_lengths[at] : ends[at]]
            yield q, found[0], values

    def _rows(self, cache: torch.Tensor, at: int, length: int) -> torch.Tensor:
        if not self.step.page_size:
            return cache[at : at + 1, :, :length]
        pages = self.step.page_table[at, : self.step.pages_of_sequences[at]]
        plain = cache.view(torch.uint8) if cache.dtype == _E4M3 else cache  # PyTorch cannot index e4m3
        return plain[pages].flatten(0, 1)[:length].transpose(0, 1)[None].view(cache.dtype)

    def _raise_ends(self) -> None:
        step, group = self.step, self.step.q.shape[1] // self.step.num_kv_heads
        ends = step.query_starts.tolist()[1:] if step.query_lengths else None
        table = step.page_table.tolist() if step.page_table is not None else None
        keys = self.originals[0]
        for at, length in enumerate(step.lengths):
            q = step.q[0, ::group, ends[at] - 1] if ends else step.q[at, ::group, -1]
            direction = q.float() / (q.float().square().sum(-1, keepdim=True) * step.scale)
            first = max(0, length - step.window_size) if step.window_size else 0
            for token, score in ((first, _HIGH - 1), (length - 1, _HIGH)):
                row = keys[at, :, token] if table is None else keys[table[at][token // step.page_size]]
                row = row if table is None else row[token % step.page_size]
                row.copy_(score * direction)

    def _quantise(self, original: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor) -> None:
        """Scale the original's heads by their magnitudes and write it to the cache as e4m3 with maximum 448."""
        heads = 2 if self.step.page_size else 1
        shape = [-1 if dim == heads else 1 for dim in range(4)]
        factors = [_MAGNITUDES[head % len(_MAGNITUDES)] for head in range(self.step.num_kv_heads)]
        original.mul_(torch.tensor(factors, device=self.device, dtype=original.dtype).view(shape))
        scale.copy_(original.abs().amax([dim for dim in range(4) if dim != heads]).float() / _LARGEST_E4M3)
        step = max(1, _CHUNK_NUMBERS // max(1, original[0].numel()))
        for rows, stored in zip(original.split(step), cache.split(step), strict=True):
            stored.copy_((rows.float() / scale.view(shape)).to(_E4M3))

    def _poison(self, cache: torch.Tensor) -> None:
        plain, nan = (cache.view(torch.uint8), _NAN_E4M3) if cache.dtype == _E4M3 else (cache, math.nan)
        if self.step.page_size:
            plain[self.unused] = nan
        elif self.step.uniform:
            plain[:, :, self.step.longest :] = nan
        else:
            plain.masked_fill_(self.unused[0][:, None, :, None], nan)


def empty_inputs(case: Case, device: str) -> DecodeInputs:
    """Return the tensors of a case with lengths and page table set and the rest uninitialized.

    Raises UnsupportedCase for quantized latents and for a cache that is neither in q's dtype nor in e4m3.
    """
    if case.cache_dtype not in (None, case.dtype) and (case.cache_dtype != "float8_e4m3fn" or case.latent_dim):
        raise UnsupportedCase(f"A cache in {case.cache_dtype} is not measured; e4m3 caches of keys and values are.")
    lengths = lengths_of(case_to_json(case))
    rows, table, unused = _pages(case, lengths, device) if case.page_size else _contiguous(case, lengths, device)
    dtype = getattr(torch, case.dtype)
    widths = (case.head_dim,) if case.latent_dim else (case.head_dim, case.head_dim_v or case.head_dim)
    originals = tuple(torch.empty((*rows, width), dtype=dtype, device=device) for width in widths)
    quantised = case.cache_dtype not in (None, case.dtype)
    caches = tuple(torch.empty_like(x, dtype=_E4M3) for x in originals) if quantised else originals
    scales = [torch.ones(case.num_kv_heads, device=device) if quantised else None for _ in range(2)]
    query_lengths = query_lengths_of(case_to_json(case))
    step = DecodeStep(
        q=_queries(case, query_lengths, device),
        k_cache=caches[0],
        v_cache=caches[0][..., : case.latent_dim] if case.latent_dim else caches[1],
        lengths=lengths,
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device=device),
        page_table=table,
        latent_dim=case.latent_dim or 0,
        k_scale=scales[0],
        v_scale=scales[1],
        causal=bool(case.causal),
        window_size=case.window_size or 0,
        softmax_scale=LATENT_HEADS_WIDTH**-0.5 if case.latent_dim else None,
        query_lengths=query_lengths,
    )
    return DecodeInputs(case, step, originals, unused)


def _queries(case: Case, query_lengths: tuple[int, ...] | None, device: str) -> torch.Tensor:
    """Return q (batch, num_heads, tokens, head_dim), uninitialized; batch 1 if the numbers of tokens differ."""
    dtype = getattr(torch, case.dtype)
    if query_lengths is None and case.seqlen_q <= FEW_QUERIES:
        return torch.empty((case.batch, case.num_heads, case.seqlen_q, case.head_dim), dtype=dtype, device=device)
    sizes = (1, sum(query_lengths)) if query_lengths else (case.batch, case.seqlen_q)
    return torch.empty((*sizes, case.num_heads, case.head_dim), dtype=dtype, device=device).transpose(1, 2)


def _contiguous(case: Case, lengths: Sequence[int], device: str) -> Laid:
    """Return the shape of a contiguous cache's rows, no table, and a mask (batch, capacity) of the unused tokens."""
    capacity = -(-(max(lengths) + ROOM) // _ALIGNED) * _ALIGNED
    tokens = torch.arange(capacity, device=device)
    unused = tokens >= torch.tensor(lengths, device=device)[:, None]
    return (case.batch, case.num_kv_heads, capacity), None, (unused,)


def _pages(case: Case, lengths: Sequence[int], device: str) -> Laid:
    """Return the shape of the pages' rows, a permuted table, and the page and token of each unused row."""
    size = case.page_size
    counts = [-(-length // size) for length in lengths]
    pages = sum(counts) + SPARE_PAGES
    order = torch.randperm(pages, generator=generator_of(case, torch.device("cpu"), 0))
    table = torch.full((case.batch, max(counts)), NO_PAGE, dtype=torch.int32)
    in_use = torch.zeros(pages, dtype=torch.int64)  # tokens of each page
    for row, count, length, own in zip(table, counts, lengths, order[SPARE_PAGES:].split(counts), strict=True):
        row[:count] = own
        in_use[own] = size
        in_use[own[-1]] = length - (count - 1) * size
    rest = torch.arange(size) >= in_use[:, None]
    page, token = rest.nonzero(as_tuple=True)
    unused = (page.to(device), token.to(device))
    return (pages, size, case.num_kv_heads), table.to(device), unused


def trial(attention: DecodeAttention, inputs: DecodeInputs, mode: str) -> Trial:
    """Return the call of the mode, which is its only pass."""
    return Trial(call(attention, inputs, mode))


def call(attention: DecodeAttention, inputs: DecodeInputs, mode: str) -> Call:
    """Return one decoding step without gradients; planning by the implementation is done here, outside the call."""
    with torch.no_grad():
        attend = attention(inputs.step)

    def decode() -> torch.Tensor:
        with torch.no_grad():
            return attend()

    return decode


def oracle(inputs: DecodeInputs, modes: tuple[str, ...], *, fp8: bool = False) -> dict[str, torch.Tensor]:
    """Return out in float64 from the cache as stored, one sequence at a time to save memory.

    For a quantized cache, `out_original` is the out of the cache before quantization.
    """
    if fp8:
        raise UnsupportedCase("Decoding has no oracle for inputs rounded to FP8.")
    found = {"out": _exact(inputs, original=False)}
    return found if inputs.step.k_scale is None else {**found, "out_original": _exact(inputs, original=True)}


def _exact(inputs: DecodeInputs, *, original: bool, stored_as: torch.dtype | None = None) -> torch.Tensor:
    step = inputs.step
    options: dict[str, Any] = {"causal": step.causal, "window_size": step.window_size, "softmax_scale": step.scale}
    sequences = inputs.sequences(original=original)
    found = [reference.attention(*each, **options, stored_as=stored_as).out for each in sequences]
    return torch.cat(found, 2 if step.query_lengths else 0)


def fused_oracle(inputs: DecodeInputs, modes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return out of a kernel that rounds its factors and out to the dtype of q; numbers of e4m3 are exact in it."""
    return {"out": _exact(inputs, original=False, stored_as=inputs.step.q.dtype)}


def harden(inputs: DecodeInputs, seed: int) -> tuple[DecodeInputs, Place]:
    """Fill in data with large scores at both ends of each sequence, which shows a missing key; return all of it."""
    inputs.fill(seed, ends=True)
    return replace(inputs, case=replace(inputs.case, inputs="large")), ()


@contextlib.contextmanager
def doubled(inputs: DecodeInputs, mode: str, number: int = 0) -> Iterator[Growth]:
    """Double the values or their scales within the block and yield the growth of out; tensor versions do not change.

    A result cached by address and version does not grow. With another number only one column of values grows, which an
    implementation that looks at a few numbers does not notice. Scales grow together, because a plan may have read them.
    Latents stay the same, because they are also the keys.
    """
    if inputs.case.latent_dim:
        yield {"out": 1.0}
        return
    values = inputs.step.v_cache if inputs.step.v_scale is None else inputs.step.v_scale
    growth = torch.ones(inputs.step.v_cache.shape[-1], device=inputs.device)
    some = slice(None) if not number or values is inputs.step.v_scale else number * STRIDE % len(growth)
    growth[some] = 2.0
    values.data[..., some].mul_(2.0)
    try:
        yield {"out": growth}
    finally:
        values.data[..., some].mul_(0.5)


def small_case(dtype: str, head_dim: int) -> Case:
    """Return one sequence with one head and 64 tokens in its cache."""
    return decode_case(batch=1, num_heads=1, num_kv_heads=1, context=_SMALL_CONTEXT, head_dim=head_dim, dtype=dtype)


LEVEL = measured(
    globals(), implementations=lambda: registry.implementations("decode"), passes=lambda case: PASSES, checks_rows=True
)
