"""Experiments on the reliability of verdicts and checks: `python -m runner.validate EXPERIMENT`.

- `false-verdicts` measures the same code twice; every FASTER or SLOWER between the two runs is false.
- `slowdown` measures again with a spinning kernel that makes every forward 5 % longer; every call of at least 50
  microseconds that is not SLOWER is a miss. `both` runs both experiments.
- `against` compares two versions in one sweep, as `runner run --against` does: first the same code, then with every
  forward and backward of the other version 5 % and 2 % longer.
- `tune` makes rules of random halves of a run's cases and prints their loss on the other halves; --first names the
  run, and without it those of real models that ship are taken. With --second it prints how far the rules of two tunes
  of one card agree. Nothing is measured.
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
from typing import Any
from unittest import mock

from results.compare.against import compare_versions
from results.compare.between_runs import is_control
from results.compare.compare import Comparison, Side, compare
from results.files.journal import JournalError, RunFolder, home, published_folders
from results.paths import REPOSITORY
from results.recommend.rule_file import RuleError
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
from runner.sweeps.grid import SweepFile
from runner.sweeps.op import OpSweep
from runner.tune import CORNERS
from runner.validate import planted, tuned
from runner.validate.slow_worker import VARIABLE, key_of

MOST_FALSE, LEAST_FOUND = 0.01, 0.95
_EXPERIMENTS = ("false-verdicts", "slowdown", "both", "against", "planted", "tune")
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


def false_verdicts(found: Comparison, what: str = "Same code twice", least: int = 200) -> MeasuredShare:
    """Return the share of cells of the same code, at least so many, that are called different."""
    cells = [cell for cell in found.cells if cell.judgement]
    outcomes = Counter(cell.outcome for cell in cells)
    false = outcomes["FASTER"] + outcomes["SLOWER"]
    share = false / len(cells) if cells else 1.0
    scatter = statistics.pstdev([math.log(cell.judgement.speedup or 1.0) for cell in cells]) if cells else 0.0
    words = (
        f"{what}: {false} of {len(cells)} cells are FASTER or SLOWER: {share:.1%} (goal: at most {MOST_FALSE:.0%} of "
        f"at least {least}). {_counted(outcomes)}. Speedups scatter by {scatter:.2%}."
    )
    return MeasuredShare(words, share <= MOST_FALSE and len(cells) >= least)


def found_slowdowns(
    found: Comparison, slowdown: float = SLOWDOWN, *, outcome: str = "SLOWER", least_ms: float = LEAST_MS
) -> MeasuredShare:
    """Return the share of slowed calls, if long enough, that have the outcome; below SLOWDOWN there is no goal.

    PyTorch's implementations are not slowed, because a verdict attributes their common change to the machine.
    """
    cells = [cell for cell in found.cells if cell.judgement and not is_control(cell.implementation)]
    cells = [cell for cell in cells if min(cell.first.value, cell.second.value) >= least_ms]
    outcomes = Counter(cell.outcome for cell in cells)
    share = outcomes[outcome] / len(cells) if cells else 0.0
    real = math.expm1(abs(statistics.median(math.log(c.judgement.speedup or 1.0) for c in cells))) if cells else 0.0
    goal = f" (goal: at least {LEAST_FOUND:.0%})" if slowdown >= SLOWDOWN else ""
    words = (
        f"Calls {slowdown:.0%} longer ({real:.1%} as measured): {outcomes[outcome]} of {len(cells)} cells of at least "
        f"{least_ms * 1e3:.0f} us are {outcome}: {share:.1%}{goal}. {_counted(outcomes)}."
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
    reached = True
    try:
        for finding in _experiments(options):
            print(finding.words, flush=True)
            reached = reached and finding.reached
    except (Refused, SweepError, SweepFailed, DeviceBusy, JournalError, RuleError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if reached else 1


def _experiments(options: argparse.Namespace) -> Iterator[MeasuredShare]:
    if options.experiment == "tune" and options.second:
        tunes = [_side(name) for name in (options.first, options.second)]
        yield MeasuredShare(*tuned.agreed(*(tuned.rule_of(each.run, each.measurements) for each in tunes)))
        return
    if options.experiment == "tune":
        shipped = {folder.run_id: folder for folder in published_folders()}
        for name in [options.first] if options.first else tuned.SHIPPED:
            folder = shipped.get(name) or RunFolder.open(home(), name)
            run, corners = folder.run(), [x for x in shipped.values() if CORNERS in x.run_id]
            own = [x for x in corners if x.run().gpu_name == run.gpu_name]
            near = own or [x for x in corners if x.run().compute_capability == run.compute_capability]
            words, reached = tuned.judged(run, folder.read()[0], [m for each in near for m in each.read()[0]])
            told = "".join(f", with corners of {gpu}" for gpu in {x.run().gpu_name for x in near if not own})
            yield MeasuredShare(f"{name}{told}: {words}", reached)
        return
    if options.experiment == "against":
        yield from _against(options)
        return
    first = _side(options.first) if options.first else _measured(options, COMMAND)
    if options.experiment != "slowdown":
        second = _side(options.second) if options.second else _measured(options, COMMAND)
        yield false_verdicts(compare(first, second))
    if options.experiment != "false-verdicts":
        with _delays(first.measurements):
            slowed = _side(options.slowed) if options.slowed else _measured(options, _SLOWED)
        yield found_slowdowns(compare(first, slowed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner.validate", description="Experiments on verdicts and checks."
    )
    parser.add_argument("experiment", choices=_EXPERIMENTS)
    parser.add_argument("--device", default="cuda:0", help="cuda:0, cuda:1, ... or cpu; default cuda:0")
    parser.add_argument("--set", action="append", default=[], metavar="AXIS=VALUES", help="such as seqlen=1024")
    parser.add_argument("--protocol", choices=("quick", "standard"), default="standard")
    parser.add_argument("--first", metavar="RUN", help="use an existing run as the first")
    parser.add_argument("--second", metavar="RUN", help="use an existing run of the same code as the second")
    parser.add_argument("--slowed", metavar="RUN", help="use an existing run of the slowed code, made for the first")
    return parser


def _against(options: argparse.Namespace) -> Iterator[MeasuredShare]:
    """Compare two versions in one sweep: first the same code, then slowed by each share."""
    same = _side(options.first) if options.first else _measured(options, COMMAND)
    yield false_verdicts(compare_versions(same.run, same.measurements), "Same code in one sweep", least=1)
    for slowdown in AGAINST_SLOWDOWNS:
        with _delays(same.measurements, slowdown):
            slower = _measured(options, _SLOWED)
        found = compare_versions(slower.run, slower.measurements)
        yield found_slowdowns(found, slowdown, outcome="FASTER", least_ms=LEAST_AGAINST_MS)


def _measured(options: argparse.Namespace, worker: tuple[str, ...]) -> Side:
    """Measure with a worker, which against another version is that of the other side."""
    against = options.experiment == "against"
    on_gpu = OURS_ON_GPU if against else ON_GPU
    sweep = sweeps.override(ON_CPU if options.device == "cpu" else on_gpu, sweeps.changes_of(options.set))
    words = ["python", "-m", "runner.validate", options.experiment, "--device", options.device]
    more: dict[str, Any] = (
        {"implementations": sweep.implementations, "against": OtherVersion(folder=REPOSITORY)} if against else {}
    )
    protocol = PAIRED.name if against else options.protocol
    job = Job(sweep, options.device, protocol=protocol, command=lambda device: shlex.join(words), **more)
    place: dict[str, Any] = {"other_command" if against else "worker_command": worker}
    return _side(supervise(job, home(), progress=Progress(), stop=lambda: False, **place).run_id)


def _side(run_id: str) -> Side:
    folder = RunFolder.open(home(), run_id)
    return Side(folder.run(), folder.read()[0])


@contextlib.contextmanager
def _delays(measurements: Sequence[Measurement], slowdown: float = SLOWDOWN) -> Iterator[None]:
    """Provide the file that runner.validate.slow_worker reads within the block."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "delays.json"
        path.write_text(json.dumps(delays_ms(measurements, slowdown)))
        with mock.patch.dict(os.environ, {VARIABLE: str(path)}):
            yield


def _counted(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())


if __name__ == "__main__":
    sys.exit(main())
