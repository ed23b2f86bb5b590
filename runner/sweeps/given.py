"""Sweeps over individual cases, such as those of an uploaded table; given.toml declares fixed sets."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from results.records import Case, Measurement, attention_case, decode_case
from runner.sweeps import decode, op
from runner.sweeps.grid import GridAxis, Sweep, SweepError, SweepFile

MAX_CASES = 2000
# By level the sweeps that supply implementations and modes, and complete a case.
KINDS: dict[str, type[op.OpSweep | decode.DecodeSweep]] = {"op": op.OpSweep, "decode": decode.DecodeSweep}
_NEEDED = ("batch", "num_heads", "seqlen_q", "seqlen_k", "head_dim", "dtype", "causal")
_LARGEST = {"batch": 65_536, "num_heads": 1024, "seqlen_q": 1_048_576, "seqlen_k": 1_048_576, "head_dim": 1024}


@dataclass(frozen=True, kw_only=True)
class GivenSweep(Sweep):
    """Individual cases of one level, without axes."""

    LEVEL: ClassVar[str] = ""  # `of_level` holds the level
    AXES: ClassVar[tuple[GridAxis, ...]] = ()
    FOLDED: ClassVar[str] = ""
    FOLDED_OF_A_CELL: ClassVar[str] = ""

    of_level: str
    given: tuple[Case, ...]

    def __post_init__(self) -> None:
        # The record of a run holds the cases as dicts, and a declaration their sizes.
        cases = tuple(_case_of(case) if isinstance(case, dict) else case for case in self.given)
        object.__setattr__(self, "given", cases)

    @property
    def level(self) -> str:
        """Return the level of its cases."""
        return self.of_level

    def _cases(self) -> Iterator[Case]:
        yield from self.given


def _case_of(said: dict[str, Any]) -> Case:
    if "level" in said:
        return Case(**said)
    return (decode_case if "context" in said else attention_case)(**{"dtype": "bfloat16", **said})


SWEEPS: tuple[GivenSweep, ...] = SweepFile(__file__).sweeps(GivenSweep)


def sweep_of(run_id: str, measurements: Iterable[Measurement]) -> tuple[GivenSweep, list[str]]:
    """Return the sweep that measures the cases of a run, and sentences on the cases that cannot be measured.

    If there are several levels, the one with most cases is used. Raises SweepError if no case can be measured.
    """
    cases: dict[str, dict[Case, None]] = {}
    modes: dict[str, dict[str, None]] = {}
    left: Counter[str] = Counter()
    for case, mode in dict.fromkeys((m.case, m.mode) for m in measurements if m.metric in ("latency_ms", "tflops")):
        found = completed(case)
        if isinstance(found, str):
            left[found] += 1
            continue
        cases.setdefault(found.level or "op", {})[found] = None
        modes.setdefault(found.level or "op", {})[mode or ""] = None
    if not cases:
        raise SweepError(" ".join([f"No case of run {run_id!r} can be measured here.", *_sentences(left)]))
    level = max(cases, key=lambda name: len(cases[name]))
    left.update(
        {f"cases of level {name}, which are another sweep": len(cases[name]) for name in cases if name != level}
    )
    usual: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(KINDS[level])}
    given = list(cases[level])
    if len(given) > MAX_CASES:
        left[f"cases beyond the first {MAX_CASES:,}"] = len(given) - MAX_CASES
    sweep = GivenSweep(
        name="given",
        description=f"The cases of run {run_id}",
        of_level=level,
        given=tuple(sorted(given[:MAX_CASES], key=lambda case: (case.seqlen_k or 0, case.batch or 0))),
        dtype=tuple(dict.fromkeys(case.dtype for case in given if case.dtype)),
        implementations=tuple(dict.fromkeys((*usual["implementations"], *KINDS[level].PEERS))),
        modes=tuple(mode for mode in usual["modes"] if mode in modes[level]) or usual["modes"][:1],
    )
    return sweep, _sentences(left)


def completed(case: Case) -> Case | str:
    """Return the case with unstated fields filled in, or why it cannot be measured."""
    if case.level not in KINDS or case.subject != "attention" or case.latent_dim:
        return f"cases of {case.subject or 'nothing said'}, level {case.level or 'not stated'}"
    if missing := unstated(case):
        return f"cases that do not state {', '.join(missing)}"
    if any(getattr(case, name) > most for name, most in _LARGEST.items()):
        return "cases of a size that no device holds"
    sizes: dict[str, Any] = {name: getattr(case, name) for name in ("batch", "num_heads", "head_dim", "dtype")} | {
        "num_kv_heads": case.num_kv_heads or case.num_heads,
        "window_size": case.window_size or 0,
    }
    return KINDS[case.level].completed(case, sizes)


def unstated(case: Case) -> list[str]:
    """Return the fields that a case does not state although measuring needs them."""
    return [name for name in _NEEDED if getattr(case, name) is None]


def _sentences(left: Counter[str]) -> list[str]:
    return [f"{count:,} {what}." for what, count in left.items()]
