"""The tuning landscape on the page Programs: the time of one call by the tile of our kernels."""

import re

import streamlit as st

from pages.ui.draw import charts, colours, text
from pages.ui.draw.charts import Chart, ReferenceLine, Series
from pages.ui.draw.titles import ChartTitle
from pages.ui.overview.my_card import ROWS
from pages.ui.shell.data import ask_slowly
from results.levels import words
from results.programs import Program
from results.recommend import program_times
from results.records import Measurement

_NUMBER = re.compile(r"(\w+)=(\d+)")


def section(program: Program, card: str, command: str) -> None:
    """Ask for a call of a program and draw its time by tile on a card, or say how to measure that."""
    if not program.tuned:
        return
    st.subheader("Tiles of our kernels")
    calls = {f"{words(call.case)} {text.MODE_WORDS[call.mode]}": call for call in program.tuned}
    name = st.selectbox("Call", [*calls], key="landscape")
    found = ask_slowly(program_times.tiles, ROWS[card], calls[name].case, calls[name].mode, calls[name].timing)
    if not found:
        st.caption(f"This call was not timed with other tiles on the {card}. This command does it on that GPU:")
        st.code(command, language=None, wrap_lines=True)
        return
    charts.show(chart(found), ChartTitle("Time by tile", (card, name), found[0].run_id), key="tiles")
    st.caption("A line is a kernel as it is. The pointer shows a tile's warps, stages and programs.")
    if failed := [f"{each.implementation}: {each.status}" for each in found if not each.value]:
        st.caption(f"Without a time: {text.plain('; '.join(failed))}.")


def chart(found: list[Measurement]) -> Chart:
    """Return the times over the tiles, query rows x keys, in a color for each kernel; lines are kernels as they are."""
    kernels: dict[str, list[tuple[str, float, str]]] = {}
    for each in found:
        kernel, _, numbers = each.implementation.partition("[")[2].removesuffix("]").partition(" ")
        tile = dict(_NUMBER.findall(numbers))
        if each.value and {"block_m", "block_n"} <= tile.keys():
            place = f"{tile['block_m']} x {tile['block_n']}"
            kernels.setdefault(kernel, []).append((place, each.value, f"{kernel} {numbers}\n{text.ms(each.value)}"))
    series = []
    for (kernel, rows), colour in zip(kernels.items(), colours.SPARE_COLOURS, strict=False):
        x, y, said = zip(*rows, strict=True)
        series.append(Series(kernel, x, y, colour, said, symbol="circle"))
    tiles = sorted(
        {row[0] for rows in kernels.values() for row in rows}, key=lambda tile: [*map(int, tile.split(" x "))]
    )
    rules = [ReferenceLine(each.value) for each in found if each.value and "[" not in each.implementation]
    return Chart(
        series, charts.categories(tiles) | charts.titled("tile: query rows x keys"), charts.titled("ms"), rules=rules
    )
