"""Memory tables of a report, filled by formula: the memory of an implementation or a model, without a run."""

from collections.abc import Iterable, Iterator, Mapping

from results import levels
from results.implementations import facts_of
from results.levels.model_table import model_case
from results.records import Case, Measurement, Run, Status, attention_case
from results.reports.derived import enriched
from results.reports.layout import Facts, Grid, Labels
from results.reports.own import OwnNumbers, all_facts

SUFFIX = ": by formula"
_DTYPE = {"op": "float16", "model": "bfloat16"}  # our dtype, because the report does not state one


def formula_numbers(grid: Grid, rows: Iterable[Labels], implementations: Mapping[str, str]) -> OwnNumbers:
    """Return peaks by formula for the rows of a table, as numbers that fill it.

    `implementations` maps a published name to the implementation whose memory law is used.
    """
    peaks = {(m.case, m.implementation): m for labels in rows for m in _peaks(grid, labels, implementations)}
    return OwnNumbers(enriched(Run("by formula", "local"), [*peaks.values()]), implementations)


def needed_mb(facts: Facts, name: str) -> float | None:
    """Return the memory of a model with an implementation inside, in MiB; None if its memory law is not known."""
    return levels.memory_mb(_case(facts), facts_of(name).memory, facts["mode"])


def _peaks(grid: Grid, labels: Labels, implementations: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the peak of each implementation of a row."""
    for facts in all_facts(grid, labels):
        case, mode = _case(facts), facts["mode"]
        for published in (facts["implementation"], facts.get("baseline")):
            name = implementations.get(published or "")
            value = levels.memory_mb(case, facts_of(name).memory, mode) if name else None
            if value:
                yield Measurement("", case, name, "peak_memory_mb", Status.OK, mode, value=value, statistic="single")


def _case(facts: Facts) -> Case:
    """Return a complete case from facts: full mask for the operator, all layers for a model."""
    if facts["level"] == "op":
        sizes = {name: facts[name] for name in ("batch", "num_heads", "seqlen", "head_dim")}
        return attention_case(**sizes, dtype=_DTYPE["op"], causal=False)
    optimizer = "adamw_bf16" if facts["mode"] == "train" else "none"
    sizes = {"batch": facts["batch"], "seqlen": facts["seqlen"], "query_tokens": facts.get("seqlen_q")}
    return model_case(facts["subject"], dtype=_DTYPE["model"], optimizer=optimizer, compiled=True, **sizes)
