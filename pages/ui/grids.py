"""Cells laid out by seqlen (down) and head_dim (across), and what to say where there is no number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pages.ui import words


class Grid:
    """Rows by their place; `shown` is missing of a row that has no number to show."""

    def __init__(self, cells: Iterable[dict], seqlens: list[int | None], head_dims: list[int | None]) -> None:
        self.seqlens, self.head_dims = seqlens, head_dims
        self.x, self.y = [words.size(n) if n is None else str(n) for n in head_dims], [words.size(n) for n in seqlens]
        self.rows = {(_whole(row["seqlen"]), _whole(row["head_dim"])): row for row in cells}

    def values(self, needed: str, value: Callable[[dict], object], otherwise: object) -> list[list]:
        """`value(row)` of each cell that has the needed column, something else elsewhere."""

        def of(row: dict | None) -> object:
            return otherwise if row is None or words.missing(row[needed]) else value(row)

        return [[of(row) for row in line] for line in self.lines()]

    @staticmethod
    def known(row: dict | None) -> bool:
        """Whether the cell has a number to show."""
        return row is not None and not words.missing(row.get("shown"))

    def places(self) -> Iterator[tuple[str, str, dict | None]]:
        """Every cell: its two labels and its row."""
        for y, line in zip(self.y, self.lines(), strict=True):
            for x, row in zip(self.x, line, strict=True):
                yield x, y, row

    def lines(self) -> list[list[dict | None]]:
        """The rows as they lie on the page."""
        return [[self.rows.get((s, d)) for d in self.head_dims] for s in self.seqlens]


def is_empty(row: dict | None) -> bool:
    """Whether nothing was measured there, which is not a failure."""
    return row is None or words.missing(row["status"])


def failure(row: dict | None) -> str:
    """Why there is no number, in a word or two."""
    return "not measured" if row is None else row.get("failure") or words.status(row.get("status"))


def _whole(number: object) -> int | None:
    return None if words.missing(number) else int(number)
