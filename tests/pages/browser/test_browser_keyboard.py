"""The keyboard alone: from a chip into its choices and back."""

import pytest
from playwright.sync_api import expect

from tests.pages.browser.serving import drawn

pytestmark = pytest.mark.browser


def test_the_tab_key_goes_into_the_popover_that_a_button_opened_and_escape_back(tab):
    page = drawn(tab())
    chip = page.locator(".st-key-chip_mode button").first
    chip.press("Enter")
    expect(page.get_by_test_id("stPopoverBody").get_by_role("radio")).to_have_count(3)
    chip.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name="causal, backward")).to_be_visible()
    page.keyboard.press("Escape")
    expect(chip).to_be_focused()
