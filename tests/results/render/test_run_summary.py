"""A run in a few lines."""

from results.query import pages
from results.records import Status
from results.render import slice
from tests.builders import add_run, latency, small_case

NAMES = {"torch_naive": 2.0, "triton_fa2": 0.5, "torch_sdpa_flash": Status.OOM}


def page_of(opened, home, names):
    rows = [
        latency(name, found, small_case(), note="needs | more" if isinstance(found, Status) else None)
        for name, found in names.items()
    ]
    add_run(home, "r", *rows, created=None, title="A *title*", gpu_name="Test GPU", command="python -m x")
    store = opened()
    return slice.render_run(store, pages.runs(store).iloc[0].to_dict())


def test_a_run_is_one_page_with_its_environment_winners_ranking_and_failures(opened, home):
    page = page_of(opened, home, NAMES)
    assert page.startswith("# A \\*title\\*\n")
    assert "| gpu_name | Test GPU |" in page and "`python -m x`" in page
    assert "## Fastest: attention · causal mask · mode fwd · kernel time" in page
    assert "| 128 | triton_fa2 4.00× |" in page
    assert "| triton_fa2 | 4.00× | 4.00× | 4.00× | 1 of 1 | 0 | 128 |" in page
    assert "| torch_sdpa_flash | oom | 1 | needs \\| more |" in page


def test_a_run_without_a_latency_is_its_environment_and_its_failures(opened, home):
    page = page_of(opened, home, {"triton_fa2": Status.OOM})
    assert "## Environment" in page and "## What has no number" in page and "## Fastest" not in page
