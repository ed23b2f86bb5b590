"""Titles and file names of charts, maps and tables: quantity, GPU, slice, baseline, runs and date."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap

import pandas as pd

from pages.ui.draw import text
from pages.ui.shell.data import ask
from results.query import pages
from results.slice import Filters

_COLUMNS = ("gpu", "workload", "mask", "mode", "timing", "shape", "baseline")
_WIDTH = 62  # characters of a line that half a page holds
_NARROW = 36  # characters of a bold line next to the buttons on a phone
_LONGEST_NAME = 140  # characters of a file name, without its ending
_MOST_RUNS = 2  # a title names up to so many runs and counts more


@dataclass(frozen=True)
class ChartTitle:
    """The words that a chart, its PNG and the file of its numbers carry."""

    what: str  # quantity and axis, as plain text
    about: tuple[str, ...] = ()  # GPU, slice, baseline
    source: str = ""  # runs and date

    @property
    def lines(self) -> list[str]:
        """Return the lines below the first one, none wider than half a page holds."""
        found = [""]
        for part in (*self.about, *([self.source] if self.source else [])):
            joined = f"{found[-1]} · {part}" if found[-1] else part
            if len(joined) > _WIDTH and found[-1]:
                found.append(part)
            else:
                found[-1] = joined
        return [line for line in found if line]

    @property
    def names(self) -> list[str]:
        """Return the first words in lines that leave room for a chart's buttons on a phone."""
        return wrap(self.what, _NARROW) or [""]

    @property
    def layout(self) -> dict:
        """Return the title for Plotly, at the top left of the picture."""
        below = "".join(
            f"<br><span style='font-size:11px;font-weight:400'>{html.escape(line)}</span>" for line in self.lines
        )
        place = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
        name = "<br>".join(map(html.escape, self.names))
        words = {"text": f"<b>{name}</b>{below}", "font": {"size": 14}}
        return words | place | {"pad": {"t": 20, "l": 4}}

    @property
    def height(self) -> int:
        """Return the pixels that the title takes."""
        return 16 + 19 * (len(self.names) + len(self.lines))  # 1.3 times the font size of the title, for every line

    @property
    def file_name(self) -> str:
        """Return the name of a file with these words, without its ending."""
        what, source = _file_words(("attnbench", self.what, *self.about)), _file_words((self.source,))
        kept = what[: max(_LONGEST_NAME - len(source) - 1, _LONGEST_NAME // 2)].rstrip("-.")
        return f"{kept}-{source}"[:_LONGEST_NAME].strip("-.")


def of_slice(
    what: str, chosen: Filters, runs: Iterable[object] = (), *, more: Iterable[str] = (), versus: bool = False
) -> ChartTitle:
    """Return the title of a chart of a slice with numbers of these runs.

    `more` are choices of the page beyond the filters; `versus` adds the baseline.
    """
    timing = [text.TIMED[chosen.timing]] if chosen.timing else []
    said = [*text.slice_parts(chosen), *timing, *more]
    said = [part for part in said if not what.endswith(f", {part}")]  # the quantity already names the dtype
    over = [f"over {chosen.baseline}"] if versus and chosen.baseline else []
    return ChartTitle(what, tuple(dict.fromkeys((*said, *over))), of_runs(runs))


def with_slice(chosen: Filters, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the slice in its first columns, so that its file identifies the slice."""
    said = {name: getattr(chosen, name) for name in _COLUMNS if name not in table}
    return pd.concat([pd.DataFrame(said, index=table.index), table], axis="columns")


def of_runs(runs: Iterable[object]) -> str:
    """Return the runs, or their number if they are many, and their dates."""
    names = sorted({str(run) for run in runs if not text.missing(run)})
    known = ask(pages.run_dates)
    dates = sorted({known[name] for name in names if known.get(name)})
    when = " to ".join(dict.fromkeys((*dates[:1], *dates[-1:])))
    which = ", ".join(names) if len(names) <= _MOST_RUNS else f"{len(names)} runs"
    return ", ".join(part for part in (which, when) if part)


def _file_words(parts: Iterable[str]) -> str:
    return re.sub(r"[^a-z0-9_.]+", "-", "-".join(parts).lower().replace("%", " percent ")).strip("-.")
