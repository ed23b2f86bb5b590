"""Receipts: one claim with what was claimed, what was measured here, under which conditions, and how to repeat it.

A claim is `NAME/NUMBER`: a claim of a published report, or a row of our own headline table (`headline/1`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from re import sub

from results.checks.chips import RUNS_ON
from results.recommend.usage import project_of
from results.records import Run
from results.render.markdown import plain
from results.reports import declared, headline, side_by_side
from results.reports.layout import ReportError
from results.reports.rendering import Runs

OURS = "headline"


def names() -> Iterator[tuple[str, str]]:
    """Yield each claim by name with its words, or the place of its figures in the report."""
    for number, row in enumerate(headline.SUMMARY, start=1):
        yield f"{OURS}/{number}", plain(" over ".join((", ".join(row.labels[:2]), row.labels[2])))
    for name in declared.names():
        for number, claim in enumerate(declared.get(name).claims, start=1):
            yield f"{name}/{number}", claim.words or f"figures at {claim.where}"


def split(claim: str) -> tuple[str, int]:
    """Return the report and the place of a claim. Raises ReportError."""
    if claim not in dict(names()):
        raise ReportError(f"There is no claim {claim!r}. `python -m results receipt` lists all of them.")
    name, _, number = claim.partition("/")
    return name, int(number) - 1


def of_headline(at: int, runs: headline.Shipped, own: Sequence[str]) -> str:
    """Return the receipt of a row of the headline table, by the runs that it is made from, and by `own` runs if any."""
    row = headline.SUMMARY[at]
    made_from = [runs.read(run_id) for process in row.processes for run_id in headline.ids_of(process)]
    found = [("made from these runs", made_from)]
    if own:
        answer = "; ".join(_means(runs, replace(row, processes=(tuple(own),))))
        found.append((f"measured {answer}", [runs.read(run_id) for run_id in own]))
    what = f"{row.labels[0]}, {plain(row.labels[1])}, over {row.labels[2]}"
    return _receipt(f"{OURS}/{at + 1}", what, "README.md of this repository", _means(runs, row), found)


def _means(runs: headline.Shipped, row: headline.Means) -> list[str]:
    cells = headline.cells(runs, row)[-len(headline.MODES) :]
    return [f"{mode}: {cell}" for mode, cell in zip(headline.MODES.values(), cells, strict=True)]


def of_report(name: str, at: int, published: Runs, runs: Runs) -> str:
    """Return the receipt of a published claim, with the answer of each run that has one."""
    report = declared.get(name)
    found, claimed = [], ""
    for each in runs or [None]:
        sections = side_by_side.sections(name, published, [each] if each else [])
        row = next(section for section in sections if section.title == "Claims").rows[at]
        claimed = row.printed[0]
        if each and row.own:
            found.append((f"measured {row.own[0]}", [each]))
    what = f"{report.title}, {report.claims[at].where}"
    names = ", ".join(f"{theirs} is {own}" for theirs, own in report.implementations.items() if theirs != own)
    return _receipt(f"{name}/{at + 1}", what, report.source, [claimed], found, f"Implementations: {names}.")


def _receipt(
    claim: str, what: str, source: str, claimed: Sequence[str], found: Sequence[tuple[str, Runs]], more: str = ""
) -> str:
    lines = [
        f"# {what}",
        f"Source: {source}",
        "",
        "## Claimed",
        *(f"- {line}" for line in claimed),
        "",
        "## Measured here",
    ]
    for answer, runs in found:
        lines.append(f"- {answer}")
        for run, _ in runs:
            lines += [f"  - {_conditions(run)}", f"    {run.command or 'its command is not recorded'}"]
    if not found:
        lines.append(
            "- no run here has the shapes of this claim; `python -m results report NAME --coverage` names them"
        )
    lines += [more] * bool(more and found)
    lines += ["", "## On your GPU", *_to_repeat([each for _, runs in found for each in runs])]
    return (
        "\n".join([*lines, f"Then: `python -m results receipt {claim} --run RUN`, with `--run` for each run."]) + "\n"
    )


def _to_repeat(runs: Runs) -> Iterator[str]:
    """Yield the commands that repeat runs on another machine, except those of uploads, and what they need there."""
    for command in dict.fromkeys(run.command for run, _ in runs if run.command and run.source != "upload"):
        yield f"`{sub(' --device [^ ]+', '', command)}`"
    peak = max((m.value for _, rows in runs for m in rows if m.metric == "peak_memory_mb" and m.value), default=None)
    if peak:
        yield f"The largest cell takes {peak / 1024:.1f} GiB of GPU memory; `runner plan` says what fits and the time."
    for name in sorted({m.implementation for _, rows in runs for m in rows}):
        least, most = RUNS_ON.get(name, ("", None))
        chip = f"compute capability {least}{' or later' * (most is None)}" if least else ""
        if needs := " and ".join(filter(None, (chip, project_of(name)[0]))):
            yield f"- {name} needs {needs}; elsewhere it is skipped with the reason."


def _conditions(run: Run) -> str:
    """Return what a run was measured with, as far as it says."""
    facts = {
        "on": run.gpu_name,
        "at": (run.created or "")[:10],
        "driver": run.driver,
        "torch": run.torch,
        "triton": run.triton,
        "protocol": run.protocol,
        "commit": (run.git_commit or "")[:8],
    }
    return f"{run.run_id}: " + ", ".join(f"{name} {fact}" for name, fact in facts.items() if fact)
