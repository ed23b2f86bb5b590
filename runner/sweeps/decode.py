"""Sweeps of level decode: context by batch, for paged, ragged, quantized and latent caches; and batch specs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from results import batches
from results.records import DTYPES, LENGTHS, Case, decode_case
from runner.sweeps.grid import Sweep, SweepFile, split_heads

_FILE = SweepFile(__file__)
SAME = "same"  # cache_dtype of a cache in the dtype of q
ROPE_DIM = 64  # rotary dimensions of a latent record, in addition to its latent
_FEATURES = (
    "heads", "head_dim", "dtype", "query_tokens", "window_size", "page_size", "lengths", "cache_dtype", "latent_dim",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecodeSweep(Sweep):
    """A grid of decoding cases."""

    LEVEL = "decode"
    AXES = _FILE.axes(lengths=LENGTHS, cache_dtype=(SAME, *DTYPES))
    RULES = MappingProxyType(dict.fromkeys(("context", "batch", "query_tokens", "lengths"), "batch_spec"))
    FOLDED = "Head_dim, dtype, cache, window and timings"
    FOLDED_OF_A_CELL = "Query tokens, window and cache"

    context: tuple[int, ...]  # tokens in each sequence's cache
    batch: tuple[int, ...]
    heads: tuple[str, ...]  # num_heads/num_kv_heads; latents, which all heads share, use num_heads only
    head_dim: tuple[int, ...] = (128,)  # not used by latents, whose head_dim is the width of a record
    query_tokens: tuple[int, ...] = (1,)
    window_size: tuple[int, ...] = (0,)
    page_size: tuple[int, ...] = (0,)
    lengths: tuple[str, ...] = ("uniform",)
    cache_dtype: tuple[str, ...] = (SAME,)
    latent_dim: tuple[int, ...] = (0,)
    batch_spec: tuple[str, ...] | None = None  # in place of context, batch, query_tokens and lengths
    features_apart: bool = False  # whether features vary one at a time from their first values, not in a product
    dtype: tuple[str, ...] = ("bfloat16",)
    modes: tuple[str, ...] = ("decode",)
    implementations: tuple[str, ...] = _FILE.names("fused", "ours", "peers")

    @classmethod
    def completed(cls, case: Case, sizes: Mapping[str, Any]) -> Case:
        """Return a case of a table with unstated fields filled in; `sizes` has those that both levels share."""
        lengths: dict[str, Any] = {"query_tokens": case.seqlen_q, "lengths": case.lengths or "uniform"}
        return decode_case(context=case.seqlen_k, page_size=case.page_size or 0, **lengths, **sizes)

    def _cases(self) -> Iterator[Case]:
        for sizes in self._sizes():
            for values in self._features():
                yield _case(**values | sizes)

    def _sizes(self) -> Iterator[dict[str, Any]]:
        """Yield context and batch, or the fields of a batch spec."""
        for context, batch in () if self.batch_spec else product(self.context, self.batch):
            yield {"context": context, "batch": batch}
        for fields in map(batches.fields_of, self.batch_spec or ()):
            yield {_NAMES.get(name, name): value for name, value in fields.items()}

    def _features(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of a case other than its context and batch."""
        axes = {name: getattr(self, name) for name in _FEATURES}
        if not self.features_apart:
            yield from (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
            return
        first = {name: values[0] for name, values in axes.items()}
        yield first
        for name, values in axes.items():
            yield from (first | {name: value} for value in values[1:])


_NAMES = {"seqlen_q": "query_tokens", "seqlen_k": "context"}  # of decode_case, by field


def _case(*, heads: str, head_dim: int, cache_dtype: str, latent_dim: int, **fields: Any) -> Case:
    num_heads, num_kv_heads = split_heads(heads)
    return decode_case(
        num_heads=num_heads,
        num_kv_heads=1 if latent_dim else num_kv_heads,
        head_dim=latent_dim + ROPE_DIM if latent_dim else head_dim,
        cache_dtype=None if cache_dtype == SAME else cache_dtype,
        latent_dim=latent_dim,
        **fields,
    )


SWEEP = DecodeSweep
SWEEPS = _FILE.sweeps(DecodeSweep)
