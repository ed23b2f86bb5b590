"""Certificates of implementations in words and as Markdown tables.

A certificate has the largest deviations of the output and of the gradients by question (runner.validate.certificates).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from results.render.markdown import markdown_table

COMMAND = "python -m runner.validate.certificates"
FAILS = "fails:"
QUESTIONS = ("no leak", "alone", "padding", "repeat", "NaN")
EXACT = ("no leak", "NaN")  # questions that allow no deviation


def cells(found: Mapping[str, Any]) -> Iterator[tuple[str, str | dict[str, str]]]:
    """Yield each implementation with its deviations in words, by question, or the reason why it has no certificate."""
    for name, said in found.items():
        if isinstance(said, str):
            yield name, said
            continue
        words = {}
        for question in said["out"]:
            parts = [said[side][question] for side in ("out", "gradients") if question in said[side]]
            words[question] = " · ".join(f"{part:.1e}" if part else "0" for part in parts)
            if question in EXACT and not max(parts) <= 0:
                words[question] += f" {FAILS} {COMMAND} --implementations {name.partition(',')[0]}"
        yield name, words


def table(found: Mapping[str, Any]) -> str:
    """Return certificates as a table, and below it the reasons of those that have none."""
    rows = {name: words for name, words in cells(found) if not isinstance(words, str)}
    lines = [f"- `{name}`: {words}" for name, words in cells(found) if isinstance(words, str)]
    if rows:
        cells_of = [(f"`{name}`", *(words.get(asked, "—") for asked in QUESTIONS)) for name, words in rows.items()]
        lines = [markdown_table(("implementation", *QUESTIONS), cells_of), "", *lines]
    return "\n".join(lines).rstrip()


def prices(found: Iterable[Mapping[str, Any]]) -> str:
    """Return what `kernels.batch_invariant()` costs as a table."""
    rows = []
    for cost in found:
        times = cost["invariant_ms"], cost["chosen_ms"]
        rows.append((cost["call"], *(f"{1e3 * ms:.1f}" for ms in times), f"{times[0] / times[1]:.1f}×"))
    return markdown_table(("call", "batch_invariant, us", "other kernels, us", "ratio"), rows)
