"""The reader's card: what is known of it, or of its nearest relative, and the command that measures it."""

from dataclasses import replace
from typing import Any

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.filters import chips
from pages.ui.shell import address
from pages.ui.shell.data import ask
from results.gpus import GPUS, title
from results.recommend import cards
from results.recommend.cards import Relative
from results.slice import Filters

ROWS = {title(row): row for row in GPUS}
_KEY = "my_card"
_WORDS = "What is your card?"


def enter() -> None:
    """Let a link that names a card but no GPU open with the numbers of the card or its relative."""
    card = address.named(_KEY)
    if card in ROWS and "gpu" not in st.query_params:
        st.session_state.update(_filters(card))


def choose(chosen: Filters) -> None:
    """Ask for the card; another GPU in the filters clears it."""
    card = st.session_state.get(_KEY)
    if card and _filters(card).get("gpu", chosen.gpu) != chosen.gpu:
        st.session_state[_KEY] = None
    address.check("Card", _KEY, [*ROWS])
    linked = address.named(_KEY)
    with st.popover((linked if linked in ROWS else st.session_state.get(_KEY)) or _WORDS, key="card"):
        st.pills(_WORDS, [*ROWS], key=_KEY, bind="query-params", on_change=_take, wrap=True)


def show() -> None:
    """Say what is known of the chosen card."""
    card = st.session_state.get(_KEY)
    if not card:
        return
    found, chip = ask(cards.known, ROWS[card]), GPUS[ROWS[card]]
    sheet = f"{chip.memory_gb:g} GB, {chip.tensor_tflops:g} TFLOP/s in 16 bits, {chip.bandwidth_gb_per_s:g} GB/s"
    if found.own:
        said = f"{found.numbers:,} numbers of {text.plain(found.own)}. {messages.source_badges([*found.sources])}"
    elif found.relative:
        other = found.relative
        unable = f" Left out, as they cannot run on it: {', '.join(other.unable)}." * bool(other.unable)
        times = {"compute": text.ratio(other.compute), "bandwidth": text.ratio(other.bandwidth)}
        words = messages.SAID["of_relative"]["text"]
        said = words.format(card=card, gpu=text.plain(other.gpu), unable=text.plain(unable), **times)
    else:
        said = "not measured, and no GPU of its maker was. Nothing can be estimated."
    with st.container(border=True, key="my_card_answer", gap="small"):
        st.markdown(f"**{card}** ({sheet}): {said}")
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"Measure it there: `{cards.MEASURE}`", width="content")
            model_card = found.own or ROWS[card]
            messages.link("models", f"Models on the {card}", "model_training", kernels_of=model_card)
            messages.link("programs", f"Programs on the {card}", "terminal", program_card=card)


def estimate_of(chosen: Filters) -> tuple[str, Relative] | None:
    """Return the chosen card, if it was not measured, and the relative whose times it is estimated by."""
    card = st.session_state.get(_KEY)
    other = card and ask(cards.known, ROWS[card]).relative
    return (card, other) if other and other.gpu == chosen.gpu else None


def stand_in(chosen: Filters) -> tuple[Filters, Relative] | None:
    """Return the slice of the nearest relative, for a GPU whose own numbers do not answer, and say so."""
    other = ask(cards.relative, chosen.gpu) if chosen.gpu else None
    if other is None:
        return None
    messages.say("stand_in", gpu=text.plain(chosen.gpu), other=text.plain(other.gpu), command=cards.MEASURE)
    able = other.able if other.unable else ()
    return replace(chosen, gpu=other.gpu, timing="kernel", implementation=able, source=(), run=()), other


def _take() -> None:
    """Set the filters to the numbers of the card that was chosen."""
    if card := st.session_state[_KEY]:
        chips.take(**_filters(card))


def _filters(card: str) -> dict[str, Any]:
    """Return the GPU whose numbers answer for a card, and the implementations that can run on it."""
    found = ask(cards.known, ROWS[card])
    if found.own or found.relative is None:
        return {"gpu": found.own, "implementation": []} if found.own else {}
    return {"gpu": found.relative.gpu, "implementation": [*found.relative.able] if found.relative.unable else []}
