"""The calls that `kernels.tools.check` makes: one list for compiling offline and for NVIDIA's checker.

`small_cases` reach every kernel with small odd shapes. `compiled_cases` adds shapes that reach the larger tiles of the
tuning tables; those are only compiled, on tensors without memory (`kernels.tools.capture`). Feature cases are those of
`kernels.tools.check_features`.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import decode, mla_decode, reference, registry
from . import check_features

CHIPS = (80, 86, 89, 90, 100, 120)  # compute capabilities: 90 is 9.0
MASKS = {"full": (False, 0), "causal": (True, 0), "window": (True, 70)}  # causal, window_size
# The largest error of a result: the norm of the difference over the norm. A wrong tile is far beyond it.
LARGEST_ERROR = {"fp8": 0.1, "bfloat16": 0.02, "float8_e4m3fn": 0.02, "tf32": 0.01, "float32": 1e-4}


_DECLARED = tomllib.loads(Path(__file__).with_name("cases.toml").read_text())


class Size(NamedTuple):
    """A batch of attention without its head_dim."""

    batch: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int


SIZES = {name: Size(*size) for name, size in _DECLARED["sizes"].items()}


@dataclass(frozen=True)
class OpCase:
    """One call of an implementation, and of its backward if it has one."""

    implementation: str
    dtype: str
    head_dim: int
    mask: str = "full"
    size: str = "small"
    grouped: bool = True  # query heads share their keys and values
    deterministic: bool = False
    busy: bool = False  # pretends that the GPU has few multiprocessors, each with several tiles to do
    idle: bool = False  # pretends that it has more multiprocessors than there are tiles
    tiles_of: str = ""  # takes the tiles of longer sequences, see `kernels.tools.sanitize.LENGTHS`

    @property
    def package(self) -> str:
        """Return the package whose kernels it runs."""
        return self.implementation.removesuffix("_tf32")

    @property
    def seqlens(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys.

        Plans are cached by shape, so each circumstance gets its own number of keys.
        """
        circumstances = (self.busy, self.idle, self.tiles_of == "middle", self.tiles_of == "long")
        extra = 0 if self.size == "aligned" else sum(so << bit for bit, so in enumerate(circumstances))
        return SIZES[self.size].seqlen_q, SIZES[self.size].seqlen_k + extra

    @property
    def name(self) -> str:
        """Return the name by which the command line chooses the case."""
        words = {
            self.size: self.size != "small",
            "ungrouped": not self.grouped,
            "deterministic": self.deterministic,
            "busy": self.busy,
            "idle": self.idle,
            self.tiles_of: bool(self.tiles_of),
        }
        rest = (word for word, applies in words.items() if applies)
        return " ".join((self.implementation, self.dtype, str(self.head_dim), self.mask, *rest))

    @property
    def largest_error(self) -> float:
        """Return the largest error that a result may have."""
        return LARGEST_ERROR[registry.get(self.implementation).precision or self.dtype]

    def runs_on(self, chip: int) -> bool:
        """Return whether the implementation is for a compute capability."""
        each = registry.get(self.implementation)
        least, most = each.min_compute_capability or (8, 0), each.max_compute_capability or (99, 0)
        return least <= divmod(chip, 10) <= most

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Return random q, k, v and dout."""
        size, dtype = SIZES[self.size], getattr(torch, self.dtype)
        key_heads = max(1, size.num_heads // 8) if self.grouped else size.num_heads
        queries, keys = (size.num_heads, self.seqlens[0]), (key_heads, self.seqlens[1])
        shapes = ((size.batch, *shape, self.head_dim) for shape in (queries, keys, keys, queries))
        return [torch.randn(shape, device=device).to(dtype) for shape in shapes]

    def compute(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor) -> list[torch.Tensor]:
        """Return out, and dq, dk and dv if there is a backward."""
        implementation, (causal, window_size) = registry.get(self.implementation), MASKS[self.mask]
        inputs = [x.detach().requires_grad_(implementation.backward) for x in (q, k, v)]
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            options = {"window_size": window_size} if implementation.window else {}
            out = implementation.attention(*inputs, causal=causal, **options)
            return [out.detach(), *(torch.autograd.grad(out, inputs, dout) if implementation.backward else ())]
        finally:
            torch.use_deterministic_algorithms(False)

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor) -> list[torch.Tensor]:
        """Return out, dq, dk and dv in float64."""
        causal, window_size = MASKS[self.mask]
        answer = reference.gradients(q, k, v, dout, causal=causal, window_size=window_size)
        return [answer.out, answer.dq, answer.dk, answer.dv]


@dataclass(frozen=True)
class DecodeCase:
    """One step of decoding over a cache; head_dim 512 is a cache of latents with 64 rotary dimensions."""

    dtype: str  # dtype of the cache; queries of an e4m3 cache are bfloat16
    head_dim: int
    rows: int = 4  # query heads of a key head
    batch: int = 2
    context: int = 300
    seqlen_q: int = 1
    page: int = 0
    ragged: bool = False  # each sequence has its own length
    mask = "causal"
    package = "decode"  # for both operators

    @property
    def latent(self) -> bool:
        """Return whether the cache holds latents."""
        return self.head_dim == 512

    @property
    def name(self) -> str:
        """Return the name by which the command line chooses the case."""
        shape = f"rows {self.rows} batch {self.batch} context {self.context} queries {self.seqlen_q}"
        words = (f"page {self.page}" if self.page else "", "ragged" if self.ragged else "")
        return " ".join((self.package, self.dtype, str(self.head_dim), shape, *filter(None, words)))

    @property
    def largest_error(self) -> float:
        """Return the largest error that the result may have."""
        return LARGEST_ERROR[self.dtype]

    def runs_on(self, chip: int) -> bool:
        """Return True: the kernels of decoding are for all chips."""
        return True

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Return random q, k and v, where v of a cache of latents is k."""
        heads, width = (1, 576) if self.latent else (2, self.head_dim)
        dtype = getattr(torch, self.dtype)
        query_dtype = torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype
        cache = (self.batch, self.context, heads, width)
        if self.page:
            cache = (-(-self.batch * self.context // self.page) + self.batch, self.page, heads, width)
        q = torch.randn(self.batch, heads * self.rows, self.seqlen_q, width, device=device).to(query_dtype)
        k = torch.randn(cache, device=device).to(dtype)
        return [q, k, k if self.latent else torch.randn(cache, device=device).to(dtype)]

    def compute(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        """Return out."""
        options = {}
        if self.ragged:
            options["cache_seqlens"] = torch.tensor(self._lengths, dtype=torch.int32, device=q.device)
        if self.page:
            options["page_table"] = torch.tensor(self._table, dtype=torch.int32, device=q.device)
        if self.latent:
            return [mla_decode(q, k[:, :, 0], softmax_scale=192**-0.5, **options)]
        if not self.page:
            k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        return [decode(q, k, v, **options)]

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        """Return out in float64, of one sequence after the other."""
        outs = []
        for row, length in enumerate(self._lengths):
            sequence = [x[self._table[row]].flatten(0, 1) if self.page else x[row] for x in (k, v)]
            keys, values = (x[None, :length].transpose(1, 2).double() for x in sequence)
            scale = 192**-0.5 if self.latent else None
            outs.append(reference.attention(q[row, None].double(), keys, values, causal=True, softmax_scale=scale).out)
        out = torch.cat(outs)
        return [out[..., :512] if self.latent else out]

    @property
    def _lengths(self) -> list[int]:
        most = len(self._table[0]) * self.page if self.page else self.context
        return [max(self.seqlen_q, most - 37 * row) if self.ragged else most for row in range(self.batch)]

    @property
    def _table(self) -> list[list[int]]:
        """Return the pages of each sequence, in reverse order."""
        each = -(-self.context // self.page) if self.page else 1
        return [list(range(each * (row + 1), each * row, -1)) for row in range(self.batch)]


@dataclass(frozen=True)
class FeatureRun:
    """One call with features, and its backward."""

    implementation: str
    dtype: str
    head_dim: int
    feature: str  # a name of check_features.cases
    mask = "feature"
    package = "features"  # a package within another one
    largest_error = 1.0  # over what check_features allows

    @property
    def name(self) -> str:
        """Return the name by which the command line chooses the case."""
        return f"{self.package} {self.implementation} {self.dtype} {self.head_dim} {self.feature}"

    def runs_on(self, chip: int) -> bool:
        """Return whether the implementation is for a compute capability."""
        return OpCase(self.implementation, self.dtype, self.head_dim).runs_on(chip)

    @property
    def call(self) -> check_features.FeatureCase:
        """Return the call."""
        return check_features.cases(1, self.head_dim)[self.feature]

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Return random q, k, v and dout."""
        return check_features.inputs(self.call, getattr(torch, self.dtype), device)

    def compute(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return out and the gradients."""
        return check_features.results(self.call, registry.get(self.implementation).attention, *inputs)


@dataclass(frozen=True)
class PagedRun(FeatureRun):
    """A forward of two packed prompts over pages of 16 keys, which the kernel reads where they lie."""

    feature: str = "pages"

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Return random q, k and v, the table, and the starts of sequences."""
        q, *caches = (
            torch.randn(*sizes, 2, self.head_dim, device=device).to(getattr(torch, self.dtype))
            for sizes in ((64,), (5, 16), (5, 16))
        )
        table = torch.tensor([[3, 1], [0, 4]], dtype=torch.int32, device=device)
        return [q, *caches, table, torch.tensor([0, 32, 64], dtype=torch.int32, device=device)]

    def compute(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return out."""
        from .. import feature_calls

        q, k, v, table, starts = inputs
        pages: dict[str, Any] = {"block_table": table, "copy_pages": False}
        return [feature_calls.attention_varlen(q, k, v, starts, starts, 32, 32, causal=True, **pages)]


@dataclass(frozen=True)
class StepCase:
    """A step of one token through a Llama of one layer, in the sizes of Llama-2 7B; only compiled."""

    dtype: str = "bfloat16"
    head_dim: int = 128
    mask = "causal"
    package = "generation"

    @property
    def name(self) -> str:
        """Return the name by which the command line chooses the case."""
        return f"{self.package} {self.dtype} step of llama2-7b"

    def runs_on(self, chip: int) -> bool:
        """Return whether the chip has other code than the one before: with or without chained launches."""
        return chip in (80, 90)

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Return a token, its length and the cache of a layer."""
        token = torch.ones(1, 1, dtype=torch.int64, device=device)
        length = torch.ones(1, dtype=torch.int32, device=device)
        return [token, length, *(torch.empty(1, 32, 256, 128, dtype=torch.bfloat16, device=device) for _ in range(2))]

    def compute(
        self, token: torch.Tensor, length: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the logits."""
        from transformers import LlamaConfig, LlamaForCausalLM

        from ..generation.step import LlamaStep

        with torch.device("meta"):
            module = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, dtype=torch.bfloat16)).bfloat16()
        attend = lambda q, keys, values, lengths: torch.empty_like(q)  # noqa: E731
        return [LlamaStep(module).logits(token, [(keys, values)], length, attend)]


Case = OpCase | DecodeCase | FeatureRun | StepCase


_KINDS: dict[str, type[Any]] = {
    "op": OpCase,
    "features": FeatureRun,
    "pages": PagedRun,
    "decode": DecodeCase,
    "generation": StepCase,
}


def _declared(part: str) -> Iterator[Any]:
    """Yield the calls of a part of cases.toml, which says how it is read."""
    for table in map(dict, _DECLARED[part]):
        kind = _KINDS[table.pop("kind")]
        if table.get("feature") == "every feature":
            ours = registry.get("triton_fa2")
            table["feature"] = [name for name, x in check_features.cases().items() if check_features.declares(ours, x)]
        for values in product(*(x if isinstance(x, list) else [x] for x in table.values())):
            fields: dict[str, Any] = {}
            for names, value in zip(map(str.split, table), values, strict=True):
                fields |= zip(names, value if len(names) > 1 else [value], strict=True)
            yield kind(**fields)


def small_cases() -> Iterator[OpCase | DecodeCase | FeatureRun]:
    """Yield small calls of each kernel, in every form that its tiles, masks and heads give it."""
    yield from _declared("small")


def compiled_cases() -> Iterator[Case]:
    """Yield the small calls, and those that reach the larger tiles."""
    for case in small_cases():
        # What a case changes of what the GPU or the tables say, compiling does not.
        if not isinstance(case, OpCase) or not (case.busy or case.idle or case.tiles_of):
            yield case
    yield from _declared("compiled")
