"""Reports as data: the TOML file of a report has its words, its tables (`Grid`) and its claims (`Claim`).

- A table names its rows by `labels`, each with the fact that it says, or lists them as `rows` with their facts.
- `columns` are facts by header. `words` makes a column of remarks, `spread` one of standard deviations, and `best` one
  of best ratios. `open` names facts that are left open.
- `[defaults]` are fields of every table.
- A claim has one answer: a function of `results.reports.claims` with its arguments, or `answer`, the name of a function
  in the report's module. `parts` are answers inside of one. `[picks.NAME]` are the numbers that claims are about, and
  `[[advice]]` has the answers to what a report recommends.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from results.paths import toml_of
from results.records import Case, Measurement
from results.reports import layout
from results.reports.claims import ANSWERS, Answer, Claim, Pick
from results.reports.own import OwnNumbers

Evidence = tuple[tuple[str, ...], Callable[[Case], object]]
_HERE = Path(__file__).parent
_LENGTHS: dict[str, Callable[[int], str]] = {"plain": str, "comma": "{:,}".format}
_LENGTHS["K"] = lambda seqlen: f"{seqlen // 1024}K" if seqlen % 1024 == 0 else str(seqlen)


@dataclass(frozen=True)
class Report:
    """A published report."""

    name: str
    label: str
    title: str
    source: str
    implementations: Mapping[str, str]  # published name -> own implementation
    grids: tuple[layout.Grid, ...]
    formula_grids: tuple[layout.Grid, ...]  # the grids that a formula fills, too
    claims: tuple[Claim, ...]
    more_sections: Callable[[Sequence[Measurement], OwnNumbers], list[layout.Section]] | None = None
    evidence: tuple[Evidence, ...] = ()  # implementations and cases that fill rows of `more_sections`


def names() -> tuple[str, ...]:
    """Return the names of all reports."""
    return tuple(sorted(path.stem for path in _HERE.glob("[!_]*.toml")))


@cache
def get(name: str) -> Report:
    """Return a report by its name. Raises ReportError for an unknown name."""
    if name not in names():
        raise layout.ReportError(f"Unknown report {name!r}. Available: {', '.join(names())}.")
    said = _toml(name)
    module = importlib.import_module(f"results.reports.{name}") if (_HERE / f"{name}.py").exists() else None
    tables = [{**said.get("defaults", {}), **table} for table in said["tables"]]
    grids = [_grid(table, module) for table in tables]
    return Report(
        name=name,
        **{field: said[field] for field in ("label", "title", "source", "implementations")},
        grids=tuple(grids),
        formula_grids=tuple(grid for grid, table in zip(grids, tables, strict=True) if table.get("by_formula")),
        claims=tuple(
            Claim(each["where"], answer_of(each, picks(name), module), each.get("words", "")) for each in said["claims"]
        ),
        more_sections=getattr(module, "more_sections", None),
        evidence=getattr(module, "EVIDENCE", ()),
    )


@cache
def picks(name: str) -> dict[str, Pick]:
    """Return the numbers that claims of a report are about, by name."""
    return {pick: Pick(**fields) for pick, fields in _toml(name).get("picks", {}).items()}


@cache
def _toml(name: str) -> dict[str, Any]:
    return toml_of(__file__, f"{name}.toml")


def answer_of(said: Mapping[str, Any], known: Mapping[str, Pick], module: ModuleType | None) -> Answer:
    """Return the answer of a claim, or of a part of one."""
    if "answer" in said:
        return getattr(module, said["answer"])
    ((kind, arguments),) = ((key, value) for key, value in said.items() if key in ANSWERS)
    values = dict(arguments)
    if "pick" in values:
        values["pick"] = known[values["pick"]]
    if "picks" in values:
        values["picks"] = [known[pick] for pick in values["picks"]]
    if "parts" in values:
        values["parts"] = [_part(part, known, module) for part in values["parts"]]
    return partial(ANSWERS[kind], **values)


def _part(
    said: Mapping[str, Any], known: Mapping[str, Pick], module: ModuleType | None
) -> tuple[str, Pick | None, Answer]:
    answer = answer_of(said, known, module)
    return said.get("form", "{}"), getattr(answer, "keywords", {}).get("pick"), answer


@cache
def advice(name: str) -> dict[str, Answer]:
    """Return the answers to what a report recommends, by the beginning of its words."""
    module = importlib.import_module(f"results.reports.{name}")
    return {said["where"]: answer_of(said, picks(name), module) for said in _toml(name)["advice"]}


def _grid(table: Mapping[str, Any], module: ModuleType | None) -> layout.Grid:
    labels, rows = table.get("labels", []), {row["labels"]: _facts(row) for row in table.get("rows", [])}
    columns = {header: _column(said, module) for header, said in table["columns"].items()}
    sweep = table.get("measured_by")
    return layout.Grid(
        section=table["section"],
        header=(*(label["head"] for label in labels), *table.get("heads", ()), *columns),
        row=_reader(labels) if labels else lambda labels: rows[labels],
        name=_writer(labels) if labels else None,
        rows=tuple(rows),
        columns=columns,
        facts=_facts(table.get("facts", {})),
        own=_facts(table.get("own", {})),
        order=table.get("order", (0,)),
        measured_by=(sweep[0], sweep[1]) if sweep else None,
    )


def _facts(said: Mapping[str, Any]) -> layout.Facts:
    left = {name: value for name, value in said.items() if name not in ("labels", "open")}
    return {**left, **dict.fromkeys(said.get("open", ()))}


def _column(
    said: Mapping[str, Any], module: ModuleType | None
) -> layout.Facts | layout.Remark | layout.SpreadColumn | layout.Best:
    if "words" in said:
        return layout.Remark(getattr(module, said["words"]) if said["words"] else None)
    if "best" in said:
        return layout.Best(said["best"], {name: value for name, value in said.items() if name != "best"})
    return layout.SpreadColumn() if "spread" in said else _facts(said)


def _reader(labels: Sequence[Mapping[str, Any]]) -> Callable[[layout.Labels], layout.Facts]:
    """Return the function from the labels of a row to its facts."""

    def row(texts: layout.Labels) -> layout.Facts:
        found: dict[str, Any] = {}
        for label, text in zip(labels, texts, strict=True):
            names, separator = [label["fact"], *label.get("and", ())], label.get("by", "\n")
            for name, part in zip(names, text.split(separator), strict=True):
                found[name] = _value(name, part, label.get("words"))
        return found

    return row


def _value(fact: str, text: str, words: Mapping[str, Any] | None) -> Any:
    if words:
        return words.get(text)
    if text == "None":
        return None
    return text if fact in ("implementation", "dtype") else layout.read_seqlen(text)


def _writer(labels: Sequence[Mapping[str, Any]]) -> Callable[[Measurement], layout.Labels]:
    """Return the function from a number to the labels of its row."""

    def name(measurement: Measurement) -> layout.Labels:
        return tuple(
            label.get("by", "").join(_text(measurement, fact, label) for fact in (label["fact"], *label.get("and", ())))
            for label in labels
        )

    return name


def _text(measurement: Measurement, fact: str, label: Mapping[str, Any]) -> str:
    field = {"seqlen": "seqlen_k"}.get(fact, fact)
    value: Any = measurement.implementation if fact == "implementation" else getattr(measurement.case, field)
    if "words" in label:
        return {said: word for word, said in label["words"].items()}.get(value, "None")
    return _LENGTHS[label.get("form", "plain")](value) if fact == "seqlen" and value else str(value)
