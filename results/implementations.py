"""What is known of an implementation by its name: precision, memory law, colour, family.

A run records what each of its implementations declares (`Run.implementations`). Runs from before that was recorded, and
implementations of published reports, are looked up in implementations.toml.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from results.levels.memory import MemoryLaw, law_from_json
from results.levels.tensors import BF16X6
from results.paths import toml_of

FP8 = "float8_e4m3fn"
PRECISIONS = ("tf32", "fp8")
_IN_PARTS = range(17, 129)
_HOPPER = re.compile(r"\bG?H(?:20|100|200|800)\b")
Declared = Mapping[Any, Mapping[str, Any]]  # by name, as a run records it, or by run and name
_BEFORE: dict[str, dict[str, Any]] = toml_of(__file__)


@dataclass(frozen=True)
class ImplementationFacts:
    """What an implementation declares, as far as it is known."""

    family: str | None = None  # pytorch, own or peer
    precision: str | None = None  # one of PRECISIONS if factors have fewer bits than the case's dtype
    memory: MemoryLaw = MemoryLaw()
    float32: str | None = None  # BF16X6 where float32 products are made of bfloat16 ones
    colour: str | None = None  # in charts, #rrggbb

    @property
    def reduced(self) -> bool:
        """Return whether it computes in another precision than its column's dtype, and so wins nothing there."""
        return self.precision is not None

    @property
    def tf32(self) -> bool:
        """Return whether it rounds the factors of float32 products to TF32."""
        return self.precision == "tf32"

    def multiplies(self, dtype: str | None, head_dim: int | None = None, gpu_name: str | None = None) -> str | None:
        """Return what its matrix products take, which is what bounds its speed: a dtype, or BF16X6.

        `triton_fa2` multiplies float32 in six bfloat16 products on Hopper at head_dim 17 to 128, else in IEEE float32.
        """
        if dtype == "float32" and self.float32 == BF16X6 and head_dim in _IN_PARTS and _HOPPER.search(gpu_name or ""):
            return BF16X6
        return FP8 if self.precision == "fp8" else dtype


def facts_of(name: str, declared: Declared | None = None, run_id: str | None = None) -> ImplementationFacts:
    """Return what is known of an implementation, in a run if one is named; `declared` comes before the table here.

    A declaration comes from a run's record, which anybody may have written: what it says in a way that is not possible
    counts as not said.
    """
    said = (declared or {}).get((run_id, name), (declared or {}).get(name))
    return _facts_before(name) if said is None else _facts(name, said)


@cache
def _facts_before(name: str) -> ImplementationFacts:
    return _facts(name, _BEFORE.get(name, {}))


def version_name(name: str, label: str) -> str:
    """Return the name under which a run holds another version of an implementation; its own without a label."""
    return f"{name}@{label}" if label else name


def known_names() -> tuple[str, ...]:
    """Return the names of which something is known without a run that declares it."""
    return tuple(_BEFORE)


def _facts(name: str, said: Mapping[str, Any]) -> ImplementationFacts:
    precision, colour = said.get("precision"), said.get("colour")
    family = said.get("family", _BEFORE.get(name, {}).get("family"))
    if "precision" not in said:  # before it was declared, names ended with it
        precision = next((each for each in PRECISIONS if name.endswith(f"_{each}")), None)
    try:
        law = law_from_json(said.get("memory"))
    except ValueError:
        law = MemoryLaw()
    return ImplementationFacts(
        family=family if isinstance(family, str) else None,
        precision=precision if precision in PRECISIONS else None,
        memory=law,
        float32=_BEFORE.get(name, {}).get("float32"),
        colour=colour if isinstance(colour, str) and re.fullmatch("#[0-9a-f]{6}", colour) else None,
    )
