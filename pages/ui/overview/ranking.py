"""The answer over a slice: the fastest implementation, its certainty, and failures."""

import html
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, colours, detail, maps, messages, tables, text, titles
from pages.ui.draw.tables import Bar, Fact
from pages.ui.overview import usage
from pages.ui.shell.data import ask, store
from results.derive import geometric_mean
from results.implementations import facts_of
from results.levels import Level
from results.query import pages
from results.query.declared import declared
from results.recommend import cards, certainty, winners
from results.render import slice
from results.render.html import html_page
from results.slice import NOT_STATED, Filters, level_in, of_mask
from results.store.database import Store

_SHOWN = 4  # number of rivals in the tooltip of a cell
_TRIED = ("ok", "unsupported", "skipped")  # statuses that do not count as failures


def headline(ranking: Sequence[dict], won: Sequence[dict], chosen: Filters) -> None:
    """Draw the answer in one sentence, the number of undecided cells, the nearest GPU, and four numbers."""
    rivals = rivals_of(ranking, chosen)
    best = best_of(rivals)
    winner = best["implementation"] if best and best["speedup"] > 1 else chosen.baseline
    said = [f"## {_sentence(ranking, best, won, chosen)}", undecided(won, "shape", "to tell the two fastest apart")]
    if best:
        following = next_best(ranking, best, chosen)
        said.append(_variation(chosen, best["speedup"] / (following["speedup"] if following else 1.0)))
    said.append(_other_gpu(str(winner), chosen))
    st.markdown("\n\n".join(filter(None, said)))  # one element of the page: each costs the browser milliseconds
    _facts(ranking, rivals, best, won, chosen)
    mask = of_mask(chosen.mask)
    usage.show(
        str(winner), level_in(chosen).name, causal=mask["causal"] is not False, window_size=mask["window_size"] or 0
    )


def winner_map(ranking: Sequence[dict], won: Sequence[dict], chosen: Filters) -> None:
    """Draw the map of winners, and a chosen cell in detail."""
    level, names = level_in(chosen), sorted({row["winner"] for row in won if not text.missing(row["winner"])})
    palette = colours.palette([*names, *(row["implementation"] for row in ranking)])
    alt = f"Fastest implementation by {level.columns.label} and {level.rows.label}"
    title = titles.of_slice(alt, chosen, ask(pages.provenance, chosen)["run_id"])
    with detail.around(chosen, won):
        maps.show(level, won, maps.winners(palette, names), "winner_map", alt, selectable=True, title=title)
        messages.slice_caption(
            chosen,
            rows=len(won),
            statistic=text.statistic((row["statistic"] for row in ranking), (row["n"] for row in won)),
            note="The line below a name is the time of the next best, relative to the fastest.",
        )


def _other_gpu(name: str, chosen: Filters) -> str:
    """Say how the nearest GPU compares on the same shapes, with a link to all of them; empty if it has none."""
    found = ask(cards.over_relative, chosen, name) if chosen.gpu and chosen.timing else None
    if found is None:
        return ""
    other, ratios = found
    short = text.without_maker([chosen.gpu, other])
    lead = text.ratio(geometric_mean(ratios))
    link = urlencode({"of": "GPUs", "gpus": [chosen.gpu, other], "gpu_implementation": name}, doseq=True)
    return (
        f"{text.plain(name)} on {text.plain(short[chosen.gpu])} is **{lead}** as fast as on {text.plain(short[other])} "
        f"({text.span(min(ratios), max(ratios))}): [{messages.counted(len(ratios), 'shared shape')}](compare?{link})"
    )


def _variation(chosen: Filters, lead: float) -> str:
    """Say that a processor's times vary more between runs than the fastest leads; GPUs are judged by their samples."""
    factor = ask(certainty.variation, chosen.gpu) if chosen.gpu else None
    if not factor or factor <= lead:
        return ""
    varies = f"Between runs on this processor the same times vary by {text.ratio(factor)}, more than this lead."
    return f":orange-badge[:material/help: not certain] {varies}"


def undecided(drawn: Sequence[dict], noun: str, too_noisy: str) -> str:
    """Count the cells of a map that are too noisy to decide, or impossible, as Markdown; empty if there are none."""
    count = sum(row["mark"] == cells.DOUBT for row in drawn)
    badge = f":orange-badge[:material/help: {count} of {messages.counted(len(drawn), noun)} undecided]"
    return f"{badge} Too noisy {too_noisy}, or impossible: [findings](findings)" * bool(count)


def about(chosen: Filters, drawn: Sequence[dict]) -> str:
    """Return the subject of an answer: the GPU, and in parentheses dtype, mask, direction and shape."""
    level = level_in(chosen)
    mode = text.MODE_WORDS.get(chosen.mode or "", chosen.mode) if len(level.modes) > 1 else None
    there = {cells.dtype_name(None if text.missing(row["dtype"]) else row["dtype"]) for row in drawn}
    mask = "mask not stated" if chosen.mask == NOT_STATED else chosen.mask
    parts = (", ".join(sorted(there)), mask, mode, chosen.shape)
    gpu = "a GPU that is not stated" if chosen.gpu == NOT_STATED else text.plain(chosen.gpu)
    return f"On {gpu} ({', '.join(text.plain(part) for part in parts if part)})"


def _sentence(ranking: Sequence[dict], best: dict | None, won: Sequence[dict], chosen: Filters) -> str:
    """Return the answer with its subject: GPU, dtype, mask, direction and shape."""
    baseline, of = text.plain(chosen.baseline), about(chosen, won)
    if best is None:
        return f"{of} {_most_wins(won)}; nothing can be compared with {baseline}"
    over = f"{text.ratio(best['speedup'])} {baseline}"
    following = next_best(ranking, best, chosen) if best["speedup"] > 1 else None
    if following and following["implementation"] == chosen.baseline:
        over += ", the next best,"
    elif following:
        lead = text.ratio(best["speedup"] / following["speedup"])
        over = f"{lead} {text.plain(following['implementation'])}, the next best, and {over}"
    few = next((row for row in ranking if not row["precision"] and (row["speedup"] or 0) > best["speedup"]), None)
    few = None if few and few["implementation"] == chosen.baseline else few
    verb = "leads those measured in most shapes" if few else _verb(best, won)
    answer = (
        f"{of} {text.plain(best['implementation'])} {verb}: {over} on average over "
        f"{messages.counted(best['compared'], 'shape')}"
    )
    if few:
        shapes = messages.counted(few["compared"], "shape")
        answer += f" ({text.plain(few['implementation'])} has {text.ratio(few['speedup'])}, but only over {shapes})"
    return answer


def _verb(best: dict, won: Sequence[dict]) -> str:
    """Say that an implementation is the fastest only if it wins a shape with certainty."""
    if best["speedup"] <= 1:
        return "comes closest"
    marks = [row["mark"] for row in won if row["winner"] == best["implementation"]]
    return "is the fastest" if "" in marks or not marks else "is ahead, but in no shape with certainty"


def next_best(ranking: Sequence[dict], best: dict, chosen: Filters) -> dict | None:
    """Return the best comparable implementation other than `best`; the baseline is one of them."""
    baseline = [row for row in ranking if row["implementation"] == chosen.baseline and row["speedup"]]
    others = [row for row in comparable(rivals_of(ranking, chosen)) if row is not best]
    return max([*others, *baseline], key=lambda row: row["speedup"], default=None)


def _most_wins(won: Sequence[dict]) -> str:
    """Name the implementation that is fastest in most shapes, for a slice without speedups."""
    wins = Counter(row["winner"] for row in won if not text.missing(row["winner"])).most_common(1)
    if not wins:
        return "nothing has a time"
    name, count = wins[0]
    return f"{text.plain(name)} is the fastest in {count} of {messages.counted(len(won), 'shape')}"


def _facts(
    ranking: Sequence[dict], rivals: Sequence[dict], best: dict | None, won: Sequence[dict], chosen: Filters
) -> None:
    compared, cases = (_sum(rivals, name) for name in ("compared", "cases"))
    count = messages.counted(len(rivals), "implementation")
    pairs = messages.fact("pairs", f"{compared} of {cases}", count, baseline=chosen.baseline)
    of_best = () if best is None else _of_best(best, won, next_best(ranking, best, chosen), chosen)
    tables.show_facts((*of_best, pairs, _failed(ranking)))


def _of_best(best: dict, won: Sequence[dict], following: dict | None, chosen: Filters) -> tuple[Fact, Fact]:
    """Return the lead of the fastest implementation over the next best, and the number of shapes it wins."""
    name = best["implementation"]
    marks = Counter(row["mark"] for row in won if row["winner"] == name)
    notes = {
        "close": marks[cells.TIE],
        "not certain": marks[cells.NOT_CERTAIN],
        "undecided": marks[cells.DOUBT],
        "tied with another winner": sum(name in row["ties"].split(", ") for row in won),
    }
    rival: dict[str, Any] = (
        following if following and best["speedup"] > 1 else {"speedup": 1.0, "implementation": chosen.baseline}
    )
    over = "" if rival["implementation"] == chosen.baseline else f"{text.ratio(best['speedup'])} {chosen.baseline}, "
    lead = text.ratio(best["speedup"] / rival["speedup"])
    won_by = f"{marks['']} of {messages.counted(len(won), 'shape')}"
    range = f"{over}range {text.span(best['lowest'], best['highest'])}"
    more = ", ".join(f"{count} more {words}" for words, count in notes.items() if count)
    over_rival = messages.fact("over", lead, range, rival=text.short(rival["implementation"]))
    return over_rival, messages.fact("fastest_in", won_by, more)


def _failed(ranking: Sequence[dict]) -> Fact:
    kinds = {name: _sum(ranking, name) for name in text.STATUS_WORDS if name in ranking[0]}
    failed = {name: count for name, count in kinds.items() if name not in _TRIED}
    others = failure_words({name: count for name, count in kinds.items() if name not in failed})
    words = ", ".join(filter(None, (failure_words(failed), others, _untried(ranking)))) or "none"
    return messages.fact("failed", str(sum(failed.values())), words)


def judged(store: Store, chosen: Filters) -> list[dict]:
    """Return winners with the words of the map; the tooltips name the rivals."""
    won = cells.winner_cells(level_in(chosen), winners.winners(store, chosen)).to_dict("records")
    for row in won:
        row["hover"] += "".join(f"<br>{html.escape(rival)}" for rival in list(row["rivals"])[:_SHOWN])
    return won


def winners_csv(level: Level, won: Sequence[dict]) -> pd.DataFrame:
    """Return a row for each shape and implementation: the winner with its numbers, then each rival's ratio."""
    place = cells.place_columns(level)
    rows = []
    for row in won:
        at = {name: row[name] for name in place}
        numbers = {name: row[name] for name in ("latency_ms", "p20", "p80", "n", "speedup", "cases")}
        if not text.missing(row["winner"]):
            winner = {"implementation": row["winner"], "ratio": 1.0, "standing": "fastest"}
            rows += [at | winner | numbers, *(at | dict(other) for other in row["others"])]
        rows += [
            at | dict(zip(("implementation", "standing"), each.rsplit(" ", 1), strict=True)) for each in row["failed"]
        ]
    return pd.DataFrame(rows)


def winners_table(level: Level, won: Sequence[dict]) -> None:
    """Draw the winner of every shape as a table."""
    names = [*cells.place_columns(level), "winner", "latency_ms", "speedup", "next", "margin", "standing", "failed"]
    shown = pd.DataFrame(won)[names].assign(failed=[", ".join(row["failed"]) for row in won])
    config = cells.NUMBERS | cells.axis_columns(level) | cells.WINNERS
    tables.grid(shown, "Fastest implementation of every shape", config)


def view_downloads(chosen: Filters) -> None:
    """Offer the slice for reading, as Markdown and as one HTML file, as `python -m results render` writes it."""
    help, icon = messages.SAID["view_files"]["text"], ":material/article:"

    def made(form: Callable[[str], str]) -> str:
        return form(slice.render(store(), chosen))

    for label, ending, form in (("Markdown", "md", str), ("HTML", "html", html_page)):
        name, key = f"attention.{ending}", f"view_{ending}"
        messages.offer(f"View as {label}", name, partial(made, form), key, icon=icon, help=help)


def rivals_of(ranking: Sequence[dict], chosen: Filters) -> list[dict]:
    """Return all but the baseline, the best first."""
    return [row for row in ranking if row["implementation"] != chosen.baseline]


def best_of(rivals: Sequence[dict]) -> dict | None:
    """Return the implementation with the highest mean speedup among comparable ones, if there is one."""
    return next(iter(comparable(rivals)), None)


def comparable(rivals: Sequence[dict]) -> list[dict]:
    """Return the rows with comparable means, best first: nearly all shapes, and the same precision."""
    enough = max(1, 0.9 * max((row["compared"] for row in rivals), default=0))
    return [row for row in rivals if not row["precision"] and row["compared"] >= enough]


def ranking_table(ranking: Sequence[dict], peaks: Mapping[str, float], chosen: Filters) -> None:
    """Draw a row for each implementation: mean speedup, coverage, failures, longest sequence, and memory.

    A mean that is not comparable is hatched.
    """
    said = ask(declared, level_in(chosen).name)
    palette = colours.palette([row["implementation"] for row in ranking])
    compared = {row["implementation"] for row in comparable(ranking)}
    axis = tables.linear_axis(row["speedup"] for row in ranking)
    rows = [
        {
            "implementation": row["implementation"],
            "marked": "own" if facts_of(row["implementation"], said).family == "own" else "",
            "precision": reduced(row["precision"]),
            "bar": _bar(row, palette, row["implementation"] not in compared),
            "range": None if text.missing(row["lowest"]) else text.span(row["lowest"], row["highest"]),
            "shapes": f"{row['compared']} of {row['cases']}",
            "failures": ", ".join(filter(None, (failure_words(row), _untried([row])))) or None,
            "longest": row["longest"],
            "peak_memory_mb": peaks.get(row["implementation"]),
        }
        for row in ranking
    ]
    columns = tables.declared("ranking", {"bar": axis}, baseline=chosen.baseline)
    note = "Hatched: a mean over fewer shapes or in another precision. It does not compare with the others."
    note *= any(row["bar"] and row["bar"].hatched for row in rows)
    tables.show_table(rows, columns, "Every implementation with its speedup, coverage, failures and memory", note)


def _bar(row: dict, palette: dict[str, str], hatched: bool) -> Bar | None:
    if text.missing(row["speedup"]):
        return None
    return Bar(row["speedup"], text.ratio(row["speedup"]), palette[row["implementation"]], hatched=hatched)


def reduced(precision: str | None) -> str | None:
    """Name the precision of an implementation that computes in a lower precision than its dtype."""
    return f"{precision.upper()}, reduced" if precision else None


def failure_words(counts: Mapping[str, int]) -> str:
    """Write failures by kind, such as OOM 3, unsupported 2; empty if nothing failed."""
    names = [name for name in text.STATUS_WORDS if name not in ("ok", None) and name in counts]
    return ", ".join(f"{text.status(name)} {counts[name]}" for name in names if counts[name] > 0)


def _untried(rows: Sequence[dict]) -> str:
    """Write the number of untried shapes; empty if there are none."""
    count = sum(row["cases"] - row["measured"] - row["failures"] - row["skipped"] for row in rows)
    return f"{text.status(None)} {count}" if count else ""


def _sum(rows: Sequence[dict], name: str) -> int:
    return sum(row[name] for row in rows)
