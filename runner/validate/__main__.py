"""Experiments on the reliability of verdicts and checks: `python -m runner.validate EXPERIMENT`.

- `false-verdicts` measures the same code twice; every FASTER or SLOWER between the two runs is false.
- `slowdown` measures again with a spinning kernel that makes every forward 5 % longer; every call of at least 50
  microseconds that is not SLOWER is a miss. `both` runs both experiments.
- `against` compares two versions in one sweep, as `runner run --against` does: first the same code, then with every
  forward and backward of the other version 5 % and 2 % longer.
- `planted` measures planted bugs and prints how many of them the correctness check catches.

Each experiment prints its share and the goal. The runs stay in the home like all others.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.compare.against import compare_versions
from results.compare.between_runs import is_control
from results.compare.compare import Comparison, Side, compare
from results.files.journal import JournalError, RunFolder, home
from results.paths import REPOSITORY
from results.records import Measurement, Status
from runner import sweeps
from runner.locks import DeviceBusy
from runner.progress import Progress
from runner.protocol import PAIRED
from runner.supervise.job import Job, Refused, SweepFailed
from runner.supervise.other_version import OtherVersion
from runner.supervise.supervisor import supervise
from runner.supervise.worker_handle import COMMAND
from runner.sweeps import SweepError
from runner.sweeps.declared import SweepFile
from runner.sweeps.op import OpSweep
from runner.validate import planted
from runner.validate.slow_worker import VARIABLE, key_of

MOST_FALSE, LEAST_FOUND = 0.01, 0.95
SLOWDOWN = 0.05
LEAST_MS = 0.05  # shorter calls do not count, because 5 % of them cannot be detected
LEAST_AGAINST_MS = 0.02  # the same limit for two versions in one sweep
AGAINST_SLOWDOWNS = (0.05, 0.02)
_SLOWED = (sys.executable, "-m", "runner.validate.slow_worker")

ON_GPU, OURS_ON_GPU, ON_CPU = SweepFile(str(Path(__file__).with_name("experiments.py"))).sweeps(OpSweep)


@dataclass(frozen=True)
class MeasuredShare:
    """A share with its goal."""

    words: str
    reached: bool


def false_verdicts(first: Side, second: Side) -> MeasuredShare:
    """Return the share of cells that differ between two runs of the same code."""
    cells = [cell for cell in compare(first, second).cells if cell.judgement]
    outcomes = Counter(cell.outcome for cell in cells)
    false = outcomes["FASTER"] + outcomes["SLOWER"]
    share = false / len(cells) if cells else 1.0
    words = (
        f"Same code twice: {false} of {len(cells)} cells are FASTER or SLOWER: {share:.1%} "
        f"(goal: at most {MOST_FALSE:.0%} of at least 200). {_counted(outcomes)}."
    )
    return MeasuredShare(words, share <= MOST_FALSE and len(cells) >= 200)


def found_slowdowns(first: Side, second: Side) -> MeasuredShare:
    """Return the share of slowed calls, if long enough, that are found SLOWER.

    PyTorch's implementations are not slowed, because a verdict attributes their common change to the machine.
    """
    cells = [c for c in compare(first, second).cells if c.judgement and (c.first.value or 0.0) >= LEAST_MS]
    cells = [c for c in cells if not is_control(c.implementation)]
    outcomes = Counter(cell.outcome for cell in cells)
    share = outcomes["SLOWER"] / len(cells) if cells else 0.0
    real = statistics.median((cell.second.value / cell.first.value) for cell in cells) - 1 if cells else 0.0
    words = (
        f"Every call {SLOWDOWN:.0%} longer ({real:.1%} as measured): {outcomes['SLOWER']} of {len(cells)} cells of at "
        f"least {LEAST_MS * 1e3:.0f} us are SLOWER: {share:.1%} (goal: at least {LEAST_FOUND:.0%}). "
        f"{_counted(outcomes)}."
    )
    return MeasuredShare(words, share >= LEAST_FOUND)


def false_against(found: Comparison) -> MeasuredShare:
    """Return the share of cells that differ between two workers of one sweep with the same code."""
    cells = [cell for cell in found.cells if cell.judgement]
    outcomes = Counter(cell.outcome for cell in cells)
    false = outcomes["FASTER"] + outcomes["SLOWER"]
    share = false / len(cells) if cells else 1.0
    scatter = statistics.pstdev([math.log(cell.judgement.speedup) for cell in cells]) if cells else 0.0
    words = (
        f"Same code in one sweep: {false} of {len(cells)} cells are FASTER or SLOWER: {share:.1%} "
        f"(goal: at most {MOST_FALSE:.0%}). {_counted(outcomes)}. Speedups scatter by {scatter:.2%}."
    )
    return MeasuredShare(words, share <= MOST_FALSE and bool(cells))


def found_against(found: Comparison, slowdown: float) -> MeasuredShare:
    """Return the share of calls, if long enough, that are found FASTER than a slowed other version."""
    cells = [c for c in found.cells if c.judgement and (c.second.value or 0.0) >= LEAST_AGAINST_MS]
    outcomes = Counter(cell.outcome for cell in cells)
    share = outcomes["FASTER"] / len(cells) if cells else 0.0
    real = statistics.median(cell.judgement.speedup for cell in cells) - 1 if cells else 0.0
    goal = f" (goal: at least {LEAST_FOUND:.0%})" if slowdown >= SLOWDOWN else ""
    words = (
        f"The other version {slowdown:.0%} longer ({real:.1%} as measured): {outcomes['FASTER']} of {len(cells)} cells "
        f"of at least {LEAST_AGAINST_MS * 1e3:.0f} us are FASTER: {share:.1%}{goal}. {_counted(outcomes)}."
    )
    return MeasuredShare(words, share >= LEAST_FOUND or slowdown < SLOWDOWN)


def delays_ms(measurements: Sequence[Measurement], slowdown: float = SLOWDOWN) -> dict[str, float]:
    """Return the delay of each forward and backward of ours, by runner.validate.slow_worker.key_of."""
    found = {}
    for m in measurements:
        slowed = m.metric == "latency_ms" and m.mode in ("fwd", "bwd") and not is_control(m.implementation)
        if slowed and m.status is Status.OK:
            case = m.case
            q = (case.batch, case.num_heads, case.seqlen_q, case.head_dim)
            k = (case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim)
            found[key_of(m.implementation, m.mode, q, k, case.dtype, case.causal)] = slowdown * m.value
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the shares, and return 0 if every goal is reached."""
    options = _parser().parse_args(arguments)
    if options.experiment == "planted":
        return 0 if planted.main(options.device) else 1
    try:
        findings = list(_experiments(options))
    except (Refused, SweepError, SweepFailed, DeviceBusy, JournalError) as error:
        print(error, file=sys.stderr)
        return 2
    for finding in findings:
        print(finding.words)
    return 0 if all(finding.reached for finding in findings) else 1


def _experiments(options: argparse.Namespace) -> Iterator[MeasuredShare]:
    if options.experiment == "against":
        yield from _against(options)
        return
    first = _side(options.first) if options.first else _measured(options, COMMAND)
    if options.experiment != "slowdown":
        yield false_verdicts(first, _side(options.second) if options.second else _measured(options, COMMAND))
    if options.experiment != "false-verdicts":
        with _delays(first.measurements):
            yield found_slowdowns(first, _side(options.slowed) if options.slowed else _measured(options, _SLOWED))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner.validate", description="Experiments on verdicts and checks."
    )
    parser.add_argument("experiment", choices=("false-verdicts", "slowdown", "both", "against", "planted"))
    parser.add_argument("--device", default="cuda:0", help="cuda:0, cuda:1, ... or cpu; default cuda:0")
    parser.add_argument("--set", action="append", default=[], metavar="AXIS=VALUES", help="such as seqlen=1024")
    parser.add_argument("--protocol", choices=("quick", "standard"), default="standard")
    parser.add_argument("--first", metavar="RUN", help="use an existing run as the first")
    parser.add_argument("--second", metavar="RUN", help="use an existing run of the same code as the second")
    parser.add_argument("--slowed", metavar="RUN", help="use an existing run of the slowed code, made for the first")
    return parser


def _against(options: argparse.Namespace) -> Iterator[MeasuredShare]:
    """Compare two versions in one sweep: first the same code, then slowed by each share."""
    same = _side(options.first) if options.first else _measured_against(options, COMMAND)
    yield false_against(compare_versions(same.run, same.measurements))
    for slowdown in AGAINST_SLOWDOWNS:
        with _delays(same.measurements, slowdown):
            slower = _measured_against(options, _SLOWED)
        yield found_against(compare_versions(slower.run, slower.measurements), slowdown)


def _measured_against(options: argparse.Namespace, other: tuple[str, ...]) -> Side:
    sweep = sweeps.override(ON_CPU if options.device == "cpu" else OURS_ON_GPU, sweeps.changes_of(options.set))
    words = ["python", "-m", "runner.validate", "against", "--device", options.device]
    job = Job(
        sweep,
        options.device,
        implementations=sweep.implementations,
        protocol=PAIRED.name,
        against=OtherVersion(folder=REPOSITORY),
        command=lambda device: shlex.join(words),
    )
    folder = supervise(job, home(), progress=Progress(), stop=lambda: False, other_command=other)
    return _side(folder.run_id)


def _measured(options: argparse.Namespace, worker: tuple[str, ...]) -> Side:
    sweep = sweeps.override(ON_CPU if options.device == "cpu" else ON_GPU, sweeps.changes_of(options.set))
    words = ["python", "-m", "runner.validate", options.experiment, "--device", options.device]
    job = Job(sweep, options.device, protocol=options.protocol, command=lambda device: shlex.join(words))
    folder = supervise(job, home(), progress=Progress(), stop=lambda: False, worker_command=worker)
    return _side(folder.run_id)


def _side(run_id: str) -> Side:
    folder = RunFolder.open(home(), run_id)
    return Side(folder.run(), folder.read()[0])


@contextlib.contextmanager
def _delays(measurements: Sequence[Measurement], slowdown: float = SLOWDOWN) -> Iterator[None]:
    """Provide the file that runner.validate.slow_worker reads within the block."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "delays.json"
        path.write_text(json.dumps(delays_ms(measurements, slowdown)))
        os.environ[VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def _counted(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())


if __name__ == "__main__":
    sys.exit(main())
