"""What Triton compiles, loads and launches: watched, or held back to be compiled elsewhere.

Works for every implementation written in Triton or Gluon without its help: a kernel reaches the device only through
`JITFunction.run`, which answers with the compiled kernel. What torch.compile makes is launched by other means and not
seen. Without Triton there is nothing to see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

_SHAPE = ("HEAD_DIM", "BLOCK_D", "SIZE", "COPIED")  # constants that say what is computed, not how


@dataclass
class Seen:
    """What was watched."""

    kernels: dict[str, str] = field(default_factory=dict)  # name -> tile, warps and stages, as last launched
    compiled: int = 0
    loaded: int = 0  # found in Triton's cache on disk

    @property
    def config(self) -> str | None:
        """Return every kernel with its configuration; None if no kernel was seen."""
        return "; ".join(f"{name} {text}" for name, text in sorted(self.kernels.items())) or None


@contextlib.contextmanager
def watch() -> Iterator[Seen]:
    """See what Triton does within the block; of kernels tried one after the other the last one counts."""
    seen = Seen()
    try:
        from triton import knobs
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield seen
        return
    run, listener = JITFunction.run, knobs.compilation.listener

    def watched(self: Any, *args: Any, **options: Any) -> Any:
        take_keys(self)
        kernel = run(self, *args, **options)
        text = _configuration(self, kernel)
        if text:
            seen.kernels[self.fn.__name__] = text
        return kernel

    def listen(*args: Any, cache_hit: bool, **facts: Any) -> None:
        seen.loaded += cache_hit
        seen.compiled += not cache_hit
        if listener:
            listener(*args, cache_hit=cache_hit, **facts)

    JITFunction.run, knobs.compilation.listener = watched, listen
    try:
        yield seen
    finally:
        JITFunction.run, knobs.compilation.listener = run, listener


@dataclass(frozen=True)
class Kernel:
    """What Triton was asked to compile, in words that another process understands."""

    module: str
    name: str
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    target: Any  # triton's GPUTarget
    options: dict[str, Any]


class _Nothing:
    """Stands in for a compiled kernel: has whatever it is asked for, and does nothing when it is called."""

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *arguments: object, **options: object) -> _Nothing:
        return self


@contextlib.contextmanager
def collect(found: Callable[[Kernel], object]) -> Iterator[None]:
    """Keep Triton from compiling and launching within the block: every kernel that a call needs goes to `found`, once.

    For a process that ends afterwards: who keeps compiled kernels now keeps their stand-ins.
    """
    from triton.runtime.jit import JITFunction

    before = JITFunction._do_compile

    def note(
        self: Any,
        key: Any,
        signature: Any,
        device: int,
        constants: Any,
        options: Any,
        attributes: Any,
        warmup: bool,
    ) -> _Nothing:
        cache, _, target, *_ = self.device_caches[device]
        function = self.fn
        kernel = (function.__module__, function.__qualname__, signature, constants, attributes, target)
        found(Kernel(*kernel, dict(vars(options))))
        return cache.setdefault(key, _Nothing())

    JITFunction._do_compile = note
    try:
        yield
    finally:
        JITFunction._do_compile = before


def compile_kernel(kernel: Kernel) -> float:
    """Leave it in Triton's cache on disk, where a launch finds it; needs no GPU. Returns the seconds it took."""
    from triton.backends.nvidia import driver
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile
    from triton.experimental.gluon._runtime import GluonASTSource

    begun = time.perf_counter()
    function = getattr(importlib.import_module(kernel.module), kernel.name)
    take_keys(function)
    kind = GluonASTSource if function.is_gluon() else ASTSource
    source = kind(function, kernel.signature, kernel.constants, kernel.attributes)
    compiled = triton_compile(source, target=kernel.target, options=kernel.options)
    if hasattr(driver, "make_launcher"):  # Triton 3.6 compiles a launcher in C for each signature, too
        driver.CudaLauncher(source, compiled.metadata)
    return time.perf_counter() - begun


def take_keys(function: Any) -> None:
    """Let Triton take the cache key of a function after those of all that it calls.

    Triton's key of a function holds the constants of what it calls only if those have their keys already, so it depends
    on what was compiled before, and one process would not find what another compiled (JITCallable.cache_key, 3.6).
    """
    _take_keys(function, set())


def _take_keys(function: Any, seen: set[int]) -> None:
    if id(function) in seen or getattr(function, "hash", "") is not None:  # taken, or nothing that has one
        return
    seen.add(id(function))
    for called in _called(function):
        _take_keys(called, seen)
    function.cache_key  # noqa: B018 - which Triton keeps


def _called(function: Any) -> Iterator[Any]:
    """Yield what a function's code names: functions of its module and of modules that it names, methods of classes."""
    names, globals_ = function.fn.__code__.co_names, function.fn.__globals__
    for value in (globals_[name] for name in names if name in globals_):
        if isinstance(value, ModuleType):
            yield from (getattr(value, name) for name in names if hasattr(value, name))
        elif getattr(value, "__triton_aggregate__", False):
            yield from value.hash_attrs
        else:
            yield value


def prepare() -> None:
    """Take the hash of Triton itself, with which every compiling begins, once for the processes forked after this."""
    from triton.runtime.cache import triton_key

    triton_key()


def _fields(name: str | None, constant: Any) -> list[tuple[str | None, Any]]:
    """Return a constant by its name, or the fields of one that wraps a dataclass, in capitals."""
    constant = getattr(constant, "config", constant)
    if dataclasses.is_dataclass(constant) and not isinstance(constant, type):
        return [(field.upper(), value) for field, value in vars(constant).items()]
    return [(name, constant)]


def _configuration(function: Any, kernel: Any) -> str | None:
    """Return its constants in numbers or words, warps and stages; None if this Triton keeps them elsewhere."""
    constants, metadata = getattr(getattr(kernel, "src", None), "constants", None), getattr(kernel, "metadata", None)
    if constants is None or metadata is None:
        return None
    words = []
    for path, constant in constants.items():
        name = function.arg_names[path[0]] if isinstance(path, tuple) and len(path) == 1 else None
        for key, value in _fields(name, constant):
            if key and key.isupper() and key not in _SHAPE and type(value) in (int, str):
                words.append(f"{key}={value}")
    words += [f"{name}={getattr(metadata, name)}" for name in ("num_warps", "num_stages") if hasattr(metadata, name)]
    return " ".join(words)
