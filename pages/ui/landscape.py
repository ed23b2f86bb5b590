"""The tuning landscape on the page Programs: the time of one call by the tile of our kernels."""

import re
from dataclasses import replace

import streamlit as st

from pages.ui.draw import charts, colours, text
from pages.ui.draw.charts import Chart, ReferenceLine, Series
from pages.ui.draw.titles import ChartTitle
from pages.ui.overview.my_card import ROWS
from pages.ui.shell.data import ask_slowly
from results.levels import words
from results.programs import Program
from results.recommend import program_times
from results.recommend.program_times import TileTime

_NUMBER = re.compile(r"(\w+)=(\d+)")


def section(program: Program, card: str, command: str) -> None:
    """Ask for a call of a program and draw its time by tile on a card, or say how to measure that."""
    if not program.tuned:
        return
    st.subheader("Tiles of our kernels")
    calls = {f"{words(call.case)} {text.MODE_WORDS[call.mode]}": call for call in program.tuned}
    call = calls[st.selectbox("Call", [*calls], key="landscape")]
    found = ask_slowly(program_times.tiles, ROWS[card], call.case, call.mode, call.timing)
    if not any(each.form for each in found):
        st.caption(f"Nobody has timed this call with other tiles on the {card}. On that GPU, this does:")
        st.code(command, language=None)
        return
    title = ChartTitle("Time by tile", (card, words(call.case), text.MODE_WORDS[call.mode]), found[0].run_id)
    charts.show(chart(found), title, key="tiles")
    failed = [f"{each.name}: {each.status}" for each in found if each.ms is None]
    if failed:
        st.caption(f"Without a time: {text.plain('; '.join(failed))}.")


def chart(found: list[TileTime]) -> Chart:
    """Return the times over the tiles as rows x keys, in a color for each kernel; lines are today's tiles."""
    timed = [each for each in found if each.ms]
    kernels = list(dict.fromkeys(each.form.split()[0] for each in timed if each.form))
    series = []
    for kernel, colour in zip(kernels, colours.SPARE_COLOURS, strict=False):
        own = [each for each in timed if each.form.split()[:1] == [kernel]]
        said = [f"{each.form.replace(' ', ', ')}\n{text.ms(each.ms)}" for each in own]
        errors = [each.high - each.ms for each in own], [each.ms - each.low for each in own]
        marks = Series(kernel, [_tile(each) for each in own], [each.ms for each in own], colour, said, symbol="circle")
        series.append(marks if None in (own[0].low, own[0].high) else replace(marks, errors=errors))
    tiles = sorted({_tile(each) for each in timed if each.form}, key=lambda tile: [*map(int, tile.split(" x "))])
    rules = [ReferenceLine(each.ms) for each in timed if not each.form]
    x = charts.categories(tiles) | charts.titled("query rows x keys of a tile")
    return Chart(series, x, charts.titled("ms"), rules=rules)


def _tile(each: TileTime) -> str:
    numbers = dict(_NUMBER.findall(each.form))
    return f"{numbers.get('block_m', 0)} x {numbers.get('block_n', 0)}"
