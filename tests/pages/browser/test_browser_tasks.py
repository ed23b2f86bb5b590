"""What a newcomer comes for, each from the first page: how many clicks it takes, and that the answer is in view."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.pages.browser.serving import Server, drawn, settled, visit

pytestmark = pytest.mark.browser
MOST_CLICKS = 4


@dataclass(frozen=True)
class Task:
    """A question, the clicks from the first page to its answer (role and accessible name), and the answer."""

    question: str
    clicks: list[list[str]]
    role: str  # of the answer; "text": any
    answer: str  # a regular expression: the name of what is then in view, or its text


TASKS = [
    Task(**task) for task in tomllib.loads(Path(__file__).with_name("tasks.toml").read_text(encoding="utf-8"))["tasks"]
]


@pytest.fixture(scope="module")
def reader(chrome: Browser, server: Server) -> Iterator[Page]:
    """One tab for all tasks."""
    page = visit(chrome, server.url)
    assert page.get_by_test_id("stSidebarNavLink").count() <= 8
    yield page
    page.context.close()


@pytest.fixture(scope="module")
def before() -> list[tuple[str, str]]:
    """The clicks of the tasks since the tab opened the first page; before the first task, one of no kind."""
    return [("", "")]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.question)
def test_a_task_takes_few_clicks_from_the_first_page(reader: Page, server: Server, before: list, task: Task) -> None:
    """Links stand on every page: a task that begins with one goes on from where links alone have led."""
    linked = task.clicks and task.clicks[0][0] == "link" and {role for role, _ in before} == {"link"}
    if before and not linked:
        reader.goto(server.url)
        drawn(reader)
        before.clear()
    assert len(task.clicks) <= MOST_CLICKS
    before += task.clicks
    for role, name in task.clicks:
        target = found(reader, role, name)
        leads_to = urljoin(reader.url, target.get_attribute("href")) if role == "link" else ""
        target.click()
        if leads_to:  # else the next click may open a chip of the page that is left
            expect(reader).to_have_url(re.compile(f"^{re.escape(leads_to)}([?]|$)"))
        settled(reader)  # what belongs to the view before may still be there, so nothing is asked of its parts
    name = re.compile(task.answer)
    answer = reader.get_by_text(name) if task.role == "text" else reader.get_by_role(task.role, name=name)
    expect(answer.first).to_be_in_viewport()


def test_the_answer_is_in_the_first_screen_of_a_phone(reader: Page, server: Server) -> None:
    reader.set_viewport_size({"width": 390, "height": 844})
    for path, answer in (("", "is the fastest: "), ("models", "Llama-3 8B: training")):
        reader.goto(f"{server.url}/{path}")
        expect(drawn(reader).get_by_role("heading", name=re.compile(answer))).to_be_in_viewport()
        assert reader.evaluate("document.documentElement.scrollWidth") <= 390


def found(page: Page, role: str, name: str) -> Locator:
    """The element that a click is meant for: of a page link the sidebar's first, of an option that of an open chip."""
    if role == "option":
        return page.get_by_role("dialog").get_by_text(name, exact=True)
    if role == "listed":
        page.keyboard.type(name)
        return page.get_by_role("option", name=name, exact=True)
    if role == "pill":
        return page.get_by_test_id("stButtonGroup").get_by_text(name, exact=True)
    exact = role not in ("button", "combobox") or name == "forward"
    return page.get_by_role(role, name=name if exact else re.compile(name), exact=exact).first
