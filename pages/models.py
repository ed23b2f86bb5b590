"""I train and serve a model: which attention, how fast, how much memory, does it fit?"""

import streamlit as st

from pages.ui.draw import messages
from pages.ui.models import answer, calculator, measured
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import ask
from results.query import models
from results.recommend import model_attention


def show() -> None:
    """Draw the answer in one place, then the calculator's tables, then what runs measured of the model."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="model_question"):
        gpu = answer.choose_gpu(ask(model_attention.gpus))
        question = calculator.choose(ask(models.subjects), gpu)
        found = measured.choose(str(question.training.subject), gpu)
    answer.show(question, gpu, found)
    with st.expander("Which card?", icon=":material/developer_board:", key="model_cards"):
        calculator.cards_table(question)
    with st.expander("Which attention fits more?", icon=":material/table_rows:", key="model_attentions"):
        calculator.attentions_table(question)
    calculator.formulas(question)
    if found is None:
        measured.nothing_here(question)
        return
    measured.generation(found)
    measured.prefill(found)
    measured.training(found)
    measured.memory(found, question)
    messages.folded("Every number", "every_number", lambda: measured.numbers(found))


layout.header("models")
page_body.show(show)
