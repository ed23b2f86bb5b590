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


TASKS = (
    Task("Which kernel is fastest?", (), "heading", r"On NVIDIA H200 \(bfloat16, causal, forward.* is the fastest: "),
    Task(
        "triton_fa2 over plain attention at 4096 tokens and head_dim 128",
        (("link", "Explore"), ("radio", "triton_fa2")),
        "button",
        r"^1\d\.\d×; seqlen 4096, head_dim 128; triton_fa2",
    ),
    Task(
        "gluon_hopper over FlashAttention-4",
        (("link", "Explore"), ("button", "vs torch_naive"), ("option", "flash_attn_4")),
        "heading",
        r"gluon_hopper is 1\.\d+× flash_attn_4 on average",
    ),
    Task(
        "the same in a backward pass",
        (("link", "Explore"), ("button", "forward"), ("option", "bwd")),
        "heading",
        r"causal, backward, .*torch_naive on average",
    ),
    Task(
        "the times behind a cell",
        (("button", r"; seqlen 2048, head_dim 128; "),),
        "heading",
        "seqlen 2048, head_dim 128",
    ),
    Task(
        "How much memory does it take?",
        (("link", "Explore"), ("link", "Memory")),
        "heading",
        r"implementations take [\d.]+ MiB at seqlen 16k, 1.\d+ of torch_naive",
    ),
    Task(
        "How near is it to the peak?",
        (("link", "Explore"), ("link", "Scaling")),
        "heading",
        r"gluon_hopper, \d+ TFLOP.s .*% of the data-sheet peak",
    ),
    Task(
        "How accurate is it?",
        (("link", "Explore"), ("link", "Accuracy")),
        "text",
        "torch_sdpa_math is the most accurate",
    ),
    Task(
        "What changed between two runs?",
        (("link", "Compare"),),
        "heading",
        r"\d+ (faster|slower|same|unclear).*, of \d+ shapes",
    ),
    Task("Which numbers are implausible?", (("link", "Reports"), ("link", "Findings")), "heading", r"^\d+ findings in"),
    Task(
        "a published report beside a run",
        (("link", "Reports"), ("radio", "PyTorch against Triton FlashAttention-2")),
        "heading",
        "PyTorch against Triton FlashAttention-2",
    ),
    Task(
        "Use the fastest attention in a recorded program",
        (("link", "Models"), ("link", "Programs"), ("button", "Use it")),
        "text",
        r"attnbench\.sdpa_replacement",
    ),
    Task("Measure on this machine", (("link", "Measure"),), "button", "Run sweep"),
    Task("Bring in a file", (("link", "Measure"), ("link", "Upload")), "button", "Upload|Browse"),
    Task("Which kernel for my shape?", (("radio", "My shape"),), "heading", "^Use gluon_hopper"),
    Task(
        "Train Llama-3 8B at 8k, serve it at 32k: does it fit the GPU?",
        (("link", "Models"),),
        "heading",
        "Llama-3 8B: training .* fits 141 GB; serving .* fits 141 GB",
    ),
)


@pytest.fixture(scope="module")
def reader(chrome: Browser, server: Server) -> Iterator[Page]:
    """One tab for all tasks."""
    page = visit(chrome, server.url)
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


def found(page: Page, role: str, name: str) -> Locator:
    """The element that a click is meant for: of a page link the sidebar's first, of an option that of an open chip."""
    if role == "option":
        return page.get_by_role("dialog").get_by_text(name, exact=True)
    exact = role != "button" or name == "forward"
    return page.get_by_role(role, name=name if exact else re.compile(name), exact=exact).first
