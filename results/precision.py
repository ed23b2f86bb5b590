"""Precisions that an implementation's name says and its column's dtype does not: TF32 in float32, FP8 in 16 bits.

They win nothing where the others compute in the dtype itself, and their peak is another.
"""

from __future__ import annotations

FP8 = "float8_e4m3fn"
_SUFFIXES = ("_tf32", "_fp8")


def _named(suffixes: tuple[str, ...]) -> str:
    likes = (f"implementation LIKE '%\\{suffix}' ESCAPE '\\'" for suffix in suffixes)
    return f"({' OR '.join(likes)})"


TF32_SQL, FP8_SQL, OTHER_SQL = _named(_SUFFIXES[:1]), _named(_SUFFIXES[1:]), _named(_SUFFIXES)


def is_other(implementation: str) -> bool:
    """Whether it computes in another precision than its column's dtype."""
    return implementation.endswith(_SUFFIXES)


def is_tf32(implementation: str) -> bool:
    """Whether its float32 products are TF32 ones."""
    return implementation.endswith("_tf32")


def products(implementation: str, dtype: str | None) -> str | None:
    """The dtype that its matrix products take, which is what bounds its speed."""
    return FP8 if implementation.endswith("_fp8") else dtype
