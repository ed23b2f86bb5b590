"""Hooks that observe what Triton compiles, loads and launches, or collect kernels to compile them elsewhere.

They work for all implementations in Triton or Gluon, because every kernel is launched by `JITFunction.run`, which
returns the compiled kernel. Kernels of torch.compile are launched differently and are not seen.
"""

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

_SHAPE = ("HEAD_DIM", "BLOCK_D", "SIZE", "COPIED")  # constants of the problem, which are no tuning choice


@dataclass
class SeenKernels:
    """Observed kernels."""

    kernels: dict[str, str] = field(default_factory=dict)  # by name the tile, warps and stages of the last launch
    compiled: int = 0
    loaded: int = 0  # number of kernels found in Triton's cache on disk

    @property
    def config(self) -> str | None:
        """Return every kernel with its configuration; None if no kernel was seen."""
        return "; ".join(f"{name} {text}" for name, text in sorted(self.kernels.items())) or None


@contextlib.contextmanager
def watch() -> Iterator[SeenKernels]:
    """Observe Triton within the block; if several configurations of a kernel are tried, the last one counts."""
    seen = SeenKernels()
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
    """The arguments of a Triton compilation, in a form that can be sent to another process."""

    module: str
    name: str
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    target: Any  # triton's GPUTarget
    options: dict[str, Any]


class _Nothing:
    """Stand-in for a compiled kernel, which has every attribute and does nothing when called."""

    def __getattr__(self, name: str) -> "_Nothing":
        return self

    def __call__(self, *arguments: object, **options: object) -> "_Nothing":
        return self


@contextlib.contextmanager
def collect(found: Callable[[Kernel], object]) -> Iterator[None]:
    """Keep Triton from compiling and launching within the block, and pass every needed kernel to `found` once.

    The process must end afterwards, because caches of compiled kernels then hold stand-ins.
    """
    from triton.runtime.jit import JITFunction

    before = JITFunction._do_compile

    def note(
        self: Any, key: Any, signature: Any, device: int, constants: Any, options: Any, attributes: Any, warmup: bool
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
    """Compile a kernel into Triton's cache on disk, without a GPU, and return the seconds."""
    from triton.backends.nvidia import driver
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile
    from triton.experimental.gluon._runtime import GluonASTSource

    begun = time.perf_counter()
    named = getattr(importlib.import_module(kernel.module), kernel.name)
    function = getattr(named, "jitted", named)  # kernels.unspecialized wraps it
    take_keys(function)
    kind = GluonASTSource if function.is_gluon() else ASTSource
    source = kind(function, kernel.signature, kernel.constants, kernel.attributes)
    compiled = triton_compile(source, target=kernel.target, options=kernel.options)
    if hasattr(driver, "make_launcher"):  # Triton 3.6 compiles a launcher in C for each signature, too
        driver.CudaLauncher(source, compiled.metadata)
    return time.perf_counter() - begun


def take_keys(function: Any, seen: set[int] | None = None) -> None:
    """Compute the cache keys of all functions that a function calls, and then the function's key.

    Triton's key of a function includes the constants of its callees only if their keys exist already, so the key would
    depend on earlier compilations, and processes would not find each other's kernels (JITCallable.cache_key, 3.6).
    """
    seen = set() if seen is None else seen
    # It has a key already, or it is not a Triton function.
    if id(function) in seen or getattr(function, "hash", "") is not None:
        return
    seen.add(id(function))
    for called in _called(function):
        take_keys(called, seen)
    function.cache_key  # noqa: B018 - Triton stores the key


def _called(function: Any) -> Iterator[Any]:
    """Yield the objects that a function's code names: globals, members of modules, and methods of aggregates."""
    names, globals_ = function.fn.__code__.co_names, function.fn.__globals__
    for value in (globals_[name] for name in names if name in globals_):
        if isinstance(value, ModuleType):
            yield from (getattr(value, name) for name in names if hasattr(value, name))
        elif getattr(value, "__triton_aggregate__", False):
            yield from value.hash_attrs
        else:
            yield value


def prepare() -> None:
    """Compute the hash of Triton itself once, so that forked processes do not repeat it."""
    from triton.runtime.cache import triton_key

    triton_key()


def _fields(name: str | None, constant: Any) -> list[tuple[str | None, Any]]:
    """Return a constant with its name, or the fields of a wrapped dataclass with their names in capitals."""
    constant = getattr(constant, "config", constant)
    if dataclasses.is_dataclass(constant) and not isinstance(constant, type):
        return [(field.upper(), value) for field, value in vars(constant).items()]
    return [(name, constant)]


def _configuration(function: Any, kernel: Any) -> str | None:
    """Return the constants, warps and stages of a kernel; None if this Triton stores them elsewhere."""
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
