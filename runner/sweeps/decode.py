"""Sweeps of level decode: context by batch, for paged, ragged, quantized and latent caches; and batch specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from results import batches
from results.records import DTYPES, LENGTHS, Case, decode_case
from runner.sweeps.grid import DTYPE, TIMING, TORCH, GridAxis, Sweep, split_heads

OURS = ("triton_split_kv",)
OURS_ANY = ("triton_varlen", "triton_separate")  # any number of query tokens
FUSED = ("torch_naive", "torch_sdpa_flash", "torch_sdpa_cudnn", "torch_sdpa_efficient")
PEERS = ("cudnn_frontend", "flashinfer", "flash_attn_2", "flash_attn_3", "flash_attn_4", "xformers")
OVER_PAGES = ("flex_paged",)
OVER_LATENTS = ("flashinfer", "flash_attn_3", "flash_mla")
SAME = "same"  # cache_dtype of a cache in the dtype of q
ROPE_DIM = 64  # rotary dimensions of a latent record, in addition to its latent
_FEATURES = (
    "heads", "head_dim", "dtype", "query_tokens", "window_size", "page_size", "lengths", "cache_dtype", "latent_dim",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecodeSweep(Sweep):
    """A grid of decoding cases."""

    LEVEL = "decode"
    AXES = (
        GridAxis("context", about="Tokens in each sequence's cache, on average.", first=True, of_a_cell="one"),
        GridAxis("batch", first=True, of_a_cell="one"),
        GridAxis("heads", "heads", about="Query heads over key heads, such as 64/8.", first=True, of_a_cell="one"),
        GridAxis("head_dim", of_a_cell="one"),
        DTYPE,
        GridAxis("query_tokens", about="New tokens of each sequence, up to 16.", of_a_cell="any"),
        GridAxis("window_size", about="Keys that a query sees to its left; 0: all of them.", of_a_cell="any"),
        GridAxis("page_size", about="Tokens per page of the cache; 0: contiguous.", of_a_cell="any"),
        GridAxis(
            "lengths", "text", LENGTHS, about="ragged: normal, standard deviation half the context.", of_a_cell="any"
        ),
        GridAxis(
            "cache_dtype", "text", (SAME, *DTYPES), about="float8_e4m3fn has a scale for each head.", of_a_cell="any"
        ),
        GridAxis(
            "latent_dim",
            about=f"Width of the latent, without its {ROPE_DIM} rotary dimensions (MLA, absorbed); 0: keys and values.",
            of_a_cell="any",
        ),
        GridAxis(
            "batch_spec",
            "batch",
            about="Batches such as 2q2k_32q1s4k, as in vLLM's attention benchmark; they set batch, context and tokens.",
            optional=True,
        ),
        TIMING,
    )
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
    implementations: tuple[str, ...] = FUSED + OURS + PEERS

    @classmethod
    def completed(cls, case: Case, sizes: Mapping[str, Any]) -> Case:
        """Return a case of a table with unstated fields filled in."""
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
_LLAMA_70B = DecodeSweep(  # most of the sweeps below use its heads
    name="decode", description="", context=(2048, 8192, 32768), batch=(1, 8, 32, 128), heads=("64/8",)
)
SWEEPS = (
    dataclasses.replace(
        _LLAMA_70B,
        description="One query token against contiguous KV caches: context by batch, four pairs of heads",
        context=(2048, 8192, 32768, 131072),
        heads=("64/8", "32/8", "32/32", "71/1"),
    ),
    dataclasses.replace(
        _LLAMA_70B,
        name="paged_decode",
        description="Pages of 1, 16, 64 and 256 tokens and a contiguous cache, lengths uniform and ragged",
        context=(2048, 8192),
        page_size=(0, 1, 16, 64, 256),
        lengths=("uniform", "ragged"),
        implementations=("torch_naive", *OURS, *PEERS, *OVER_PAGES),
    ),
    dataclasses.replace(
        _LLAMA_70B,
        name="multi_token_decode",
        description="1 to 16 query tokens of each sequence, as speculative decoding has them",
        context=(2048, 8192, 32768),
        batch=(1, 8, 32),
        query_tokens=(1, 2, 4, 8, 16),
        implementations=("torch_naive", "torch_sdpa_efficient", *OURS, *PEERS),
    ),
    dataclasses.replace(
        _LLAMA_70B,
        name="mla_decode",
        description="Latent attention (MLA, 512 + 64, absorbed) with 16 to 128 heads over pages of 64",
        context=(1024, 8192, 32768),
        batch=(1, 16, 64, 128),
        heads=("16", "32", "64", "128"),
        page_size=(64,),
        latent_dim=(512,),
        implementations=("torch_naive", *OURS, *OVER_LATENTS),
    ),
    dataclasses.replace(
        _LLAMA_70B,
        name="fp8_cache_decode",
        description="A cache in e4m3 with a scale per head, and one in bfloat16: time and error",
        cache_dtype=(SAME, "float8_e4m3fn"),
        implementations=("torch_naive", "torch_sdpa_flash", "torch_sdpa_cudnn", *OURS, "cudnn_frontend", "flashinfer"),
    ),
    dataclasses.replace(
        _LLAMA_70B,
        name="paged_prefill",
        description="Prompts, whole or the last chunk, over pages of 16, 64 and 256 tokens and a contiguous cache",
        context=(),
        batch=(),
        batch_spec=("q2k", "8q2k", "q8k", "q2ks16k", "4q512s8k"),
        heads=("32/8", "64/8"),
        page_size=(0, 16, 64, 256),
        implementations=("torch_naive", *OURS_ANY, *PEERS),
    ),
    dataclasses.replace(
        _LLAMA_70B,
        name="mixed_batches",
        description="Prompts and decoding steps in one batch over pages, as a serving engine has them",
        context=(),
        batch=(),
        batch_spec=("q2k_32q1s4k", "2q2k_32q1s4k", "q1ks16k_64q1s2k", "4q512s2k_128q1s1k", "q8k_8q4s8k"),
        heads=("32/8", "64/8"),
        page_size=(16, 64),
        implementations=("torch_naive", *OURS_ANY, *PEERS),
    ),
    DecodeSweep(
        name="decode_quick",
        description="A first look at decoding in seconds, on any GPU or CPU: every kind of cache once",
        context=(128, 512),
        batch=(1, 4),
        heads=("8/2",),
        head_dim=(64,),
        dtype=("float16", "float32"),
        query_tokens=(1, 4),
        window_size=(0, 64),
        page_size=(0, 16),
        lengths=LENGTHS,
        cache_dtype=(SAME, "float8_e4m3fn"),
        latent_dim=(0, 512),
        features_apart=True,
        implementations=TORCH + OURS + PEERS,
        protocol="quick",
    ),
)
