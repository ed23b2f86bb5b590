"""The numbers of another tool's file, collected into runs and measurements together with every refused row.

A CellError inside `Collected.row` becomes a Rejection that names the line; the other rows are unaffected.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from results.files.columns import SCHEMA
from results.formats import values
from results.formats.errors import CellError, CellFault
from results.formats.upload import Column, Taken, Understanding
from results.formats.validation import check_text, with_its_samples
from results.levels import bytes_moved, flops
from results.metrics import METRICS
from results.records import CASE_SCHEMA, Case, Measurement, Run, Status
from results.schema import fault

MAX_RUNS = 100
MAX_NOTE = 500
AGREES = 1.1  # the largest accepted ratio between a printed rate and the rate derived from the time
_RATIOS = {"speedup": "latency_ms", "memory_reduction": "peak_memory_mb"}  # ratio -> the metric it divides
_RATES = {"tflops": (flops, 1e9), "gb_per_s": (bytes_moved, 1e6)}  # rate -> its work, and the work per unit and ms
_MOST_SEQUENCES = 1_000_000  # rates of larger batches are not checked: the work of a batch lists its lengths


@dataclass
class Collected(Taken):
    """Runs, measurements and faults of one upload."""

    unit: str = "line"  # the unit of row numbers: lines, or entries of a JSON document
    disagreeing: Counter[str] = field(default_factory=Counter)  # by metric: printed rates that the times contradict
    left_out: Counter[str] = field(default_factory=Counter)  # by description: rows that are left out

    def run(self, key: Hashable, *, title: str | None = "", **fields: str | None) -> str:
        """Return the id of the run with that key, and create the run at first use."""
        if key not in self.runs:
            if len(self.runs) >= MAX_RUNS:
                raise CellError(f"would need one run more than the {MAX_RUNS} that a file may have")
            number = len(self.runs) + 1
            name = ", ".join(filter(None, (self.upload.filename[:120], title)))[: values.MAX_TEXT]
            values.words(name)
            for text in fields.values():
                values.name(text or "")
            run_id = self.upload.run_id if number == 1 else f"{self.upload.run_id}-{number}"
            facts: dict[str, Any] = dict(fields)
            self.runs[key] = Run(run_id=run_id, source="upload", title=name, **facts)
        return self.runs[key].run_id

    def row(self, line: int, text: str = "") -> AbstractContextManager[None]:
        """Turn an error of a row into a rejection, and drop all numbers of that row."""
        return self.part(line, text, where=f"{self.upload.filename}, {self.unit} {line},")

    def add(self, line: int, column: str, *, case: Case, implementation: str, metric: str, **rest: Any) -> None:
        """Take one number (`value`) or failure (`status`). Raises CellError if the row has it twice."""
        origin = f"{self.unit} {line}, {column}"
        rest.setdefault("status", Status.OK)
        name = values.name(implementation)
        m = with_its_samples(Measurement(case=case, implementation=name, metric=metric, origin=origin, **rest))
        for name, rules in SCHEMA.items():
            value = getattr(case if name in CASE_SCHEMA else m, name)
            if value is not None:
                if reason := fault(rules, value):
                    raise CellFault(column, str(value), f"{name} {reason}")
                check_text(name, value)
        if reason := self.repeated(m):
            raise CellFault(column, m.printed or "", reason)
        self.keep(m, line)

    def add_rate(self, line: int, column: str, *, latency_ms: float, metric: str, value: float, **known: Any) -> None:
        """Take a printed rate, with a note if the time gives another rate by more than a tenth."""
        work_of, per_unit = _RATES[metric]
        bounded = (known["case"].batch or 0) <= _MOST_SEQUENCES
        work = work_of(known["case"], known["mode"]) if bounded else None
        derived = work and work / latency_ms / per_unit
        if derived and not 1 / AGREES <= value / derived <= AGREES:
            self.disagreeing[metric] += 1
            note = f"as printed; the time gives {derived:.4g} {METRICS[metric].unit}"
            known["note"] = f"{note}; {known['note']}" if known.get("note") else note
        self.add(line, column, metric=metric, value=value, **known)

    def collected(
        self, format: str, description: str, columns: Iterable[Column], assumptions: Sequence[str]
    ) -> Understanding:
        """Return everything collected. Raises UploadError if there is nothing to take and nothing was refused."""
        self._note_wrong_ratios()
        self.rejected.sort(key=lambda rejection: rejection.line)
        left_out = [f"{count:,} {what}" for what, count in self.left_out.items()]
        return self.understanding(
            format,
            description,
            if_empty=". Left out: ".join(["has no numbers to take", *left_out]),
            columns=tuple(columns),
            assumptions=(*assumptions, *self._disagreements()),
            left_out=tuple(f"{line}." for line in left_out),
            questions=tuple(self._questions()),
        )

    def _questions(self) -> Iterator[str]:
        used = {measurement.run_id for measurement in self.measurements}
        if not all(run.gpu_name for run in self.runs.values() if run.run_id in used):
            yield "The file does not name a GPU. Which one was it?"
        if any(m.case.subject is None for m in self.measurements):
            yield "The file names neither the model nor the batch and its lengths."

    def _note_wrong_ratios(self) -> None:
        """Add a note to each printed ratio that differs by more than a tenth from the ratio of the numbers."""
        numbers = {
            (m.run_id, m.case, m.mode, m.metric, m.implementation): m.value for m in self.measurements if m.value
        }
        for at, m in enumerate(self.measurements):
            of = _RATIOS.get(m.metric)
            pair = [numbers.get((m.run_id, m.case, m.mode, of, name)) for name in (m.baseline, m.implementation)]
            if m.value and None not in pair and not 1 / AGREES <= m.value * pair[1] / pair[0] <= AGREES:
                self.disagreeing[m.metric] += 1
                note = f"as printed; the numbers give {pair[0] / pair[1]:.4g}"
                self.measurements[at] = replace(m, note=f"{note}. {m.note}" if m.note else note)

    def _disagreements(self) -> Iterator[str]:
        for metric, count in self.disagreeing.items():
            label = METRICS[metric].label
            yield f"{count:,} printed values of {label} differ by over a tenth from what the numbers give: noted."
