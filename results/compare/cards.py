"""The cards of one run: how far they differ, and which of them were neighbours. Standard library only."""

import statistics
from collections import Counter
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


def neighbours(cards: Mapping[str, Mapping[str, Any]], command: str | None) -> str | None:
    """Say which cards of a run measured on one host at a time; None if the run's command kept them apart."""
    hosts = Counter(facts.get("host") for facts in cards.values())
    shared = [f"{count} cards of {host}" for host, count in hosts.items() if host and count > 1]
    if not shared or "--one-per-host" in (command or ""):
        return None
    return f"{', '.join(shared)} measured at the same time and shared power, memory and processor of their host."
