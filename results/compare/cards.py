"""How far the cards of one run differ, by the case that each of them measured. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any


def differences(cards: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return each card's time over the cards' median: the geometric mean over the latencies of its calibration.

    `cards` is the field of a run's record. A latency that some card lacks does not count; without any that all have,
    nothing is known and the answer is empty.
    """
    measured = {name: facts.get("calibration") or {} for name, facts in cards.items()}
    shared = set.intersection(*map(set, measured.values())) if measured else set()
    middle = {key: statistics.median(latencies[key] for latencies in measured.values()) for key in shared}
    return {
        name: statistics.geometric_mean(latencies[key] / middle[key] for key in shared)
        for name, latencies in measured.items()
        if shared
    }
