"""A run in a few lines."""

from results.files.journal import RunFolder
from results.query import pages
from results.records import Measurement, Run, Status, attention_case
from results.render import run_summary

NAMES = {"torch_naive": 2.0, "triton_fa2": 0.5, "torch_sdpa_flash": Status.OOM}


def page_of(opened, home, names):
    case = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
    rows = [
        Measurement("r", case, name, "latency_ms", found, mode="fwd", timing="kernel", note="needs | more")
        if isinstance(found, Status)
        else Measurement("r", case, name, "latency_ms", Status.OK, mode="fwd", timing="kernel", value=found)
        for name, found in names.items()
    ]
    RunFolder.create(home, Run("r", "local", title="A *title*", gpu_name="Test GPU", command="python -m x"), rows)
    store = opened()
    return run_summary.render(store, pages.runs(store).iloc[0].to_dict())


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
