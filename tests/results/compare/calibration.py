"""How often verdicts are wrong and what they find, on simulated machines: python -m tests.results.compare.calibration
[COMPARISONS].

The noise within a round is drawn from the samples of the shipped H200 journals in stretches, so that their order and
their skewed tails are kept. A machine adds what it does to both processes: an offset of the second process, a drift of
its rounds, a coarse timer, a warming chip, a busy host. Both sides are the same code, or ours is slower in the second;
whole comparisons are judged, as `python -m results compare` would. Half of the cells are PyTorch's own.
"""

import math
import random
import statistics
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.compare.compare import Comparison, Side, compare
from results.compare.verdicts import Verdict
from results.files import journal
from results.records import Measurement, Run, attention_case
from results.spread import spread, variance

RUNS = tuple(f"h200-{name}" for name in ("fa2_speedup", "fa_paper-causal", "fa_paper-full", "long_context"))
CELLS = 240  # of one comparison
SHORTEST_MS = 0.02  # of the kernels that a slowdown is planted in
STRETCH = 6  # samples that stay together
WRONG = (Verdict.FASTER, Verdict.SLOWER)
NAMES = ("torch_naive", "ours_a", "torch_sdpa_flash", "ours_b")
MOST_WRONG = 0.01  # of the unchanged cells, and of the slowed ones that are called the same


@dataclass(frozen=True)
class Noise:
    """A real cell: its median, what each sample of a round is to the round's median, and how its rounds differ."""

    ms: float
    timing: str
    rounds: tuple[tuple[float, ...], ...]
    drift: float


@dataclass(frozen=True)
class Machine:
    """What a machine does to the times of two processes, or of one; shares are of the time."""

    name: str
    one_run: bool = False  # two implementations of one interleaved run, not two runs
    controls: bool = True  # both runs have the same PyTorch
    offset: float = 0.0  # of every time of the second process
    of_cell: float = 0.003  # standard deviation of each cell in a process
    of_ours: float = 0.0  # of ours in the second process, beyond that
    of_plain: float = 0.0  # of the second process, where a call is of many kernels
    drift: tuple[float, float] = (0.003, 0.01)  # standard deviation of a round, between these in each cell
    rarely: float | None = None  # share of the cells that drift or step; the others are quiet, and not counted
    as_journals: bool = False  # rounds drift as the real cell's did
    trend: float = 0.0  # from the first round to the last, of all cells alike
    step: float = 0.0  # of the last round of the second side
    resolution_ms: float = 0.0  # of the timer
    bursts: float = 0.0  # of a tenth of the samples, which follow each other
    timing: str = "kernel"
    longest_ms: float = math.inf  # of the cells that are drawn
    rounds: int = 3
    comparisons: int = 1  # at least; more where the cells of one comparison are wrong together
    follow: float = 0.0  # correlation of neighbouring rounds of a side


_READ = tomllib.loads(Path(__file__).with_name("machines.toml").read_text(encoding="utf-8"))
MACHINES = tuple(
    Machine(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})
    for said in _READ["machines"]
)


@dataclass(frozen=True)
class Rates:
    """Shares of cells: called different though the same, and of those slower by a share found and called the same."""

    wrong: float
    found: float
    missed: float  # called SAME


def real_noise() -> list[Noise]:
    """Every latency with samples of RUNS in a fixed order, but for throttled ones, which are flagged as no measure of a
    kernel; the thirds of its samples are its rounds."""
    found = []
    for folder in sorted(journal.published_folders(), key=lambda folder: folder.run_id):
        for m in folder.read()[0] if folder.run_id in RUNS else ():
            if m.metric != "latency_ms" or "throttled" in m.flags:
                continue
            if len(m.samples) >= 6 and m.timing:
                cuts = [round(len(m.samples) * i / 3) for i in range(4)]
                parts = [m.samples[cuts[i] : cuts[i + 1]] for i in range(3)]
                middles = [statistics.median(part) for part in parts]
                shapes = (tuple(s / middle for s in part) for part, middle in zip(parts, middles, strict=True))
                drift = math.sqrt(variance([math.log(middle) for middle in middles]))
                found.append(Noise(m.value, m.timing, tuple(shapes), drift))
    return found


def rates(noise: Sequence[Noise], machine: Machine, *, slowdown: float = 0.05, comparisons: int = 2) -> Rates:
    """Return what so many comparisons of CELLS cells on a machine come to, unchanged and with ours slowed."""
    fitting = [cell for cell in noise if cell.timing == machine.timing and cell.ms <= machine.longest_ms]
    long = [cell for cell in fitting if cell.ms > SHORTEST_MS]
    same = [compared(random.Random(seed), fitting, machine) for seed in range(comparisons)]
    slower = [compared(random.Random(-1 - seed), long, machine, slowdown=slowdown) for seed in range(comparisons)]
    return Rates(
        wrong=_share(same, WRONG, own=False),
        found=_share(slower, (Verdict.SLOWER,), own=True),
        missed=_share(slower, (Verdict.SAME,), own=True),
    )


def compared(
    rng: random.Random, noise: Sequence[Noise], machine: Machine, *, slowdown: float = 0.0
) -> tuple[Comparison, set[int]]:
    """Return one comparison of CELLS cells drawn from `noise`, and which of them by seqlen are the machine's subject.

    Of two runs only ours is slowed.
    """
    subjects: set[int] = set()
    sides: tuple[list[Measurement], list[Measurement]] = ([], [])
    for place in range(CELLS):
        cell, name = rng.choice(noise), NAMES[place % len(NAMES)]
        odd = machine.rarely is None or rng.random() < machine.rarely
        subjects |= {place + 1} if odd else set()
        drift = cell.drift if machine.as_journals else rng.uniform(*machine.drift) if odd else 0.003
        step = machine.step if odd else 0.0
        own = not name.startswith("torch_")
        slowed = slowdown if machine.one_run or own else 0.0
        for at, side in enumerate(sides):
            moved = machine.offset + machine.of_plain * (name == "torch_naive") + machine.of_ours * own
            moved = 0.0 if machine.one_run else moved * at
            shift = math.log1p(moved) + math.log1p(slowed) * at
            shift += rng.gauss(0, 0 if machine.one_run else machine.of_cell)
            wander = _following(rng, drift, machine)
            rounds = [shift + wander[i] + machine.trend * i / machine.rounds for i in range(machine.rounds)]
            rounds[-1] += step * at
            side.append(
                _measured(rng, cell, place, ("before", "after")[at] if machine.one_run else name, rounds, machine)
            )
    run = Run("r1", "local", protocol="standard/1", torch="2.11", gpu_name="A GPU")
    if machine.one_run:
        both = [*sides[0], *sides[1]]
        return compare(Side(run, both, "before"), Side(run, both, "after")), subjects
    other = replace(run, run_id="r2", torch="2.11" if machine.controls else "2.12")
    return compare(Side(run, sides[0]), Side(other, sides[1])), subjects


def _following(rng: random.Random, drift: float, machine: Machine) -> list[float]:
    """Draw what rounds are off by: independent, or each correlated with the one before."""
    found = [rng.gauss(0, drift)]
    for _ in range(machine.rounds - 1):
        found.append(machine.follow * found[-1] + rng.gauss(0, drift * math.sqrt(1 - machine.follow**2)))
    return found


def _measured(
    rng: random.Random, cell: Noise, place: int, name: str, rounds: Sequence[float], machine: Machine
) -> Measurement:
    samples, sizes = [], []
    for shift in rounds:
        shape = rng.choice(cell.rounds)
        drawn = [sample * cell.ms * math.exp(shift) for sample in _in_stretches(rng, shape)]
        if machine.bursts and rng.random() < 0.5:
            begin, length = rng.randrange(len(drawn)), max(1, len(drawn) // 5)
            drawn = [s * (1 + machine.bursts * (begin <= i < begin + length)) for i, s in enumerate(drawn)]
        samples += [_read(rng, sample, machine.resolution_ms) for sample in drawn]
        sizes.append(len(shape))
    case = attention_case(batch=1, num_heads=1, seqlen=place + 1, head_dim=64, dtype="float16", causal=True)
    kind = {"metric": "latency_ms", "mode": "fwd", "timing": cell.timing, "status": "ok"}
    return Measurement("r1", case, name, **kind, **spread(samples), round_sizes=tuple(sizes))


def _in_stretches(rng: random.Random, shape: Sequence[float]) -> list[float]:
    """Draw a round anew in stretches of samples that followed each other (Kuensch, Annals of Statistics 17, 1989)."""
    drawn: list[float] = []
    while len(drawn) < len(shape):
        begin = rng.randrange(len(shape))
        drawn += [shape[(begin + i) % len(shape)] for i in range(STRETCH)]
    return drawn[: len(shape)]


def _read(rng: random.Random, ms: float, resolution: float) -> float:
    """Return what a timer of that resolution reads: its ticks between two moments, whatever the first one is."""
    if not resolution:
        return ms
    return max(resolution, (math.floor(ms / resolution + rng.random())) * resolution)


def _share(found: Iterable[tuple[Comparison, set[int]]], verdicts: Sequence[Verdict], *, own: bool) -> float:
    cells = [
        cell
        for comparison, subjects in found
        for cell in comparison.cells
        if cell.case.seqlen_q in subjects and not (own and cell.implementation.startswith("torch_"))
    ]
    return sum(cell.outcome in tuple(map(str, verdicts)) for cell in cells) / len(cells)


def table(comparisons: int) -> Iterable[str]:
    """Yield the lines of the table: every machine with its rates, and whether they are held."""
    noise = real_noise()
    yield "| machine | unchanged, called different | 5 % slower, found | 5 % slower, called SAME |"
    yield "| --- | --- | --- | --- |"
    for machine in MACHINES:
        found = rates(noise, machine, comparisons=max(comparisons, machine.comparisons))
        yield f"| {machine.name} | {found.wrong:.1%} | {found.found:.0%} | {found.missed:.1%} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if sys.argv[1:] else 1):
        print(line, flush=True)
