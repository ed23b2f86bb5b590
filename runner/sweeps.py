"""Sweeps as data: a grid of cases of one level and what to measure of them. A new sweep is one entry of SWEEPS."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from results.records import DTYPES, INPUTS, TIMINGS, Case, attention_case, decode_case

TORCH = (
    "torch_naive",
    "torch_sdpa_auto",
    "torch_sdpa_flash",
    "torch_sdpa_cudnn",
    "torch_sdpa_efficient",
    "torch_sdpa_math",
)
OURS = ("triton_fa2", "triton_fa2_tf32", "gluon_hopper")
FP8 = ("gluon_fp8",)
DECODE = ("triton_split_kv",)  # ours, at level decode
PEERS = ("flash_attn_2", "flash_attn_3", "flash_attn_4", "xformers")  # take part where they are installed


class SweepError(ValueError):
    """A sweep or override that does not exist or makes no case; the message says what is possible."""


@dataclass(frozen=True)
class Sweep:
    """A grid of cases; the axes of its level say which fields count (AXES).

    At level op `tokens` makes the batch tokens / seqlen, `hidden` the heads hidden / head_dim.
    """

    name: str
    description: str
    seqlen: tuple[int, ...] = ()
    head_dim: tuple[int, ...] = (64,)
    dtype: tuple[str, ...] = ("bfloat16", "float32")
    causal: tuple[bool, ...] = (True,)
    batch: tuple[int, ...] = (1,)
    num_heads: tuple[int, ...] = (1,)
    num_kv_heads: tuple[int, ...] = ()  # empty: as many as num_heads
    window_size: tuple[int, ...] = (0,)
    inputs: tuple[str, ...] = ("normal",)
    tokens: int | None = None
    hidden: int | None = None
    implementations: tuple[str, ...] = TORCH + OURS
    baseline: str = "torch_naive"
    modes: tuple[str, ...] = ("fwd", "bwd", "fwd_bwd")
    timings: tuple[str, ...] = TIMINGS  # none: only the errors against float64 are taken
    energy: bool = False  # whether standard measures joules too: a tenth of a second for each forward and fwd_bwd
    protocol: str = "standard"  # the sampling preset when none is chosen
    level: str = "op"
    context: tuple[int, ...] = ()  # tokens in each sequence's cache
    query_tokens: tuple[int, ...] = (1,)
    heads: tuple[str, ...] = ()  # num_heads/num_kv_heads

    def cases(self) -> tuple[Case, ...]:
        """Return every case of the grid, short sequences first. Raises SweepError if a combination is impossible."""
        try:
            if self.level == "decode":
                return tuple(self._decode_cases())
            return tuple(case for shape in product(self.seqlen, self.head_dim) for case in self._cases_of(*shape))
        except SweepError:
            raise
        except ValueError as error:
            raise SweepError(f"Sweep {self.name!r}: {error}") from error

    def _decode_cases(self) -> Iterator[Case]:
        shapes = product(self.context, self.batch, self.heads, self.head_dim, self.dtype, self.query_tokens)
        for context, batch, heads, head_dim, dtype, query_tokens in shapes:
            num_heads, num_kv_heads = split_heads(heads)
            for window_size in self.window_size:
                yield decode_case(
                    batch=batch,
                    num_heads=num_heads,
                    num_kv_heads=num_kv_heads,
                    context=context,
                    head_dim=head_dim,
                    dtype=dtype,
                    query_tokens=query_tokens,
                    window_size=window_size,
                )

    def _cases_of(self, seqlen: int, head_dim: int) -> list[Case]:
        batches = (_divide("tokens", self.tokens, "seqlen", seqlen),) if self.tokens else self.batch
        heads = (_divide("hidden", self.hidden, "head_dim", head_dim),) if self.hidden else self.num_heads
        kv_heads = self.num_kv_heads or (None,)
        grid = product(self.dtype, self.causal, batches, heads, kv_heads, self.window_size, self.inputs)
        return [
            attention_case(
                batch=batch,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                seqlen=seqlen,
                head_dim=head_dim,
                dtype=dtype,
                causal=causal,
                window_size=window_size,
                inputs=inputs,
            )
            for dtype, causal, batch, num_heads, num_kv_heads, window_size, inputs in grid
        ]


SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            name="quick",
            description="A first look in under a minute, on any GPU or CPU",
            seqlen=(128, 512, 1024),
            head_dim=(64,),
            dtype=("float16", "float32"),
            protocol="quick",
        ),
        Sweep(
            name="fa2_speedup",
            description="The 56 cases of report fa2_rtx4060: one head, causal, seqlen 128 to 8192",
            seqlen=(128, 256, 512, 1024, 2048, 4096, 8192),
            head_dim=(16, 32, 64, 128),
        ),
        Sweep(
            name="torch_vs_triton",
            description="The 24 cases of report torch_vs_triton: one head, causal, seqlen 128 to 512",
            seqlen=(128, 256, 512),
            head_dim=(16, 32, 64, 128),
        ),
        Sweep(
            name="long_context",
            description="The single-head shapes on to 65536 tokens",
            seqlen=(16384, 32768, 65536),
            head_dim=(16, 32, 64, 128),
        ),
        Sweep(
            name="fa_paper",
            description="The FlashAttention papers' grid: 16k tokens, hidden 2048, causal and full",
            seqlen=(512, 1024, 2048, 4096, 8192, 16384),
            head_dim=(64, 128, 256),
            dtype=("bfloat16",),
            causal=(False, True),
            tokens=16384,
            hidden=2048,
            implementations=TORCH + OURS + FP8 + PEERS,
        ),
        Sweep(
            name="energy",
            description="Joules a call by seqlen, in the shapes of fa_paper at head_dim 128",
            seqlen=(1024, 4096, 16384),
            head_dim=(128,),
            dtype=("bfloat16",),
            causal=(False, True),
            tokens=16384,
            hidden=2048,
            implementations=TORCH + OURS + PEERS,
            modes=("fwd", "fwd_bwd"),
            timings=("kernel",),
            energy=True,
        ),
        Sweep(
            name="window_gqa",
            description="A sliding window of 1024 keys over 32 query heads on 8 key heads, beside FlexAttention",
            seqlen=(4096, 16384),
            head_dim=(128,),
            dtype=("bfloat16",),
            num_heads=(32,),
            num_kv_heads=(8,),
            window_size=(1024,),
            implementations=TORCH + OURS + PEERS + ("torch_flex",),
            energy=True,
        ),
        Sweep(
            name="accuracy",
            description="Errors against float64 on plain data, outliers, large values and long rows; nothing is timed",
            seqlen=(256, 1024, 16384),
            head_dim=(64, 128),
            dtype=("bfloat16", "float16", "float32"),
            inputs=INPUTS,
            modes=("fwd", "bwd"),
            timings=(),
            implementations=TORCH + OURS + FP8 + PEERS,
        ),
        Sweep(
            name="decode",
            description="One query token against contiguous KV caches: context by batch, 64 heads on 8, 32 on 8, 32",
            level="decode",
            context=(2048, 8192, 32768, 131072),
            batch=(1, 8, 32, 128),
            heads=("64/8", "32/8", "32/32"),
            head_dim=(128,),
            dtype=("bfloat16",),
            implementations=TORCH + DECODE,
            modes=("decode",),
        ),
        Sweep(
            name="decode_quick",
            description="A first look at decoding in seconds, on any GPU or CPU",
            level="decode",
            context=(128, 1024),
            batch=(1, 4),
            heads=("8/2",),
            head_dim=(64,),
            dtype=("float16", "float32"),
            implementations=TORCH + DECODE,
            modes=("decode",),
            protocol="quick",
        ),
    )
}

_PARSERS: dict[str, Any] = {
    "seqlen": int,
    "head_dim": int,
    "batch": int,
    "num_heads": int,
    "num_kv_heads": int,
    "window_size": int,
    "inputs": str,
    "dtype": str,
    "causal": {"true": True, "false": False}.__getitem__,
    "modes": str,
    "timings": str,
    "context": int,
    "heads": str,
    "query_tokens": int,
}
AXES: dict[str, tuple[str, ...]] = {  # that a sweep of each level can be given
    "op": (
        *("seqlen", "head_dim", "batch", "num_heads", "num_kv_heads", "window_size", "inputs", "dtype", "causal"),
        *("modes", "timings"),
    ),
    "decode": ("context", "batch", "heads", "head_dim", "dtype", "query_tokens", "window_size", "timings"),
}
_MOST_HEADS = 1024
_LARGEST = 999_999_999  # that the database takes
_POSSIBLE: dict[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "inputs": INPUTS,
    "modes": ("fwd", "bwd", "fwd_bwd"),
    "timings": TIMINGS,
}


def get(name: str) -> Sweep:
    """Return the sweep of that name. Raises SweepError naming those that exist."""
    if name not in SWEEPS:
        raise SweepError(f"Unknown sweep {name!r}. Available: {', '.join(sorted(SWEEPS))}.")
    return SWEEPS[name]


def changes_of(texts: Sequence[str]) -> dict[str, str]:
    """Return what `override` takes, from words such as "seqlen=1024,2048". Raises SweepError for any other."""
    found: dict[str, str] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        axis = axis.strip()
        if not equals:
            raise SweepError(f"--set {text!r} is not AXIS=VALUES, such as seqlen=1024,2048.")
        if axis in found:
            raise SweepError(
                f"--set {axis} is given twice; give all its values at once: {axis}={found[axis]},{values}."
            )
        found[axis] = values
    return found


def override(sweep: Sweep, changes: dict[str, str]) -> Sweep:
    """Return the sweep with axes replaced, each a comma-separated list as typed: {"seqlen": "1024,2048"}.

    Setting batch or num_heads ends the tokens or hidden rule. Raises SweepError for an unknown axis or value.
    """
    values: dict[str, Any] = {}
    for axis, text in changes.items():
        if axis not in AXES[sweep.level]:
            raise SweepError(f"Unknown axis {axis!r}. Possible: {', '.join(AXES[sweep.level])}.")
        values[axis] = tuple(dict.fromkeys(_parse(axis, part.strip()) for part in text.split(",")))
    if "batch" in values:
        values["tokens"] = None
    if "num_heads" in values:
        values["hidden"] = None
    changed = dataclasses.replace(sweep, **values)
    changed.cases()
    return changed


def split_heads(text: str) -> tuple[int, int]:
    """Return query heads and key heads of "64/8", or of "32" for as many. Raises SweepError for any other text."""
    first, slash, second = text.partition("/")
    counts = [part.strip() for part in ((first, second) if slash else (first, first))]
    if not all(part.isdecimal() and 0 < int(part) <= _MOST_HEADS for part in counts):
        raise SweepError(f"heads {text!r} is not query heads over key heads of at most {_MOST_HEADS}, such as 64/8.")
    return int(counts[0]), int(counts[1])


def to_json(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as plain data, for the run's record; `from_json` is its inverse."""
    return dataclasses.asdict(sweep)


def from_json(record: dict[str, Any]) -> Sweep:
    """Return the sweep of a run's record; fields that came later have their defaults."""
    return Sweep(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})


def _parse(axis: str, text: str) -> Any:
    try:
        value = _PARSERS[axis](text)
    except (ValueError, KeyError):
        raise SweepError(
            f"{axis} {text!r} is not {'true or false' if axis == 'causal' else 'a whole number'}."
        ) from None
    if axis == "heads":
        split_heads(value)
    if isinstance(value, int) and value > _LARGEST:
        raise SweepError(f"{axis} {value} is too large; at most {_LARGEST} is possible.")
    if axis in _POSSIBLE and value not in _POSSIBLE[axis]:
        raise SweepError(f"{axis} {text!r} is not one of {', '.join(_POSSIBLE[axis])}.")
    return value


def _divide(what: str, total: int, by: str, size: int) -> int:
    if total % size:
        raise SweepError(f"{what} {total} is not a multiple of {by} {size}.")
    return total // size
