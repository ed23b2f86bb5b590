"""The page Models in a real browser: the answer first, a link that keeps its question, a narrow screen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.pages.browser.serving import drawn

pytestmark = pytest.mark.browser


def test_a_link_keeps_the_question_and_its_answer(tab):
    page = drawn(tab("models?model=llama3-8b&train_seqlen=8192&serve_context=32768&card=80+GB"))
    answer = page.get_by_role("heading", name=re.compile("Llama-3 8B: training 1 × 8k takes"))
    expect(answer).to_contain_text("(fits 141 GB; with recomputed activations 60.82 GiB, which fits 80 GB); serving")
    page.get_by_text("Which card?").click()
    expect(page.get_by_role("table", name="Whether the model fits, by GPU memory")).to_contain_text("80 GB ◂")
    assert answer.bounding_box()["y"] < page.get_by_text("Which card?").bounding_box()["y"]


def test_another_model_is_another_answer_in_the_address_too(tab):
    page = drawn(tab("models?model=llama3-8b"))
    page.get_by_role("combobox", name=re.compile("^(Selected Llama-3 8B. )?Model")).click()
    page.get_by_role("option", name="Mistral 7B").click()
    expect(page.get_by_role("heading", name=re.compile("Mistral 7B"))).to_be_visible()
    expect(page).to_have_url(re.compile("model=mistral-7b"))


def test_a_narrow_screen_is_not_wider_than_it_is(tab):
    page = drawn(tab("models", viewport={"width": 390, "height": 844}))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
