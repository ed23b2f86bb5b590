"""Every kernel of ours on small odd shapes, for NVIDIA's checker: `compute-sanitizer python -m kernels.tools.sanitize`.

`--list` prints the cases, one a line; words choose those whose names hold all of them, and a whole name chooses that
case alone, so that they can run side by side, each in a process of its own. Run them once without the checker, which
compiles the kernels, then under each of its tools:

    python -m kernels.tools.sanitize gluon_hopper causal
    compute-sanitizer --tool memcheck --padding 512 python -m kernels.tools.sanitize gluon_hopper causal
    compute-sanitizer --tool racecheck --num-cuda-barriers 64 python -m kernels.tools.sanitize gluon_hopper causal
    compute-sanitizer --tool synccheck python -m kernels.tools.sanitize gluon_hopper causal
    compute-sanitizer --tool initcheck python -m kernels.tools.sanitize gluon_hopper causal

More than ten checkers at a time need `--max-connections`. Inputs and the float64 answer are made on the CPU, so that
next to nothing but our kernels runs on the GPU, and every tensor is an allocation of its own, so that an access beyond
its end is one beyond an allocation. Each line says how far the results are from float64.

Only memcheck is silent on our specialised kernels (2025.3; kernels/DESIGN.md, "Checkers"):

- racecheck reports stores before barrier 1 and loads behind it, by which Triton tells each warp its partition and
  arguments. All threads meet at that barrier, so these are ordered; why the tool reports them is not known. It sees
  nothing of what TMA writes and the tensor cores read: a kernel whose wait for its keys was left out gave
  wrong results and no other report. Whether such tiles are guarded, the results must tell.
- synccheck reports divergent threads, and ends the process, at barriers where two partitions arrive.
- initcheck takes what TMA stores for memory that was never written, and reports every read of it.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import torch

from .. import reference, registry

BATCH, HEADS = 2, 2
SEQLEN_Q, SEQLEN_K = 200, 300
ALIGNED_Q, ALIGNED_K = 256, 384
LENGTHS = {"middle": 2048, "long": 65536}  # tokens: beyond the first row of each table of tiles, in its last
FEW, MANY = 3, 1000  # multiprocessors: fewer, and more, than any case has tiles
MASKS = {"full": (False, 0), "causal": (True, 0), "window": (True, 70)}  # causal, window_size
LARGEST_ERROR = {"fp8": 0.1, "bfloat16": 0.02, "tf32": 0.01, "float32": 1e-4}  # what a wrong tile is far beyond


@dataclass(frozen=True)
class SanitizerCase:
    """One call of an implementation, and of its backward if it has one."""

    implementation: str
    dtype: str
    head_dim: int
    mask: str
    grouped: bool = True  # the query heads share their keys and values
    deterministic: bool = False
    busy: bool = False  # as if the GPU had few multiprocessors, each with several tiles to do
    idle: bool = False  # as if it had more multiprocessors than there are tiles
    tiles_of: str = ""  # with the tiles that sequences of one of LENGTHS get
    aligned: bool = False  # lengths that fill their tiles, which some kernels then do not check
    level: ClassVar[str] = "op"
    page_size: ClassVar[int] = 0
    latent_dim: ClassVar[int] = 0
    cache_dtype: ClassVar[str | None] = None
    lengths: ClassVar[str | None] = None

    @property
    def num_heads(self) -> int:
        """Return the query heads."""
        return HEADS

    @property
    def num_kv_heads(self) -> int:
        """Return the heads of keys and values."""
        return 1 if self.grouped else HEADS

    @property
    def head_dim_v(self) -> int:
        """Return the head_dim of values."""
        return self.head_dim

    @property
    def seqlen_q(self) -> int:
        """Return the queries' tokens."""
        return ALIGNED_Q if self.aligned else SEQLEN_Q

    @property
    def seqlen_k(self) -> int:
        """Return the keys' tokens. Plans are kept by shape, so that each circumstance gets a length of its own."""
        circumstances = (self.busy, self.idle, self.tiles_of == "middle", self.tiles_of == "long")
        return ALIGNED_K if self.aligned else SEQLEN_K + sum(so << bit for bit, so in enumerate(circumstances))

    @property
    def causal(self) -> bool:
        """Return whether later keys are hidden."""
        return MASKS[self.mask][0]

    @property
    def window_size(self) -> int:
        """Return the keys that a query sees, 0 for all."""
        return MASKS[self.mask][1]

    @property
    def name(self) -> str:
        """Return the name by which the command line chooses the case."""
        chosen = {
            "ungrouped": not self.grouped,
            "deterministic": self.deterministic,
            "busy": self.busy,
            "idle": self.idle,
            self.tiles_of: bool(self.tiles_of),
            "aligned": self.aligned,
        }
        rest = (word for word, so in chosen.items() if so)
        return " ".join([self.implementation, self.dtype, str(self.head_dim), self.mask, *rest])

    @property
    def largest_error(self) -> float:
        """Return the largest error of out and gradients allowed, root mean square relative to the result's."""
        implementation = registry.get(self.implementation)
        return LARGEST_ERROR[implementation.precision or self.dtype]


def cases() -> Iterator[SanitizerCase]:
    """Yield each kernel, in every form that its tiles, masks and heads give it."""
    yield from _of_gluon_hopper()
    for head_dim in (64, 128, 256):
        yield SanitizerCase("gluon_fp8", "bfloat16", head_dim, "full")
        yield SanitizerCase("gluon_fp8", "bfloat16", head_dim, "full", aligned=True)
        yield SanitizerCase("gluon_fp8", "bfloat16", head_dim, "causal")
        yield SanitizerCase("gluon_fp8", "bfloat16", head_dim, "causal", busy=True)
    yield SanitizerCase("gluon_fp8", "bfloat16", 100, "causal")
    yield from _of_triton_fa2()


def _of_gluon_hopper() -> Iterator[SanitizerCase]:
    for head_dim in (64, 128, 256):
        for mask in MASKS:
            yield SanitizerCase("gluon_hopper", "bfloat16", head_dim, mask)
            if head_dim < 256:  # where it is deterministic anyway
                yield SanitizerCase("gluon_hopper", "bfloat16", head_dim, mask, deterministic=True)
        yield SanitizerCase("gluon_hopper", "bfloat16", head_dim, "full", aligned=True)
        yield SanitizerCase("gluon_hopper", "bfloat16", head_dim, "causal", grouped=False, busy=True)
    for mask in ("full", "causal"):
        for head_dim in (64, 128):
            yield SanitizerCase("gluon_hopper", "bfloat16", head_dim, mask, tiles_of="long")
        yield SanitizerCase("gluon_hopper", "bfloat16", 64, mask, tiles_of="middle")
        yield SanitizerCase("gluon_hopper", "bfloat16", 64, mask, grouped=False, busy=True, tiles_of="middle")
    yield SanitizerCase("gluon_hopper", "bfloat16", 100, "causal")  # in the tiles of 128, by way of copies


def _of_triton_fa2() -> Iterator[SanitizerCase]:
    for mask in MASKS:
        for dtype in ("bfloat16", "float32"):
            yield SanitizerCase("triton_fa2", dtype, 64, mask)
            yield SanitizerCase("triton_fa2", dtype, 64, mask, grouped=False)  # one kernel for all gradients
            yield SanitizerCase("triton_fa2", dtype, 64, mask, grouped=False, aligned=True)
        yield SanitizerCase(
            "triton_fa2", "float32", 16, mask, grouped=False
        )  # the backward of one pass on the FMA units
        yield SanitizerCase("triton_fa2_tf32", "float32", 64, mask)
    for dtype, head_dim in (("bfloat16", 64), ("float32", 16), ("float32", 64)):
        yield SanitizerCase("triton_fa2", dtype, head_dim, "causal", busy=True)  # large tiles, no split walks
    for dtype in ("bfloat16", "float32"):
        yield SanitizerCase("triton_fa2", dtype, 128, "causal", grouped=False)
        yield SanitizerCase("triton_fa2", dtype, 64, "causal", idle=True)  # the forward of few rows
        yield SanitizerCase("triton_fa2", dtype, 128, "window", grouped=False, idle=True)
    yield SanitizerCase("triton_fa2", "bfloat16", 16, "causal")  # a forward whose walks are split
    yield SanitizerCase("triton_fa2", "bfloat16", 40, "causal", grouped=False)
    yield SanitizerCase("triton_fa2", "bfloat16", 256, "causal", busy=True)
    yield SanitizerCase("triton_fa2", "float32", 256, "causal", grouped=False)
    yield SanitizerCase("triton_fa2_tf32", "float32", 64, "causal", grouped=False)


def run(case: SanitizerCase) -> dict[str, float]:
    """Return the errors of out, and of dq, dk and dv if there is a backward, relative to the float64 answer."""
    queries, keys = (case.num_heads, case.seqlen_q), (case.num_kv_heads, case.seqlen_k)
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, *shape, case.head_dim) for shape in (queries, keys, keys, queries)]
    inputs = [torch.randn(shape, generator=generator).to(getattr(torch, case.dtype)) for shape in shapes]
    implementation, mask = registry.get(case.implementation), {"causal": case.causal, "window_size": case.window_size}
    on_gpu = [x.cuda().requires_grad_(implementation.backward) for x in inputs]
    with circumstances(case):
        out = implementation.attention(*on_gpu[:3], **mask)
        got = [out.detach()]
        if implementation.backward:
            got += torch.autograd.grad(out, on_gpu[:3], on_gpu[3].detach())
        torch.cuda.synchronize()
    answer = reference.gradients(*inputs, **mask)
    names = ("out", "dq", "dk", "dv")
    return {name: _error(x.cpu(), getattr(answer, name)) for name, x in zip(names, got, strict=False)}


@contextmanager
def circumstances(case: SanitizerCase) -> Iterator[None]:
    """Set what a case asks for beside its tensors, and undo it."""
    with ExitStack() as to_undo:
        torch.use_deterministic_algorithms(case.deterministic)
        to_undo.callback(torch.use_deterministic_algorithms, False)
        if case.busy or case.idle:
            real = torch.cuda.get_device_properties
            resized = lambda device: _Resized(real(device), FEW if case.busy else MANY)  # noqa: E731
            to_undo.enter_context(mock.patch.object(torch.cuda, "get_device_properties", resized))
        if case.tiles_of:
            from ..attention.gluon_hopper import tuning

            for name in ("forward_tiles", "has_dq_warpgroup", "computes_next_delta"):
                chosen = _as_if_of(LENGTHS[case.tiles_of], getattr(tuning, name))
                to_undo.enter_context(mock.patch.object(tuning, name, chosen))
        yield


class _Resized:
    """The properties of a GPU, but for the number of its multiprocessors."""

    def __init__(self, properties: Any, multiprocessors: int) -> None:
        self._properties, self.multi_processor_count = properties, multiprocessors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)


def _as_if_of(length: int, choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function choosing as for sequences of that length."""
    names = inspect.signature(choose).parameters

    def chosen(*arguments: Any, **named: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | named
        return choose(**given | {name: length for name in given if name.startswith("seqlen_")})

    return chosen


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted).norm() / wanted.norm()).nan_to_num(nan=float("inf")).item()


def chosen_by(words: list[str]) -> list[SanitizerCase]:
    """Return the case of that name, or else those whose names hold all of the words."""
    every = list(cases())
    named = [case for case in every if case.name == " ".join(words)]
    return named or [case for case in every if set(words) <= set(case.name.split())]


def main(arguments: list[str] | None = None) -> int:
    """Print a line a case; 1 without a GPU, without such cases, or if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="a case's name, or words that the names of several hold")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and run none")
    given = parser.parse_args(arguments)
    wanted = chosen_by(given.words)
    if given.list or not wanted:
        print("\n".join(case.name for case in wanted or cases()))
        return 0 if wanted else 1
    if not torch.cuda.is_available():
        print("kernels.tools.sanitize needs a CUDA device; this machine has none.", file=sys.stderr)
        return 1
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read at the first allocation
    torch.utils.deterministic.fill_uninitialized_memory = False  # would hide reads of what was never written
    device = registry.describe_device("cuda")
    return int(sum(_is_wrong(case, device) for case in wanted) > 0)


def _is_wrong(case: SanitizerCase, device: registry.Device) -> bool:
    """Run a case and print whether it is right; return whether it is wrong."""
    if reason := registry.get(case.implementation).reason_against(case, device):
        print(f"skipped {case.name}: {reason}", flush=True)
        return False
    errors = run(case)
    bad = max(errors.values()) > case.largest_error
    print("WRONG" if bad else "right", case.name, {name: f"{e:.1e}" for name, e in errors.items()}, flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
