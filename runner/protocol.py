"""Presets for how long and how often each number is sampled. Standard library only."""

from dataclasses import dataclass, replace
from typing import Self

VERSION = "1"  # to be raised by a change that makes new numbers incomparable with old ones
_VERY_SLOW_MS, _SLOWEST_MS = 500.0, 2000.0


@dataclass(frozen=True)
class Protocol:
    """A sampling preset. A call is sampled in rounds, interleaved with the other implementations of its case."""

    name: str
    rounds: int
    cap_ms: float  # sampling time of one measurement in all rounds
    precision: float = 0.01  # sampling stops when half the 95 % interval of the median is within this share of it
    least: int = 20  # least samples of one measurement, regardless of the cap
    least_slow: int = 6  # least samples of a slow call; fewer than 6 give no 95 % interval
    least_very_slow: int = 6  # least samples of a call that takes more than half a second
    least_slowest: int = 6  # least samples of a call that takes more than two seconds
    patience_ms: float = 300.0  # calls are slow if `least` samples take longer than this
    most: int = 90
    more_s: float = 0.0  # rounds without a verdict are doubled if they took less; 0: never
    heat_s: float = 0.0  # seconds of back-to-back calls before the samples of a round, which lower a GPU's clock
    energy_s: float = 0.0  # least seconds between two readings of the energy counter; 0: energy is not measured
    trace_s: float = 0.0  # seconds of back-to-back calls for burst and sustained figures; 0: no trace

    @property
    def label(self) -> str:
        """Return the preset and the version of the protocol, as a run records them."""
        return f"{self.name}/{VERSION}"

    def seconds(self, call_s: float, timings: int) -> float:
        """Return the seconds that a cell takes: a check of four calls, the samples, heating and the trace."""
        least = self.least_of_round(call_s * 1e3) * self.rounds
        calls = max(least, min(self.most, self.cap_ms / 1e3 / max(call_s, 1e-5)))
        more = self.trace_s * bool(timings) + self.heat_s * self.rounds * timings
        return call_s * (4 + calls * timings) + more

    def least_of_round(self, call_ms: float) -> int:
        """Return the least number of samples in each round of a call with that latency."""
        least = self.least_very_slow if call_ms > _VERY_SLOW_MS else self.least_slow
        least = self.least_slowest if call_ms > _SLOWEST_MS else least
        wanted = min(self.least, max(least, int(self.patience_ms / max(call_ms, 1e-3))))
        return -(-wanted // self.rounds)

    def for_a_share(self) -> Self:
        """Return a short protocol for a part of a call, of which only the share of the time is recorded."""
        return replace(self, rounds=1, cap_ms=0.0, least=6, least_slow=2, least_very_slow=1, least_slowest=1)


# For comparing two versions: an even number of rounds, so that each version starts half of them.
PAIRED = Protocol("paired", rounds=8, cap_ms=240.0, more_s=10.0)
WARM = replace(PAIRED, name="warm", heat_s=0.1)
# For `tune --quick`: eager times drift with the host within seconds, and only several rounds show by how much.
TUNE = Protocol("tune", rounds=4, cap_ms=40.0, patience_ms=200.0)
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("quick", rounds=1, cap_ms=30.0, patience_ms=200.0, least_very_slow=3, least_slowest=2),
        Protocol("standard", rounds=3, cap_ms=150.0, energy_s=0.09, more_s=10.0),
        Protocol("sustained", rounds=1, cap_ms=30.0, patience_ms=200.0, energy_s=0.5, trace_s=30.0),
    )
}


def protocol_of(name: str) -> Protocol:
    """Return the preset of that name, including those without an option. Raises KeyError if there is none."""
    return next((each for each in (PAIRED, WARM, TUNE) if each.name == name), None) or PROTOCOLS[name]
