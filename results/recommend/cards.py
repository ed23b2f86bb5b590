"""Every card of the GPU table with what is known of it: its own numbers, or those of its nearest relative.

The relative of a card is the measured GPU whose data sheet is closest. Its times become estimates by the ratio of the
data sheets: of the 16-bit rate where operations bound the time, of the bandwidth where bytes do.
"""

import math
from dataclasses import dataclass, replace

from results import gpus
from results.checks.chips import runs_on
from results.gpus import GPUS, DataSheet
from results.query.pairing import paired
from results.recommend import model_attention
from results.recommend.model_attention import LayerTime
from results.records import Case
from results.slice import Filters
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)
MEASURE = "python -m runner run quick"
_LEAST = 100  # latencies with dtype and mask that a relative has, so that a rule follows from it
_GENERATION = 2.0  # the weight of another major compute capability; a factor of two in a rate counts 1


@dataclass(frozen=True)
class Relative:
    """The measured GPU whose numbers stand for a card."""

    gpu: str
    compute: float  # its 16-bit rate over the card's: the card takes longer by this factor
    bandwidth: float
    able: tuple[str, ...]  # implementations measured on it that can run on the card
    unable: tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """What is known of a card of the table."""

    own: str | None  # the device of the store with most numbers that can be this card
    sources: tuple[str, ...]  # of its numbers
    numbers: int
    relative: Relative | None  # None if the card has numbers, or no GPU of its maker has


def chip_of(name: str) -> DataSheet | None:
    """Return the data sheet of a row of the table or of a device; None if the name is unknown."""
    chip = GPUS.get(name) or gpus.bounds_of(name)
    return chip if chip.known else None


def devices(store: Store, card: str) -> list[tuple[str, int, str | None]]:
    """Return the devices of the store that can be a row of the table, with their numbers and sources, most first."""
    return [row for row in store.kept(_SQL("devices")) if card in gpus.rows_named(row[0])]


def known(store: Store, card: str) -> Known:
    """Return what is known of a row of the table."""
    own = devices(store, card)
    if not own:
        return Known(None, (), 0, relative(store, card))
    sources = dict.fromkeys(source for _, _, listed in own for source in (listed or "").split(","))
    return Known(own[0][0], tuple(sources), int(sum(numbers for _, numbers, _ in own)), None)


def relative(store: Store, name: str) -> Relative | None:
    """Return the nearest measured GPU of the same maker other than the card or device itself."""
    return next(iter(relatives(store, name)), None)


def relatives(store: Store, name: str) -> list[Relative]:
    """Return the measured GPUs of the same maker other than the card or device itself, the nearest first."""
    chip = chip_of(name)
    if chip is None:
        return []
    found: dict[str, list[str]] = {}
    for gpu, implementation in store.kept(_SQL("measured", least=_LEAST)):
        found.setdefault(gpu, []).append(implementation)
    there = {gpu: of for gpu in found if gpu != name and (of := chip_of(gpu)) and _maker(of) == _maker(chip)}
    return [
        Relative(
            gpu,
            there[gpu].tensor_tflops / chip.tensor_tflops,
            _bandwidth(there[gpu], chip),
            tuple(each for each in found[gpu] if runs_on(each, chip.compute_capability)),
            tuple(each for each in found[gpu] if not runs_on(each, chip.compute_capability)),
        )
        for gpu in sorted(there, key=lambda gpu: _distance(there[gpu], chip))
    ]


def over_relative(store: Store, filters: Filters, implementation: str) -> tuple[str, list[float]] | None:
    """Return the nearest GPU with shapes of a slice, and for each its time over that of the GPU of the slice."""
    own = _times(store, filters, implementation)
    for other in relatives(store, filters.gpu or "") if own else ():
        theirs = _times(store, replace(filters, gpu=other.gpu, run=(), source=()), implementation)
        if shared := sorted(own.keys() & theirs.keys()):
            return other.gpu, [theirs[case] / own[case] for case in shared]
    return None


def _times(store: Store, filters: Filters, implementation: str) -> dict[int, float]:
    rows = (row.number for row in paired(store, filters))
    return {row.case_id: row.value for row in rows if row.implementation == implementation and row.value}


def attention_time(store: Store, name: str, case: Case, mode: str) -> LayerTime | None:
    """Return the fastest attention of a model's layer on a card or device: measured, else estimated by its relative."""
    own = name if name not in GPUS else known(store, name).own
    if own and (found := model_attention.fastest(store, own, case, mode)):
        return found
    for other in relatives(store, name):
        if found := model_attention.fastest(store, other.gpu, case, mode, other.unable):
            factor = other.bandwidth if mode == "decode" else other.compute
            return replace(found, layer_ms=found.layer_ms * factor, estimated_by=other.gpu)
    return None


def _distance(one: DataSheet, other: DataSheet) -> float:
    """Return how far two data sheets are apart, in factors of two."""
    generations = [chip.compute_capability.partition(".")[0] for chip in (one, other)]
    rates = abs(math.log2(one.tensor_tflops / other.tensor_tflops)) + abs(math.log2(_bandwidth(one, other)))
    return rates + _GENERATION * (generations[0] != generations[1])


def _bandwidth(one: DataSheet, other: DataSheet) -> float:
    return one.bandwidth_gb_per_s / other.bandwidth_gb_per_s


def _maker(chip: DataSheet) -> bool:
    return chip.compute_capability.startswith("gfx")
