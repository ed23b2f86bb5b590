"""The input of an implementation of level decode: query tokens, a cache, and the lengths in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import torch


@dataclass(frozen=True)
class DecodeStep:
    """One step of decoding, which the callable of an implementation prepares before anything is timed.

    A contiguous cache is (batch, num_kv_heads, capacity, head_dim), a paged one (pages, page_size, num_kv_heads,
    head_dim). It includes the keys of the query tokens; the last query is aligned with the last key. Rows beyond a
    length are undefined and must not be used, not even multiplied by 0. Entries of the page table beyond the pages of a
    sequence are invalid. A latent cache has one head with one record for each token: v_cache is a view of the first
    `latent_dim` numbers of the records. If `query_lengths` are given, q holds the query tokens of all sequences one
    after the other: (1, num_heads, total, head_dim).
    """

    q: torch.Tensor  # (batch, num_heads, query tokens, head_dim)
    k_cache: torch.Tensor
    v_cache: torch.Tensor  # like k_cache, head_dim_v wide
    lengths: tuple[int, ...]  # keys in use of each sequence, on the host
    cache_seqlens: torch.Tensor  # int32 (batch,), the lengths on the device
    page_table: torch.Tensor | None = None  # int32 (batch, pages of the longest sequence); None: contiguous
    latent_dim: int = 0  # 0: keys and values
    k_scale: torch.Tensor | None = None  # float32 (num_kv_heads,), factors of an e4m3 cache
    v_scale: torch.Tensor | None = None
    causal: bool = True
    window_size: int = 0
    softmax_scale: float | None = None  # None: 1 / sqrt(head_dim)
    query_lengths: tuple[int, ...] | None = None  # query tokens of each sequence; None: as many of each

    @property
    def page_size(self) -> int:
        """Return the tokens of a page; 0 of a contiguous cache."""
        return 0 if self.page_table is None else self.k_cache.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """Return the heads of the cache."""
        return self.k_cache.shape[1 if self.page_table is None else 2]

    @property
    def query_tokens(self) -> int:
        """Return the query tokens of a sequence, the most if they differ."""
        return max(self.query_lengths) if self.query_lengths else self.q.shape[2]

    @property
    def query_starts(self) -> torch.Tensor:
        """Return int32 (batch + 1,), where the query tokens of each sequence begin among all, and their end."""
        counts = self.query_lengths or (self.q.shape[2],) * len(self.lengths)
        return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=self.q.device)

    @property
    def query_rows(self) -> torch.Tensor:
        """Return q as (all query tokens, num_heads, head_dim), a view if the tokens lie so in memory."""
        return self.q.transpose(1, 2).flatten(0, 1)

    def like_q(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows (all query tokens, num_heads, head_dim_v) in the layout of q."""
        return rows.unflatten(0, (self.q.shape[0], self.q.shape[2])).transpose(1, 2)

    def groups(self) -> Iterator[DecodeStep]:
        """Yield a step for each run of sequences with as many query tokens, which are then one dimension of q."""
        if self.query_lengths is None:
            yield self
            return
        first = row = 0
        for tokens, run in groupby(self.query_lengths):
            count = len(list(run))
            own, rows = slice(first, first + count), self.q[0, :, row : row + count * tokens]
            if self.page_table is None:
                cache: dict[str, Any] = {"k_cache": self.k_cache[own], "v_cache": self.v_cache[own]}
            else:
                cache = {"page_table": self.page_table[own, : max(self.pages_of_sequences[own])]}
            lengths: dict[str, Any] = {"lengths": self.lengths[own], "query_lengths": None}
            lengths["cache_seqlens"] = self.cache_seqlens[own]
            yield replace(self, q=rows.unflatten(1, (count, tokens)).transpose(0, 1), **cache, **lengths)
            first, row = first + count, row + count * tokens

    @property
    def longest(self) -> int:
        """Return the keys of the longest sequence."""
        return max(self.lengths)

    @property
    def uniform(self) -> bool:
        """Return whether all sequences are of one length."""
        return len(set(self.lengths)) == 1

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        return self.q.shape[3] ** -0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def masks(self) -> dict[str, Any]:
        """Return the masks and the scale as keyword arguments of an attention."""
        return {"causal": self.causal, "window_size": self.window_size, "softmax_scale": self.softmax_scale}

    @property
    def pages_of_sequences(self) -> tuple[int, ...]:
        """Return how many pages each sequence uses."""
        return tuple(-(-length // self.page_size) for length in self.lengths)

    def in_use(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a contiguous cache's first `longest` keys and values."""
        return self.k_cache[:, :, : self.longest], self.v_cache[:, :, : self.longest]

    def tokens_first(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return views of q and the cache in other projects' layout: (batch or pages, tokens, heads, head_dim)."""
        k, v = self.k_cache, self.v_cache
        if self.page_table is None:
            k, v = (cache.transpose(1, 2) for cache in self.in_use())
        return self.q.transpose(1, 2), k, v

    def readable_table(self) -> torch.Tensor:
        """Return the page table with page 0 in unused entries, for libraries that may read them."""
        used = torch.tensor(self.pages_of_sequences, device=self.page_table.device)
        entries = torch.arange(self.page_table.shape[1], device=self.page_table.device)
        return self.page_table.masked_fill(entries >= used[:, None], 0)


def by_groups(prepare: Callable[[DecodeStep], Callable[[], torch.Tensor]], step: DecodeStep) -> Callable[[], Any]:
    """Return a step as one call for each group of sequences with as many query tokens."""
    if step.query_lengths is None:
        return prepare(step)
    parts = [prepare(group) for group in step.groups()]
    return lambda: torch.cat([part().transpose(1, 2).flatten(0, 1) for part in parts]).transpose(0, 1)[None]
