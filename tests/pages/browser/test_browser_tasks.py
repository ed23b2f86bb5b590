"""What a newcomer comes for, each from the first page: how many clicks it takes, and that the answer is in view."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.pages.browser.serving import Server, drawn, settled, visit

pytestmark = pytest.mark.browser
MOST_CLICKS = 4


@dataclass(frozen=True)
class Task:
    """A question, the clicks from the first page to its answer (role and accessible name), and the answer."""

    question: str
    clicks: tuple[tuple[str, str], ...]
    role: str  # of the answer; "text": any
    answer: str  # a regular expression: the name of what is then in view, or its text


EXPLORE, MODELS, COMPARE, REPORTS, MEASURE = (
    ("link", name) for name in ("Explore", "Models", "Compare", "Reports", "Measure")
)
CARD = ("combobox", "What is your card")
TASKS = (
    Task("Which kernel is fastest?", (), "heading", r"On NVIDIA H200 \(bfloat16, causal, forward.* is the fastest: "),
    Task("the same at head_dim 128 and 8k", (), "button", r"gluon_hopper, 1.09× FA4; .*seqlen 8192, head_dim 128; "),
    Task(
        "the times behind a cell",
        (("button", r"; seqlen 2048, head_dim 128; "),),
        "heading",
        "seqlen 2048, head_dim 128",
    ),
    Task(
        "the same on an H100", (("button", "H200"), ("option", "NVIDIA H100 80GB HBM3")), "heading", "H100.*fastest: "
    ),
    Task("an H200 over an H100", (), "text", r"gluon_hopper on H200 is 1\.0\d× as fast as on H100"),
    Task(
        "an H200 over an H100 by shape",
        (COMPARE, ("radio", "GPUs")),
        "text",
        r"NVIDIA H200 is 1\.\d+× as fast as NVIDIA",
    ),
    Task(
        "gluon_hopper over FlashAttention-4",
        (EXPLORE, ("button", "vs torch_naive"), ("option", "flash_attn_4")),
        "heading",
        r"gluon_hopper is 1\.\d+× flash_attn_4 on average",
    ),
    Task(
        "backward against FlashAttention-4 at 16k",
        (("button", "forward"), ("option", "bwd")),
        "button",
        r"FA4; .*seqlen 16384, head_dim 128; ",
    ),
    Task(
        "I have an RTX 4060", (CARD, ("listed", "RTX 4060 Laptop")), "heading", "On RTX 4060 Laptop .* is the fastest: "
    ),
    Task(
        "I have an A100",
        (CARD, ("listed", "A100 SXM4 80GB"), ("radio", "My shape")),
        "text",
        "This is the answer of its nearest relative, NVIDIA H100",
    ),
    Task(
        "Train Llama-3 8B at 8k on 80 GB",
        (MODELS, ("combobox", "Fit into"), ("listed", "80 GB")),
        "heading",
        "fit 80 GB .fits 141 GB; with recomputed activations 60.82 GiB, which fits 80 GB.; serving",
    ),
    Task("Serve Llama-3 8B at 32k", (MODELS,), "text", r"it generates 189 tokens/s with triton_step \(1 × 32k\)"),
    Task(
        "How much memory does it take?",
        (EXPLORE, ("link", "Memory")),
        "heading",
        r"implementations take [\d.]+ MiB at seqlen 16k, 1.\d+ of torch_naive",
    ),
    Task("throughput against power", (EXPLORE, ("link", "Power")), "heading", r"sustains 98 % of .* W of 700 W"),
    Task("Which numbers of a report are wrong?", (REPORTS,), "text", "^Impossible$"),
    Task("What changed between two runs?", (COMPARE,), "heading", r"\d+ (faster|slower|same|unclear).*, of \d+ shapes"),
    Task("Measure on this machine", (MEASURE,), "button", "Run sweep"),
    Task("Bring in a file", (MEASURE, ("link", "Upload")), "button", "Upload|Browse"),
    Task("Find a run", (MEASURE, ("link", "Runs")), "text", "11,141 numbers, none failed"),
    Task("take the picture", (("button", "Save as PNG"),), "heading", "Fastest implementation by shape"),
    Task(
        "How near is it to the peak?", (EXPLORE, ("link", "Scaling")), "heading", r"TFLOP.s .*% of the data-sheet peak"
    ),
    Task("How accurate is it?", (EXPLORE, ("link", "Accuracy")), "text", "torch_sdpa_math is the most accurate"),
    Task(
        "window, grouped heads and softcap",
        (
            ("radio", "My features"),
            ("pill", "sliding window"),
            ("pill", "fewer key heads than query heads"),
            ("pill", "softcap"),
        ),
        "text",
        "Implementations that declare all of it: .*triton_fa2",
    ),
    Task(
        "Use the fastest attention in a recorded program",
        (MODELS, ("link", "Programs"), ("button", "Use it")),
        "text",
        r"attnbench\.sdpa_replacement",
    ),
    Task("Which kernel for my shape?", (("radio", "My shape"),), "heading", "^Use gluon_hopper"),
)


@pytest.fixture(scope="module")
def reader(chrome: Browser, server: Server) -> Iterator[Page]:
    """One tab for all tasks."""
    page = visit(chrome, server.url)
    assert page.get_by_test_id("stSidebarNavLink").count() <= 8
    yield page
    page.context.close()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.question)
def test_a_task_takes_few_clicks_from_the_first_page(reader: Page, server: Server, task: Task) -> None:
    reader.goto(server.url)
    drawn(reader)
    assert len(task.clicks) <= MOST_CLICKS
    for role, name in task.clicks:
        found(reader, role, name).click()
        settled(reader)  # what belongs to the view before may still be there, so nothing is asked of its parts
    name = re.compile(task.answer)
    answer = reader.get_by_text(name) if task.role == "text" else reader.get_by_role(task.role, name=name)
    expect(answer.first).to_be_in_viewport()


@pytest.mark.parametrize(("path", "answer"), [("", "is the fastest: "), ("models", "Llama-3 8B: training")])
def test_the_answer_is_in_the_first_screen_of_a_phone(tab, path: str, answer: str) -> None:
    page = drawn(tab(path, viewport={"width": 390, "height": 844}))
    expect(page.get_by_role("heading", name=re.compile(answer))).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


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
