"""Whether a number can be what it says: every row, published, uploaded or own, against arithmetic, the device and the
other rows.

A finding says its arithmetic in one sentence and never hides or changes a row. A new check is a function that yields
the rows it is about and a sentence, and one line in CHECKS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from results.checks import accuracy, chips, claims, machine, memory, models, rates, series, speed, stolen, times
from results.checks.finding import DOUBTFUL, IMPOSSIBLE, NOTE, Check, Finding, Numbers
from results.records import Measurement, Run

__all__ = ["DOUBTFUL", "IMPOSSIBLE", "NOTE", "CHECKS", "Finding", "Check", "by_rule", "check"]

CHECKS = (
    Check("above_peak", "faster than the device can be", IMPOSSIBLE, speed.above_peak),
    Check("above_bandwidth", "reads faster than the memory gives", IMPOSSIBLE, speed.above_bandwidth),
    Check("above_step_bandwidth", "steps that read faster than the memory", IMPOSSIBLE, models.above_step_bandwidth),
    Check("time_and_tflops", "time and TFLOP/s disagree", IMPOSSIBLE, speed.time_and_tflops),
    Check("claimed_tflops", "TFLOP/s that no row reaches", IMPOSSIBLE, speed.claimed_tflops),
    Check("share_of_peak", "share of a peak that no such device has", IMPOSSIBLE, speed.share_of_peak),
    Check("time_per_token", "time per token against time", IMPOSSIBLE, speed.time_per_token),
    Check("whole_below_part", "fwd_bwd below fwd or bwd", IMPOSSIBLE, times.whole_below_part),
    Check("below_floor", "memory below its tensors", IMPOSSIBLE, memory.below_floor),
    Check("below_weights", "memory below the model's weights", IMPOSSIBLE, memory.below_weights),
    Check("below_parts", "memory below the model's parts", IMPOSSIBLE, models.below_parts),
    Check("above_device", "more memory than the device has", IMPOSSIBLE, memory.above_device),
    Check("above_shared_memory", "more shared memory than a block has", IMPOSSIBLE, memory.above_shared_memory),
    Check("not_out_of_memory", "out of memory where more bytes ran", IMPOSSIBLE, memory.not_out_of_memory),
    Check("ratio", "printed ratio not that of the printed numbers", IMPOSSIBLE, claims.ratio_not_derivable),
    Check("summary", "summary not that of the tables", IMPOSSIBLE, claims.summary_not_derivable),
    Check("best", "best of a row is not the fastest", IMPOSSIBLE, claims.best_is_not_best),
    Check("above_model_peak", "tokens that need more than the peak", IMPOSSIBLE, rates.above_model_peak),
    Check("above_weights", "steps that read more than the bandwidth", IMPOSSIBLE, rates.above_weights_bandwidth),
    Check("below_launch", "faster than a kernel starts", IMPOSSIBLE, machine.below_launch),
    Check("above_power", "more power than the card may draw", IMPOSSIBLE, machine.above_power),
    Check("above_clock", "a clock that the card does not have", IMPOSSIBLE, machine.above_clock),
    Check("throughput_and_time", "tokens a second against time", IMPOSSIBLE, rates.throughput_and_time),
    Check("too_exact", "error below the rounding of its dtype", IMPOSSIBLE, accuracy.too_exact),
    Check("same_as_run", "numbers of another run", IMPOSSIBLE, stolen.same_as_run),
    Check("another_chip", "facts of another chip", IMPOSSIBLE, chips.another_chip),
    Check("copied", "times copied", IMPOSSIBLE, series.copied),
    Check("like_another_chip", "memory, clock or rates of another chip", DOUBTFUL, chips.like_another_chip),
    Check("too_wrong", "an error that no correct result has", DOUBTFUL, accuracy.too_wrong),
    Check("idle_energy", "energy of an idle card under load", DOUBTFUL, machine.idle_energy),
    Check("below_training", "less memory than training takes", DOUBTFUL, models.below_training),
    Check("warm_up", "samples that begin with a warm-up", DOUBTFUL, series.warm_up),
    Check("above_measured", "faster than a matrix product was there", DOUBTFUL, speed.above_measured_peak),
    Check("backward_over_forward", "backward over forward outside 1 to 6", DOUBTFUL, times.backward_over_forward),
    Check("not_the_sum", "fwd_bwd far from fwd + bwd", DOUBTFUL, times.whole_is_not_the_sum),
    Check("flat", "flat over seqlen", DOUBTFUL, times.flat_over_seqlen),
    Check("falls_with_work", "less time for more work", DOUBTFUL, times.falls_with_work),
    Check("out_of_line", "a rate that neither neighbour has", DOUBTFUL, times.out_of_line),
    Check("eager_below_kernel", "a call far below its kernels", DOUBTFUL, times.eager_below_kernel),
    Check("memory_falls", "less memory for a longer sequence", DOUBTFUL, memory.falls_with_seqlen),
    Check("far_above_need", "memory far above what it is made of", DOUBTFUL, memory.far_above_need),
    Check("thousandfold", "every time far above what the device needs", DOUBTFUL, series.thousandfold),
    Check("no_spread", "samples without spread", DOUBTFUL, series.no_spread),
    Check("within_spread", "difference within the spread", DOUBTFUL, times.win_within_spread),
    Check("noisy", "known only roughly", DOUBTFUL, times.noisy),
    Check("cut_off", "printed ratio cut off instead of rounded", NOTE, claims.ratio_cut_off),
)


def check(
    runs: Iterable[tuple[Run, Sequence[Measurement]]], known: Iterable[tuple[Run, Sequence[Measurement]]] = ()
) -> list[Finding]:
    """Return what is wrong or doubtful in the runs. The runs of one published report are checked together.

    Each run is compared with the others and with the runs that are `known`, which are not checked themselves.
    """
    runs = list(runs)
    elsewhere = stolen.Elsewhere([*runs, *known])
    together: dict[tuple[str, str], list[tuple[Run, Sequence[Measurement]]]] = {}
    for run, measurements in runs:
        whole = run.source == "published" and run.report
        together.setdefault(("report", run.report) if whole else ("run", run.run_id), []).append((run, measurements))
    return [finding for group in together.values() for finding in _check(Numbers(group, elsewhere))]


def by_rule(findings: Sequence[Finding]) -> Iterator[tuple[Check, list[Finding]]]:
    """Yield each rule that found something with its findings, in the order of CHECKS: what is impossible first."""
    for rule in CHECKS:
        if found := [finding for finding in findings if finding.rule == rule.name]:
            yield rule, found


def _check(numbers: Numbers) -> Iterable[Finding]:
    for rule in CHECKS:
        for rows, sentence in rule.look(numbers):
            ids = tuple(row.measurement_id for row in rows)
            yield Finding(rule.name, rule.weight, rows[0].run_id, ids, sentence, rows[0].origin)
