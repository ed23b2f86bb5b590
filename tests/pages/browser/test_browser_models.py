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
