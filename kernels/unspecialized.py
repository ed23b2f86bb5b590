"""Kernels whose sizes come in tuples and are compiled once for all sizes.

Triton ignores `do_not_specialize` for the elements of tuples (3.6 to 3.9).
"""

from collections.abc import Sequence
from typing import Any

_PLACEHOLDER = 9  # neither 1 nor a multiple of 16
_INT32 = range(-(2**31), 2**31)


class UnspecializedTuples:
    """A jit function that applies `do_not_specialize` and `do_not_specialize_on_alignment` to tuples as well."""

    def __init__(self, kernel: Any) -> None:
        self.jitted = kernel  # Triton's JITFunction

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)

    def warmup(self, *arguments: Any, **options: Any) -> Any:
        """Compile the kernel as JITFunction.warmup does."""
        return self.jitted.warmup(*self.declared(arguments), **options)

    def declared(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the arguments that the kernel is compiled for."""
        return [
            _placeholders(x, param.do_not_specialize)
            if isinstance(x, tuple) and (param.do_not_specialize or param.do_not_specialize_on_alignment)
            else x
            for param, x in zip(self.jitted.params, arguments)  # noqa: B905 - constants may follow by name
        ]


def _placeholders(sizes: Any, any_number: bool) -> tuple[Any, ...]:
    """Return a tuple of the same type with placeholders; 1 stays 1 unless `any_number`."""
    found = [x if x == 1 and not any_number else _PLACEHOLDER if x in _INT32 else _PLACEHOLDER + 2**32 for x in sizes]
    return type(sizes)(*found) if hasattr(sizes, "_fields") else tuple(found)
