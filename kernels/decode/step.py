"""The input of an implementation of level decode: query tokens, a cache, and the lengths in use."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DecodeStep:
    """One step of decoding, which the callable of an implementation prepares before anything is timed.

    A contiguous cache is (batch, num_kv_heads, capacity, head_dim), a paged one (pages, page_size, num_kv_heads,
    head_dim). It includes the keys of the query tokens; the last query is aligned with the last key. Rows beyond a
    length are undefined and must not be used, not even multiplied by 0. Entries of the page table beyond the pages of a
    sequence are invalid. A latent cache has one head with one record for each token: v_cache is a view of the first
    `latent_dim` numbers of the records.
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
        """Return the query tokens of each sequence."""
        return self.q.shape[2]

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
