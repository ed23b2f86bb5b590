"""A Markdown report as one HTML file without network access: light and dark styles, and tables that scroll.

It reads the Markdown that this package writes: headings, paragraphs, bullets, pipe tables, bold and code.
"""

import html
import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from results.render.markdown import MARKS, cells_of

_NUMBER = re.compile(r"[-~]?\*{0,2}[\d,.]+\s*(×|x|%|k|K|ms|MB|GB|MiB|GiB)?\*{0,2}")
_SPEEDUP = re.compile(r"(?:^|\s)(\d+(?:\.\d+)?)×(?: ≈.*)?$")  # alone, or after the name of the fastest
_MAP = "head_dim "  # tables whose columns start so are colored like the heatmaps of the pages
_FULL, _DEEPEST = 3.0, 0.45  # doublings and opacity of the deepest color; text stays readable
_PRIVATE = 0xE000  # escaped marks are moved to these code points while bold and code are replaced
_ESCAPED = re.compile(rf"\\({MARKS.pattern})")
_HIDDEN = re.compile(f"[{chr(_PRIVATE)}-{chr(_PRIVATE + 127)}]")
_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def html_page(markdown: str, figures: Sequence[str] = ()) -> str:
    """Return the whole page; `figures` are HTML fragments that go below the title."""
    blocks = list(_blocks(markdown.splitlines()))
    title = next((text for text in markdown.splitlines() if text.startswith("# ")), "# Report")[2:]
    drawn = [f"<figure>{figure}</figure>" for figure in figures]
    at = 1 if blocks and blocks[0].startswith("<h1") else 0
    body = "\n".join([*blocks[:at], *drawn, *blocks[at:]])
    return _PAGE.format(title=html.escape(title), body=body)


def _blocks(lines: list[str]) -> Iterator[str]:
    for kind, found in groupby(lines, _kind):
        group = list(found)
        if kind == "table":
            yield _table(group)
        elif kind == "bullets":
            items = "".join(f"<li>{_inline(line.strip()[2:])}</li>" for line in group)
            yield f"<ul>{items}</ul>"
        elif kind == "heading":
            for marks, _, text in (line.partition(" ") for line in group):
                yield f"<h{len(marks)}>{_inline(text)}</h{len(marks)}>"
        elif kind == "text":
            yield f"<p>{'<br>'.join(_inline(line) for line in group)}</p>"


def _kind(line: str) -> str:
    bare = line.strip()
    if not bare:
        return ""
    if bare.startswith("|"):
        return "table"
    if re.match(r"#{1,6} ", line):
        return "heading"
    return "bullets" if bare.startswith("- ") else "text"


def _table(lines: list[str]) -> str:
    """Return the table. The first row is the header, the second a line of dashes."""
    rows = [*map(cells_of, lines)]
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in rows[0])
    heated = any(cell.startswith(_MAP) for cell in rows[0])
    body = "".join(f"<tr>{''.join(_cell(cell, heated=heated) for cell in row)}</tr>" for row in rows[2:])
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str, *, heated: bool) -> str:
    kinds = ["number"] if _NUMBER.fullmatch(text) else []
    found, style = _SPEEDUP.search(text) if heated else None, ""
    if found and (doublings := math.log2(max(float(found[1]), 1e-3))):
        kinds.append("faster" if doublings > 0 else "slower")
        style = f' style="--heat: {_DEEPEST * min(1.0, abs(doublings) / _FULL):.2f}"'
    named = f' class="{" ".join(kinds)}"' if kinds else ""
    return f"<td{named}{style}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    """Return bold and code as HTML and other text unchanged, without the backslashes of escaped marks."""
    hidden = _ESCAPED.sub(lambda mark: chr(_PRIVATE + ord(mark[1])), text)
    safe = html.escape(hidden, quote=False)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
    return _HIDDEN.sub(lambda mark: html.escape(chr(ord(mark[0]) - _PRIVATE), quote=False), bold)
