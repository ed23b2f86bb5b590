"""Compile the kernels of a first call in parallel: one after the other they take the sum of their times.

Triton makes its intermediate code under Python's lock, about a sixth of a kernel's time; its passes, LLVM and ptxas run
without it. Threads are enough for those, and Triton has a mode in which a warm-up is left to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from typing import Any

from triton import AsyncCompileMode, FutureKernel
from triton.runtime import driver

WarmUp = Callable[[], Any]  # of one kernel: what JITFunction.warmup answers
_COMPILING = threading.Lock()  # threads that make the same first call: one compiles, the others find what it made


def compiled(warm_up: WarmUp) -> Any:
    """Return the compiled kernel, also where the caller is in an AsyncCompileMode of its own."""
    with _COMPILING:
        return Context().run(warm_up)  # a context in which no mode is active


def compile_side_by_side(warm_ups: Sequence[WarmUp]) -> None:
    """Leave the kernels that are warmed up in Triton's caches.

    What does not compile is left to the launch, which says why. Nothing here touches the device: a capture into a CUDA
    graph goes on undisturbed.
    """
    if len(warm_ups) > 1:
        with _COMPILING, ThreadPoolExecutor(len(warm_ups)) as executor:
            Context().run(_compile, warm_ups, executor)


def _compile(warm_ups: Sequence[WarmUp], executor: Executor) -> None:
    with AsyncCompileMode(executor, ignore_errors=True):
        kernels = [warm_up() for warm_up in warm_ups]
    for kernel in kernels:
        if isinstance(kernel, FutureKernel):
            executor.submit(_build_launcher, kernel)


def _build_launcher(kernel: FutureKernel) -> None:
    """Build a kernel's launcher, which Triton 3.6 compiles from C in 0.3 s where it is loaded, into the cache."""
    made = kernel.result()
    driver.active.launcher_cls(made.src, made.metadata)
