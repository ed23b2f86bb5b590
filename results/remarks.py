"""What to know of a comparison as a whole: its clocks, the machine as it shows in what did not change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from results.controls import is_control, speak_for_the_machine
from results.records import CASE_FIELDS, Case, Measurement, Run
from results.verdicts import BAND, Judgement

if TYPE_CHECKING:
    from results.compare import Cell

Key = tuple[Case, str | None, str | None, str | None]  # case, mode, timing, implementation

_CONTROLS = 3  # cells that can speak for the machine
_BY_CHANCE = 0.02  # of the cells; twice what two runs of the same thing should give


def remarks(
    cells: Sequence[Cell], before: dict[Key, Measurement], after: dict[Key, Measurement], first: Run, second: Run
) -> Iterable[str]:
    """Sentences, the most general first."""
    judged = [cell.judgement for cell in cells if cell.judgement]
    if judged:
        in_cycles = sum(found.clocks is not None for found in judged)
        yield (
            f"SM clocks: {in_cycles} of {len(judged)} pairs name different clocks on both sides and are compared in "
            "cycles; the others are compared in time, as measured."
        )
        if first.run_id != second.run_id:
            yield from _cards(first, second)
            for timing in dict.fromkeys(cell.timing for cell in cells if cell.judgement):
                yield _apart(timing, [cell.judgement for cell in cells if cell.timing == timing and cell.judgement])
            yield from _control(cells, first, second)
    if not before.keys() & after.keys():
        yield _why_nothing_is_shared(before, after)


def _cards(first: Run, second: Run) -> Iterable[str]:
    cards = first.gpu_uuid, second.gpu_uuid
    if first.gpu_name == second.gpu_name and all(cards) and cards[0] != cards[1]:
        yield (
            f"The runs come from two cards of the name {first.gpu_name} ({cards[0]} and {cards[1]}), whose chips draw "
            "other power and may hold other clocks."
        )


def _apart(timing: str | None, judged: Sequence[Judgement]) -> str:
    """What two runs of the same thing differ by in that timing, and whose word it is."""
    apart = [found.apart for found in judged if found.apart is not None]
    if not apart:
        which = f"{timing} times" if timing else "these times"
        return f"What two runs of the same thing differ by is not in the intervals of {which}; a third run tells."
    spread = (
        f"differ by {statistics.median(apart):.1%} (a standard deviation, in half the cells more) beyond what their "
        "rounds show, and the intervals hold it."
    )
    if timing == "eager":
        return f"Eager times move with the host: here two processes {spread}"
    return f"Kernel times move from process to process: PyTorch's own, which did not change, {spread}"


def _control(cells: Sequence[Cell], first: Run, second: Run) -> Iterable[str]:
    """PyTorch's own kernels as a control: the same version on the same GPU should be as fast as before, within the band
    and two standard errors of their mean, and be called different as seldom as chance allows."""
    if not speak_for_the_machine(first, second):
        return
    for timing in dict.fromkeys(cell.timing for cell in cells):
        controls = [cell for cell in cells if cell.timing == timing and _is_control(cell)]
        if len(controls) < _CONTROLS:
            continue
        logs = [math.log(cell.judgement.speedup) for cell in controls]
        mean, doubt = math.exp(statistics.fmean(logs)), 2 * statistics.stdev(logs) / math.sqrt(len(logs))
        different = sum(cell.outcome in ("FASTER", "SLOWER") for cell in controls)
        moved = abs(math.log(mean)) - doubt > math.log1p(BAND)
        if moved or different > max(_CONTROLS, _BY_CHANCE * len(controls)):
            yield (
                f"The machine differed: the torch_ implementations, the same torch {first.torch} in both runs, are "
                f"{mean:.3f}x in {timing or 'unsaid'} time over {len(controls)} cells, and {different} of those are "
                "called different. The other speedups have that in them too."
            )


def _is_control(cell: Cell) -> bool:
    return bool(is_control(cell.implementation) and cell.judgement and cell.judgement.speedup is not None)


def _why_nothing_is_shared(before: dict[Key, Measurement], after: dict[Key, Measurement]) -> str:
    """Which fields of the case keep the sides apart, so that a report that leaves them open is understood."""
    if not before or not after:
        return f"{'The first' if not before else 'The second'} has no latency."
    values = [{name: {getattr(key[0], name) for key in side} for name in CASE_FIELDS} for side in (before, after)]
    apart = [name for name in CASE_FIELDS if not values[0][name] & values[1][name]]
    names = [{key[1:] for key in side} for side in (before, after)]
    if apart:
        said = "; ".join(f"{name} {_some(values[0][name])} and {_some(values[1][name])}" for name in apart)
        return f"No cell is in both: {said}."
    if not names[0] & names[1]:
        return f"No cell is in both: mode, timing and implementation are {_some(names[0])} and {_some(names[1])}."
    return "No cell is in both: no case is the same in all its fields."


def _some(values: Iterable[Any]) -> str:
    texts = sorted("not said" if value is None else str(value) for value in values)
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
