"""Every kernel of ours on small odd shapes, for NVIDIA's checker: `compute-sanitizer python -m kernels.sanitize`.

Run it once without the checker, which compiles the kernels, then under each of its tools:

    python -m kernels.sanitize
    compute-sanitizer --tool memcheck python -m kernels.sanitize
    compute-sanitizer --tool racecheck python -m kernels.sanitize gluon_hopper

Words choose cases: those whose names hold all of them. Inputs and the float64 answer are made on the CPU, so that
next to nothing but our kernels runs on the GPU, and every tensor is an allocation of its own, so that an access beyond
its end is one beyond an allocation. Each line says how far the results are from float64.

What racecheck (2025.3) reports of our specialised kernels are stores before barrier 1 and loads behind it, by which
Triton tells each warp its partition and arguments. All threads meet at that barrier, so these are ordered; why the tool
reports them is not known. It sees nothing of what the copy engine writes and the tensor cores read: a kernel whose wait
for its keys was left out gave wrong results and no other report. Whether such tiles are guarded, the results must tell.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels import reference, registry

FEW, MANY = (2, 4, 2), (2, 40, 20)  # batch, heads, key heads; MANY gives the programs of a persistent kernel two tiles
SEQLEN_Q, SEQLEN_K = 200, 300
MASKS = {"full": (False, 0), "causal": (True, 0), "window": (True, 70)}  # causal, window_size
LARGEST_ERROR = {"fp8": 0.1, "bfloat16": 0.02, "tf32": 0.01, "float32": 1e-4}  # what a wrong tile is far beyond


@dataclass(frozen=True)
class Case:
    """One call of an implementation, and of its backward if it has one."""

    implementation: str
    dtype: str
    head_dim: int
    mask: str
    heads: tuple[int, int, int] = FEW  # batch, num_heads, num_kv_heads
    deterministic: bool = False

    seqlen_q: int = SEQLEN_Q
    seqlen_k: int = SEQLEN_K

    @property
    def num_heads(self) -> int:
        """Of the queries."""
        return self.heads[1]

    @property
    def num_kv_heads(self) -> int:
        """Of keys and values."""
        return self.heads[2]

    @property
    def head_dim_v(self) -> int:
        """The same for values."""
        return self.head_dim

    @property
    def causal(self) -> bool:
        """Whether later keys are hidden."""
        return MASKS[self.mask][0]

    @property
    def window_size(self) -> int:
        """Keys that a query sees, 0 for all."""
        return MASKS[self.mask][1]

    @property
    def name(self) -> str:
        """What the command line chooses by."""
        rest = ["many"] * (self.heads == MANY) + ["ungrouped"] * (self.num_heads == self.num_kv_heads)
        rest += ["deterministic"] * self.deterministic
        return " ".join([self.implementation, self.dtype, str(self.head_dim), self.mask, *rest])

    @property
    def largest_error(self) -> float:
        """Of out and gradients, root mean square relative to the result's."""
        implementation = registry.get(self.implementation)
        return LARGEST_ERROR["fp8" if implementation.fp8 else "tf32" if implementation.tf32 else self.dtype]


def cases() -> Iterator[Case]:
    """Each kernel and each mask; grouped heads and ungrouped ones where other kernels serve them."""
    for mask in MASKS:
        for head_dim in (64, 128, 256):
            yield Case("gluon_hopper", "bfloat16", head_dim, mask)
            yield Case("gluon_hopper", "bfloat16", head_dim, mask, deterministic=True)
            if mask != "window":
                yield Case("gluon_fp8", "bfloat16", head_dim, mask)
        for dtype in ("bfloat16", "float32"):
            yield Case("triton_fa2", dtype, 64, mask)
            yield Case("triton_fa2", dtype, 64, mask, heads=(2, 4, 4))
        yield Case("triton_fa2", "float32", 16, mask)  # other kernels than the pieces of head_dim 64
        yield Case("triton_fa2_tf32", "float32", 64, mask)
    for head_dim in (64, 128, 256):
        yield Case("gluon_hopper", "bfloat16", head_dim, "causal", heads=MANY)
        yield Case("gluon_fp8", "bfloat16", head_dim, "causal", heads=MANY)


def run(case: Case) -> dict[str, float]:
    """The errors of out, and of dq, dk and dv if there is a backward, relative to the float64 answer."""
    queries, keys = (case.num_heads, case.seqlen_q), (case.num_kv_heads, case.seqlen_k)
    generator = torch.Generator().manual_seed(0)
    shapes = [(case.heads[0], *shape, case.head_dim) for shape in (queries, keys, keys, queries)]
    inputs = [torch.randn(shape, generator=generator).to(getattr(torch, case.dtype)) for shape in shapes]
    implementation, mask = registry.get(case.implementation), {"causal": case.causal, "window_size": case.window_size}
    on_gpu = [x.cuda().requires_grad_(implementation.backward) for x in inputs]
    torch.use_deterministic_algorithms(case.deterministic)
    out = implementation.attention(*on_gpu[:3], **mask)
    got = [out.detach()]
    if implementation.backward:
        got += torch.autograd.grad(out, on_gpu[:3], on_gpu[3].detach())
    torch.cuda.synchronize()
    answer = reference.gradients(*inputs, **mask)
    names = ("out", "dq", "dk", "dv")
    return {name: _error(x.cpu(), getattr(answer, name)) for name, x in zip(names, got, strict=False)}


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted).norm() / wanted.norm()).nan_to_num(nan=float("inf")).item()


def main(arguments: list[str] | None = None) -> int:
    """A line a case; 1 without a GPU, without such cases, or if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m kernels.sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only the cases whose names hold all of these words")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and run none")
    chosen = parser.parse_args(arguments)
    wanted = [case for case in cases() if set(chosen.words) <= set(case.name.split())]
    if chosen.list or not wanted:
        print("\n".join(case.name for case in wanted or cases()))
        return 0 if wanted else 1
    if not torch.cuda.is_available():
        print("kernels.sanitize needs a CUDA device; this machine has none.", file=sys.stderr)
        return 1
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read at the first allocation
    torch.utils.deterministic.fill_uninitialized_memory = False  # would hide reads of what was never written
    device, wrong = registry.describe_device("cuda"), 0
    for case in wanted:
        if reason := registry.get(case.implementation).reason_against(case, device):
            print(f"skipped {case.name}: {reason}", flush=True)
            continue
        errors = run(case)
        bad = max(errors.values()) > case.largest_error
        wrong += bad
        print("WRONG" if bad else "right", case.name, {name: f"{e:.1e}" for name, e in errors.items()}, flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
