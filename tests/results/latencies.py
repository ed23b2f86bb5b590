"""Latencies with the spread, rounds and clocks that a test asks for."""

import math
import random
from dataclasses import replace

from results.compare.verdicts import judge
from results.records import Measurement, Status, attention_case
from runner.measure.stopwatch import spread

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
STANDARD = "standard/1"


def row(ms: float, **fields) -> Measurement:
    """A latency with a value and whatever spread is given."""
    given = {"mode": "fwd", "timing": "kernel", "status": Status.OK} | fields
    name = given.pop("implementation", "x")
    return Measurement("r1", given.pop("case", CASE), name, "latency_ms", value=ms, **given)


def sampled(ms: float, *, rounds: tuple[float, ...] = (1.0, 1.0, 1.0), noise: float = 0.004, seed: int = 0, **fields):
    """A latency of ten samples a round; a round is so many times slower than the first."""
    rng = random.Random(seed)
    samples = [ms * factor * math.exp(abs(rng.gauss(0, noise))) for factor in rounds for _ in range(10)]
    found = spread(samples)
    return replace(row(found["value"], **fields), **found)


def verdict(first: Measurement, second: Measurement, **how) -> str:
    """The word for how the second stands to the first."""
    return str(judge(first, second, **how).verdict)
