"""I train and serve a model: which attention, how fast, how much memory, does it fit?"""

from __future__ import annotations

import streamlit as st

from pages.ui.models import answer, calculator, measured
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.query import models


def show() -> None:
    """Draw the answer in one place, then the calculator's tables, then what runs measured of the model."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="model_question"):
        question = calculator.choose(ask(models.subjects))
        gpu = answer.choose_gpu()
        found = measured.choose(str(question.training.subject))
    answer.show(question, gpu, found)
    st.subheader("Which card?")
    calculator.cards_table(question)
    st.subheader("Which attention fits more?")
    calculator.attentions_table(question)
    st.subheader("What the memory is made of")
    calculator.parts_chart(question)
    calculator.formulas(question)
    if found is None:
        measured.nothing_here(question)
        return
    measured.generation(found)
    measured.prefill(found)
    measured.training(found)
    measured.memory(found, question)
    measured.every_number(found)


layout.header("models")
page_body.show(show)
