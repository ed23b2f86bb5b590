"""What Triton compiles, loads and launches while it is watched: the configuration a kernel got, and from where.

Works for every implementation written in Triton or Gluon without its help: a kernel reaches the device only through
`JITFunction.run`, which answers with the compiled kernel. What torch.compile makes is launched by other means and not
seen. Without Triton there is nothing to see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
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
        """Every kernel with its configuration; None if no kernel was seen."""
        return "; ".join(f"{name} {text}" for name, text in sorted(self.kernels.items())) or None


@contextlib.contextmanager
def watch() -> Iterator[Seen]:
    """Sees what Triton does within the block; of kernels tried one after the other the last one counts."""
    seen = Seen()
    try:
        from triton import knobs
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield seen
        return
    run, listener = JITFunction.run, knobs.compilation.listener

    def watched(self: Any, *args: Any, **options: Any) -> Any:
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


def _configuration(function: Any, kernel: Any) -> str | None:
    """Its whole-number constants, warps and stages; None if this Triton keeps them elsewhere."""
    constants, metadata = getattr(getattr(kernel, "src", None), "constants", None), getattr(kernel, "metadata", None)
    if constants is None or metadata is None:
        return None
    words = []
    for path, value in constants.items():
        name = function.arg_names[path[0]] if isinstance(path, tuple) and len(path) == 1 else None
        if name and name.isupper() and name not in _SHAPE and type(value) is int:
            words.append(f"{name}={value}")
    words += [f"{name}={getattr(metadata, name)}" for name in ("num_warps", "num_stages") if hasattr(metadata, name)]
    return " ".join(words)
