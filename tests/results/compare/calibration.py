"""How often verdicts are wrong and how often they find a slowdown: python -m tests.results.compare.calibration
[COMPARISONS].

The noise within a round is drawn anew from the samples of the shipped H200 journals, skewed tails included. On top come
a drift of each round, and an offset of each run, which no verdict can know. Both sides are the same code, or the second
is slower by a known share; whole comparisons are judged, as `python -m results compare` would.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from results.compare.compare import Side, compare
from results.compare.verdicts import Verdict
from results.files import journal
from results.records import Measurement, Run, attention_case
from runner.measure.stopwatch import spread

CELLS = 240  # of one comparison
OFFSET = 0.003  # standard deviation of a run
SHORTEST_MS = 0.05
DRIFTS = (0.003, 0.01)
WRONG, RIGHT = (Verdict.FASTER, Verdict.SLOWER), (Verdict.SLOWER,)


@dataclass(frozen=True)
class Noise:
    """A real cell: its median, what each sample of a round is to the round's median, and how its rounds differ."""

    ms: float
    timing: str
    rounds: tuple[tuple[float, ...], ...]
    drift: float


def real_noise() -> list[Noise]:
    """Every latency with samples of the shipped H200 runs, but for throttled ones, which are flagged as no measure of a
    kernel; the thirds of its samples are its rounds."""
    found = []
    for folder in journal.published_folders():
        for m in folder.read()[0] if folder.run_id.startswith("h200-") else ():
            if m.metric != "latency_ms" or "throttled" in m.flags:
                continue
            if len(m.samples) >= 6 and m.timing and min(m.samples) > 0:
                cuts = [round(len(m.samples) * i / 3) for i in range(4)]
                parts = [m.samples[cuts[i] : cuts[i + 1]] for i in range(3)]
                middles = [statistics.median(part) for part in parts]
                shapes = (tuple(s / middle for s in part) for part, middle in zip(parts, middles, strict=True))
                found.append(Noise(m.value, m.timing, tuple(shapes), statistics.stdev(map(math.log, middles))))
    return found


def rate(
    cells: Sequence[Noise],
    verdicts: Iterable[Verdict],
    *,
    slowdown: float = 0.0,
    rounds: int = 3,
    paired: bool = False,
    drift: Callable[[random.Random, Noise], float] | None = None,
    comparisons: int = 5,
    seed: int = 0,
) -> float:
    """The share of cells with one of those verdicts, over so many comparisons of CELLS cells drawn from `cells`."""
    rng, hits, judged = random.Random(seed), 0, 0
    for _ in range(comparisons):
        chosen = [rng.choice(cells) for _ in range(CELLS)]
        drifts = [drift(rng, cell) if drift else rng.uniform(*DRIFTS) for cell in chosen]
        sides = [
            [
                _measured(rng, cell, place, sigma, rounds=rounds, scale=scale, name=name)
                for place, (cell, sigma) in enumerate(zip(chosen, drifts, strict=True))
            ]
            for name, scale in (("before", 1.0), ("after", 1.0 + slowdown))
        ]
        found = compare(*_sides(*sides, paired=paired))
        judged += len(found.cells)
        hits += sum(cell.outcome in tuple(map(str, verdicts)) for cell in found.cells)
    return hits / judged


def _measured(rng: random.Random, cell: Noise, place: int, drift: float, **how) -> Measurement:
    samples, sizes = [], []
    offset = rng.gauss(0, OFFSET)
    for _ in range(how["rounds"]):
        shape, shift = rng.choice(cell.rounds), math.exp(offset + rng.gauss(0, drift))
        samples += [cell.ms * how["scale"] * shift * factor for factor in rng.choices(shape, k=len(shape))]
        sizes.append(len(shape))
    case = attention_case(batch=1, num_heads=1, seqlen=place + 1, head_dim=64, dtype="float16", causal=True)
    kind = {"metric": "latency_ms", "mode": "fwd", "timing": cell.timing, "status": "ok"}
    return Measurement("r1", case, how["name"], **kind, **spread(samples), round_sizes=tuple(sizes))


def _sides(before: list[Measurement], after: list[Measurement], *, paired: bool) -> tuple[Side, Side]:
    run = Run("r1", "local", protocol="standard/1")
    if paired:  # two implementations of one run
        return Side(run, before + after, "before"), Side(run, before + after, "after")
    return Side(run, before), Side(replace(run, run_id="r2"), [replace(m, implementation="before") for m in after])


def main() -> None:
    """Print the rates of each setting."""
    noise = real_noise()
    kernels = [cell for cell in noise if cell.timing == "kernel" and cell.ms > SHORTEST_MS]
    own = {"drift": lambda _rng, cell: cell.drift}
    print(f"{len(noise)} real cells, {len(kernels)} of them kernel times above {SHORTEST_MS * 1e3:g} us")
    print("Called different though the same, of all cells and of kernels; found of kernels that are 5 % slower:")
    print(f"{'rounds':8}{'sides':8}{'drift of a round':24}{'all':>8}{'kernels':>9}{'found':>8}")
    for rounds in (3, 5):
        for paired in (False, True):
            for words, drift in (
                ("0.3 % to 1 %", {}),
                *((f"{share:.1%}", {"drift": lambda _r, _c, share=share: share}) for share in (0.003, 0.006, 0.01)),
                ("as in the journals", own),
            ):
                how = {"rounds": rounds, "paired": paired, "comparisons": int(sys.argv[1]) if sys.argv[1:] else 4}
                rates = (
                    rate(noise, WRONG, **how, **drift),
                    rate(kernels, WRONG, **how, **drift),
                    rate(kernels, RIGHT, slowdown=0.05, **how, **drift),
                )
                sides = "paired" if paired else "runs"
                print(f"{rounds:<8}{sides:8}{words:24}{rates[0]:>8.2%}{rates[1]:>9.2%}{rates[2]:>8.1%}", flush=True)


if __name__ == "__main__":
    main()
