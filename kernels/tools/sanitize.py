"""Every kernel of ours on small odd shapes, for NVIDIA's checker: `python -m kernels.tools.check sanitize`.

`--list` prints the cases, one per line. Words choose the cases whose names contain all of them, and a full name chooses
one case, so that several processes can share the list. Run the cases once without the checker, which compiles the
kernels, then under each of its tools:

    python -m kernels.tools.check sanitize gluon_hopper causal
    compute-sanitizer --tool memcheck --padding 512 python -m kernels.tools.check sanitize gluon_hopper causal
    compute-sanitizer --tool racecheck --num-cuda-barriers 64 python -m kernels.tools.check sanitize gluon_hopper causal
    compute-sanitizer --tool synccheck python -m kernels.tools.check sanitize gluon_hopper causal
    compute-sanitizer --tool initcheck python -m kernels.tools.check sanitize gluon_hopper causal

More than ten checkers at a time need `--max-connections`. Inputs and the float64 answer are computed on the CPU, so
that almost only our kernels run on the GPU. Every tensor is a separate allocation, so an access beyond a tensor is an
access beyond an allocation. Each line prints the errors relative to float64.

Only memcheck is silent on our warp-specialized kernels; kernels/DESIGN.md, "Checkers", says what the others report.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from .. import registry
from .cases import DecodeCase, FeatureRun, OpCase, small_cases
from .check_features import worst_error

LENGTHS = {"middle": 2048, "long": 65536}  # tokens: beyond the first row of each table of tiles, in its last row
FEW, MANY = 3, 1000  # multiprocessors: fewer, and more, than any case has tiles
Case = OpCase | DecodeCase | FeatureRun


def run(case: Case) -> dict[str, float]:
    """Return the errors of out and of the gradients, relative to the float64 answer; of features, of the worst one."""
    if isinstance(case, FeatureRun):
        implementation = registry.get(case.implementation)
        tf32 = implementation.precision == "tf32"
        error, name = worst_error(case.call, implementation.attention, getattr(torch, case.dtype), "cuda", tf32=tf32)
        return {name: error}
    torch.manual_seed(0)
    inputs = case.inputs("cpu")
    with circumstances(case):
        found = case.compute(*[x.cuda() for x in inputs])
        torch.cuda.synchronize()
    errors = map(_error, (x.cpu() for x in found), case.exact(*inputs))
    return dict(zip(("out", "dq", "dk", "dv"), errors, strict=False))


@contextmanager
def circumstances(case: Any) -> Iterator[None]:
    """Pretend what a case demands of the GPU and of the tables, and undo it."""
    with ExitStack() as to_undo:
        if getattr(case, "busy", False) or getattr(case, "idle", False):
            real = torch.cuda.get_device_properties
            resized = lambda device: _Resized(real(device), FEW if case.busy else MANY)  # noqa: E731
            to_undo.enter_context(mock.patch.object(torch.cuda, "get_device_properties", resized))
        if getattr(case, "tiles_of", ""):
            from ..attention.gluon_hopper import tuning

            for name in ("forward_tiles", "has_dq_warpgroup", "computes_next_delta"):
                chosen = _as_if_of(LENGTHS[case.tiles_of], getattr(tuning, name))
                to_undo.enter_context(mock.patch.object(tuning, name, chosen))
        yield


class _Resized:
    """The properties of a GPU with another number of multiprocessors."""

    def __init__(self, properties: Any, multiprocessors: int) -> None:
        self._properties, self.multi_processor_count = properties, multiprocessors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)


def _as_if_of(length: int, choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its sequence lengths replaced by this one."""
    names = inspect.signature(choose).parameters

    def chosen(*arguments: Any, **named: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | named
        return choose(**given | {name: length for name in given if name.startswith("seqlen_")})

    return chosen


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).nan_to_num(nan=float("inf")).item()


def chosen_by(words: list[str]) -> list[Case]:
    """Return the case of that name, or else those whose names contain all of the words."""
    every = list(small_cases())
    named = [case for case in every if case.name == " ".join(words)]
    return named or [case for case in every if set(words) <= set(case.name.split())]


def main(words: list[str], *, list_only: bool = False) -> int:
    """Print a line for each case; return 1 without a GPU, without such cases, or if a result is wrong."""
    wanted = chosen_by(words)
    if list_only or not wanted:
        print("\n".join(case.name for case in wanted or small_cases()))
        return 0 if wanted else 1
    if not torch.cuda.is_available():
        print("kernels.tools.check sanitize needs a CUDA device; this machine has none.", file=sys.stderr)
        return 1
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read at the first allocation
    # It would hide reads of memory that was never written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set on the module
    chip = 10 * torch.cuda.get_device_capability()[0]
    return int(sum(_is_wrong(case, chip) for case in wanted) > 0)


def _is_wrong(case: Case, chip: int) -> bool:
    """Run a case and print whether it is right; return whether it is wrong."""
    if not case.runs_on(chip):
        print(f"skipped {case.name}: not for compute capability {chip // 10}", flush=True)
        return False
    errors = run(case)
    bad = max(errors.values()) > case.largest_error
    print("WRONG" if bad else "right", case.name, {name: f"{e:.1e}" for name, e in errors.items()}, flush=True)
    return bad
