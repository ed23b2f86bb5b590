"""Parallel compilation of the kernels of a first call, and launchers with little host work.

Threads compile by Triton's AsyncCompileMode, mostly without Python's global lock (kernels/DESIGN.md, "Host path").
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from inspect import getclosurevars
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton import AsyncCompileMode
from triton.runtime import driver

WarmUp = Callable[[], Any]  # of one kernel: what JITFunction.warmup answers
_NO_HOOKS = (None, None, None)  # launch metadata, and what Triton calls before and after a launch
_ROOM_ALIGNMENT = 256  # bytes; of the parts of a room, as of an allocation for Triton: a multiple of 16
_THREADS = ThreadPoolExecutor()
_COMPILING = threading.Lock()  # threads that make the same first call: one compiles, the others find what it made
# Triton compiles its driver from C where it is not in its cache: meanwhile the kernels are imported.
_DRIVER = threading.Thread(target=lambda: driver.active, daemon=True)
if torch.cuda.is_initialized():
    _DRIVER.start()


def compiled(warm_up: WarmUp) -> Any:
    """Return the compiled kernel, also if the caller is in an AsyncCompileMode."""
    _join_driver()
    with _COMPILING:
        return Context().run(warm_up)  # a context in which no mode is active


def compile_side_by_side(warm_ups: Sequence[WarmUp], meanwhile: Callable[[], None] | None = None) -> None:
    """Leave the kernels that are warmed up in Triton's caches; `meanwhile` is called while all are beyond Python.

    What does not compile is left to the launch, which says why. Nothing here touches the device: a capture into a CUDA
    graph goes on undisturbed.
    """
    if warm_ups:
        with _COMPILING:
            _in_threads(warm_ups, meanwhile)


def ahead(warm_ups: Callable[[], Sequence[WarmUp]]) -> Future[None]:
    """Compile in a thread what will be needed soon, and is nothing that other calls compile meanwhile."""
    return _THREADS.submit(lambda: _in_threads(warm_ups()))


def launcher(made: Any) -> tuple[Callable[..., None], tuple[Any, ...], list[Any] | None]:
    """Return what launches a compiled kernel, and its arguments between the stream and the kernel's own.

    Called with the grid, the stream, those arguments, then addresses and numbers. On Triton 3.6 it is the C function
    below `CudaLauncher.__call__`, whose Python takes longer than the launch's arguments take to convert. It takes
    encoded tensor descriptors, whose metadata come last; None elsewhere.
    """
    run, rest = made.run, (made.packed_metadata, *_NO_HOOKS)
    if not in_c(run):
        return run, (made.function, *rest), None
    launch, first = run.launch, (made.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *rest)
    if not hasattr(launch, "__closure__"):
        return launch, first, []
    cells = dict(zip(launch.__code__.co_freevars, (cell.cell_contents for cell in launch.__closure__), strict=True))
    return cells["launcher"], first, cells["tensordesc_meta"]


def in_c(run: Any) -> bool:
    """Return whether a kernel's launcher can be called below its Python; later versions take other arguments there."""
    if not triton.__version__.startswith("3.6."):
        return False
    return not (run.global_scratch_size or run.profile_scratch_size)


def places_in_room(rooms: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """Return where each of these tensors begins, in bytes, in one allocation for all of them, and its size."""
    sizes = [-(-x.untyped_storage().nbytes() // _ROOM_ALIGNMENT) * _ROOM_ALIGNMENT for x in rooms]
    *offsets, room_bytes = accumulate(sizes, initial=0)
    return offsets, room_bytes


def _join_driver() -> None:
    if _DRIVER.ident:
        _DRIVER.join()


def _in_threads(warm_ups: Sequence[WarmUp], meanwhile: Callable[[], None] | None = None) -> None:
    _join_driver()
    with ThreadPoolExecutor(2 * len(warm_ups) or 1) as executor:
        Context().run(_compile, warm_ups, _WithLaunchers(executor), meanwhile)


def _compile(warm_ups: Sequence[WarmUp], executor: "_WithLaunchers", meanwhile: Callable[[], None] | None) -> None:
    with AsyncCompileMode(executor, ignore_errors=True):
        for warm_up in warm_ups:
            warm_up()
        if meanwhile:
            for beyond_python in executor.beyond_python:
                beyond_python.wait()
            meanwhile()


class _WithLaunchers:
    """Compiles beside each kernel its launcher, which Triton 3.6 compiles from C in 0.3 s where it is loaded."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.beyond_python: list[threading.Event] = []  # of kernels whose first IR is made

    def submit(self, compile_kernel: Callable[[], Any]) -> Future[Any]:
        """Return the kernel's future. A launcher depends on the signature alone, and stays in Triton's cache."""
        src, beyond_python = getclosurevars(compile_kernel).nonlocals.get("src"), threading.Event()
        self.beyond_python.append(beyond_python)
        self._executor.submit(_build_launcher, src)
        if src is not None:
            src.make_ir = partial(_followed, src.make_ir, beyond_python.set)
        future = self._executor.submit(compile_kernel)
        future.add_done_callback(lambda _: beyond_python.set())  # it was in Triton's cache, or does not compile
        return future


def _followed(make: Callable[..., Any], then: Callable[[], None], *arguments: Any) -> Any:
    made = make(*arguments)
    then()
    return made


def _build_launcher(src: Any) -> None:
    described = sum(str(kind).startswith("tensordesc") for kind in src.signature.values())
    driver.active.launcher_cls(src, SimpleNamespace(tensordesc_meta=[{}] * described))
