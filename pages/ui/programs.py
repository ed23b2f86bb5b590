"""The parts of the page Programs: recordings and cards to choose from, the answer, its calls, and how to use it."""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from pages.ui import rules
from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.titles import ChartTitle
from pages.ui.filters.select import bound, widget
from pages.ui.overview.my_card import ROWS
from pages.ui.shell import access
from pages.ui.shell.data import ask_slowly
from results import programs
from results.capabilities import NEW_LENGTHS, record
from results.levels import level_of, words
from results.paths import REPOSITORY
from results.programs import Program, ProgramError
from results.recommend import program_times
from results.recommend.program_times import CallTimes
from results.recommend.usage import usage_of_program
from results.records import Measurement

Times = list[CallTimes | None]
_PROGRAM, _CARD, _GIVEN = "program", "program_card", "recordings"
_FIRST_CARD = "H200"  # the card with most numbers
_MOST_CALLS = 500
_NUMBER = re.compile(r"(\w+)=(\d+)")
_TIMINGS = {"kernel": "device time", "eager": "eager calls"}
_MAYBE = "modules", "scales"  # columns of recordings that have them
_COLUMNS, _OF_NEW_LENGTHS = tables.declared("programs"), tables.declared("new_lengths")


def show() -> None:
    """Draw the answer for one recording on one card, its calls, its fallbacks and the commands."""
    program, card = choose()
    asked = tuple((call.case, call.mode, call.timing, program.often(call)) for call in program.tuned[:_MOST_CALLS])
    times = ask_slowly(program_times.times, ROWS[card], asked)
    use_it(card, times)
    answer(program, card, times)
    table(program, times)
    fallbacks(program, times)
    landscape(program, card)
    if not any(found and found.relative for found in times):
        commands(program)
    new_lengths()


def choose() -> tuple[Program, str]:
    """Ask for a recording, those that the user gives before those that ship, and for a card; return both."""
    found, refused = _recordings()
    first = next(at for at, each in enumerate(found.values()) if each.tuned)
    usual = next(at for at, name in enumerate(ROWS) if _FIRST_CARD in name)
    with st.container(horizontal=True, vertical_alignment="bottom", key="program_question"):
        program = found[bound(st.selectbox, "Recorded program", _PROGRAM, [*found], first)]
        card = bound(st.selectbox, "What is your card?", _CARD, [*ROWS], usual, width=230)
    for sentence in refused:
        st.error(text.plain(sentence), icon=":material/error:")
    return program, card


def use_it(card: str, times: Times) -> None:
    """Draw what opens the two lines for a program with the rule of a card, and the form for other recordings."""
    usage, own = usage_of_program(), next((found.gpu for found in times if found and not found.relative), None)
    with st.container(horizontal=True, key="program_actions"):
        with st.popover("Use it", type="primary", icon=":material/code:", key="use_program"):
            st.code(usage.code, language="python", wrap_lines=True)
            st.caption(f"Needs {usage.needs}.")
            if own:
                rules.of_gpu(own)
            else:
                st.caption(f"No run here measured these calls on the {card}, so there is no rule to install.")
        with st.popover("Add yours", icon=":material/add:"):
            st.markdown("Record a program that uses PyTorch's attention or ours, on a CPU or a GPU:")
            st.code("python -m runner record -- my_script.py", language=None)
            if access.may_run():
                widget(_GIVEN, on_change=_take)


def answer(program: Program, card: str, times: Times) -> None:
    """Draw the attention time of a program: now, with the rule, at best, and what silent fallbacks lose."""
    known = [found for found in times if found]
    if not known:
        st.markdown(f"## Nothing comparable was measured for {text.plain(program.name)}")
        return
    assumed = sum(found.relative for found in known)
    now, ruled, best = (sum(getattr(found, name) for found in known) for name in ("now_ms", "ruled_ms", "best_ms"))
    lost = sum(_lost(found) for call, found in zip(program.tuned, times, strict=False) if call.fallback and found)
    word = "about " if assumed or not all(found.exact for found in known) else ""
    st.markdown(
        f"## On the {card} attention takes {word}{text.ms(now)} {program.span} now and {text.ms(ruled)} with the "
        f"rule: {text.ratio(now / ruled)}"
    )
    gpus = ", ".join(dict.fromkeys(found.gpu for found in known))
    below = f"assumed from {gpus}" if assumed else f"measured on {gpus}" if not word else f"scaled from {gpus}"
    facts = {"now": now, "ruled": ruled, "best": best, "lost": lost}
    tables.show_facts(messages.fact(name, text.ms(value), below) for name, value in facts.items())
    if assumed:
        _assumed(program, card, known)


def table(program: Program, times: Times) -> None:
    """Draw the calls by their share of the time, then those that nothing is known of."""
    whole = sum(found.now_ms for found in times if found)
    names = ("now_ms", "ruled_ms", "ruled", "best_ms", "best")
    rows = [
        {
            "share": found and found.now_ms / whole,
            "count": round(program.often(call), 2),
            "call": f"{level_of(call.case).short(call.case)}, {text.MODE_WORDS[call.mode]}",
            "modules": ", ".join(call.modules),
            "scales": ", ".join(f"{scale:.4g}" for scale in call.scales),
            **{name: getattr(found, name, None) for name in names},
            "standing": found and ("assumed" if found.relative else found.standing),
            "from": _source(found),
        }
        for call, found in zip(program.tuned, times, strict=False)
    ]
    if rows:
        known = {name: each for name, each in _COLUMNS.items() if name not in _MAYBE or any(x[name] for x in rows)}
        drawn = pd.DataFrame(rows, columns=[*known]).sort_values("share", ascending=False)
        tables.grid(drawn, f"The calls of {program.name} by their time", known)
        messages.download("Download the calls", "attnbench-calls", lambda: drawn, "program_csv")
    if len(program.tuned) > len(times):
        st.caption(f"The first {len(times)} of {len(program.tuned)} problems.")
    for sentence in program.left_out:
        st.caption(text.plain(sentence))


def fallbacks(program: Program, times: Times) -> None:
    """Draw the calls that PyTorch's fast backends refuse without a word, with the reason and the loss."""
    found = dict(zip(map(id, program.tuned), times, strict=False))
    lines = []
    for call in program.calls:
        if reason := call.fallback:
            known = found.get(id(call))
            cost = known and f"{text.ms(_lost(known))} {program.span} over the best"
            lost = cost or "nobody measured what that costs"
            often = messages.counted(round(program.often(call), 2), "call")
            lines.append(f"- {often}: {text.plain(reason)}: {lost}.")
    if lines:
        st.markdown("\n".join(["**Silent fallbacks**", "", *lines]))


def commands(program: Program) -> None:
    """Draw the commands that measure a program on the reader's GPU, install its rule and prove the gain."""
    both = "\n".join(command_of(verb, program) for verb in ("tune", "prove"))
    messages.terminal(both, "On your GPU: measure these calls and install their rule, then prove it.")


def command_of(verb: str, program: Program) -> str:
    """Return a command of the runner over a recording."""
    inside = program.path.is_relative_to(REPOSITORY)
    return f"python -m runner {verb} --program {program.path.relative_to(REPOSITORY) if inside else program.path.name}"


def _recordings() -> tuple[dict[str, Program], list[str]]:
    """Return the recordings by name, and why files of the user are none."""
    given: list[Program] = []
    refused = []
    for file in st.session_state.get(_GIVEN) or ():
        try:
            given.append(programs.parse(Path(file.name), file.getvalue()))
        except ProgramError as error:
            refused.append(str(error))
    return {program.name: program for program in (*given, *programs.shipped())}, refused


def _take() -> None:
    """Choose the recording that was just given."""
    names, _ = _recordings()
    if len(names) > len(programs.shipped()):
        st.session_state[_PROGRAM] = next(iter(names))


def _assumed(program: Program, card: str, known: Sequence[CallTimes]) -> None:
    """Say whose times a card that nobody measured gets, and which command replaces them."""
    gpus = text.plain(" and ".join(dict.fromkeys(found.gpu for found in known if found.relative)))
    tiles = program_times.tiles_of(ROWS[card])
    said = ""
    if tiles:
        whose = "made for its compute capability" if tiles.own else "of the nearest chip that has a file"
        family, basis = text.plain(tiles.family), tiles.basis.lower()
        said = f"There `kernels.attention` takes the tiles of {family}, {whose} ({basis}). "
    messages.say("assumed", card=card, gpus=gpus, tiles=said)
    commands(program)


def _lost(found: CallTimes) -> float:
    return 0.0 if found.best == program_times.NOW else max(0.0, found.now_ms - found.best_ms)


def _source(found: CallTimes | None) -> str:
    """Return which GPU, shape and timing the times of a call are of."""
    if found is None:
        return "nothing comparable"
    nearest = level_of(found.measured).short(found.measured)
    shape = "this shape" if found.exact else f"nearest shape {nearest}"
    scaled = "" if found.factor == 1 else f", times {found.factor:.2g}"
    start = f"assumed from {found.gpu}" if found.relative else found.gpu
    return f"{start}: {shape}{scaled}, {_TIMINGS[found.timing]}, {text.sources(found.source)}"


def new_lengths() -> None:
    """Draw what calls of lengths that were never seen cost, folded."""
    with st.expander("What a call of a new length costs", icon=":material/timer:"):
        for device, entry in record(NEW_LENGTHS).items():
            messages.say("new_lengths", **entry["environment"] | {"device": text.plain(device)})
            tables.grid(pd.DataFrame(entry["implementations"]), f"New lengths on {device}", _OF_NEW_LENGTHS)
        above = "To measure it on another device, and to fill its compile cache for a program:"
        measure = f"python -m runner shapes --record results/published/{NEW_LENGTHS}"
        messages.terminal(f"{measure}\npython -m runner warm --program FILE", above)


def landscape(program: Program, card: str) -> None:
    """Ask for a call of a program and draw its time by tile on a card, or say how to measure that."""
    if not program.tuned:
        return
    st.subheader("Tiles of our kernels")
    calls = {f"{words(call.case)} {text.MODE_WORDS[call.mode]}": call for call in program.tuned}
    name = st.selectbox("Call", [*calls], key="landscape")
    found = ask_slowly(program_times.tiles, ROWS[card], calls[name].case, calls[name].mode, calls[name].timing)
    if not found:
        said = f"This call was not timed with other tiles on the {card}. This command does it on that GPU:"
        messages.terminal(f"{command_of('tune', program)} --tiles", said)
        return
    charts.show(tiles_chart(found), ChartTitle("Time by tile", (card, name), found[0].run_id), key="tiles")
    st.caption("A line is a kernel as it is. The pointer shows a tile's warps, stages and programs.")
    if failed := [f"{each.implementation}: {each.status}" for each in found if not each.value]:
        st.caption(f"Without a time: {text.plain('; '.join(failed))}.")


def tiles_chart(found: list[Measurement]) -> charts.Chart:
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
        series.append(charts.Series(kernel, x, y, colour, said, symbol="circle"))
    tiles = sorted(
        {row[0] for rows in kernels.values() for row in rows}, key=lambda tile: [*map(int, tile.split(" x "))]
    )
    rules = [charts.ReferenceLine(each.value) for each in found if each.value and "[" not in each.implementation]
    return charts.Chart(
        series, charts.categories(tiles) | charts.titled("tile: query rows x keys"), charts.titled("ms"), rules=rules
    )
