"""What implementations can compute that a reader chooses by: declared in runs, and checked on a GPU.

A run records what its implementations declare. `published/features.json` records which declared features
`python -m runner.validate.features` checked against float64, by GPU.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from results import paths
from results.features import FEATURES

RECORD = "features.json"  # among what ships: GPU -> environment and, by implementation and feature, what was found
CERTIFICATES = "certificates.json"  # device -> environment and, by implementation, deviations by question or a reason
NEW_LENGTHS = "new_lengths.json"  # device -> environment and, in a list, what `python -m runner shapes` measured
CAPABILITIES: Mapping[str, str] = {  # as kernels.registry names them -> words
    "causal": "causal mask",
    "window": "sliding window",
    "gqa": "fewer key heads than query heads",
    "backward": "backward",
    "paged": "paged cache",
    "head_dim_v": "values of another head_dim, such as 192 and 128",
} | {feature.capability: feature.words for feature in FEATURES}


def declares(said: Mapping[str, Any], capability: str) -> bool:
    """Return whether what a run records of an implementation holds a capability; anybody may have written it."""
    features = said.get("features")
    return said.get(capability) is True or (isinstance(features, list) and capability in features)


def declaring(declared: Mapping[str, Mapping[str, Any]], capabilities: Iterable[str]) -> list[str]:
    """Return the implementations that declare all of these capabilities, by name; `declared` is by name, too."""
    wanted = tuple(capabilities)
    return sorted(name for name, said in declared.items() if all(declares(said, each) for each in wanted))


def record(name: str = RECORD) -> dict[str, dict[str, Any]]:
    """Return by device {"environment", "implementations"}, see runner.validate; empty where none ships."""
    path = paths.PUBLISHED / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def checked(entry: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return by capability which implementations were right in it, of a GPU's entry."""
    found: dict[str, list[str]] = {}
    for name, of_name in entry["implementations"].items():
        for capability, result in of_name.items():
            if is_right(result):
                found.setdefault(capability, []).append(name)
    return found


def right() -> dict[str, dict[str, list[str]]]:
    """Return what `checked` gives of each GPU whose record ships."""
    return {gpu: checked(entry) for gpu, entry in record().items()}


def dtypes_checked(entry: Mapping[str, Any]) -> list[str]:
    """Return the dtypes that any check of a GPU's entry ended in, by name."""
    results = (result for of_name in entry["implementations"].values() for result in of_name.values())
    errors = [result["errors"].items() for result in results if not isinstance(result, str)]
    return sorted({dtype for each in errors for dtype, error in each if error is not None})


def is_right(result: str | Mapping[str, Any]) -> bool:
    """Return whether errors were within what is allowed, in every dtype that a check ended in, and in one at least.

    Text is why it was refused.
    """
    errors = [] if isinstance(result, str) else [error for error in result["errors"].values() if error is not None]
    return bool(errors) and max(errors) <= 1
