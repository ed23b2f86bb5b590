"""What reports claim in words, answered by the numbers of an own run."""

from dataclasses import replace

import pytest

from results import reports
from results.records import Measurement, Run
from results.reports import side_by_side

DTYPES = ("bfloat16", "float16")


def own_of(name: str, factor: float, dtypes: tuple[str, ...] = DTYPES[:1]) -> list[Measurement]:
    """Return a run with a report's own latencies, but those of the baseline that many times as long."""
    report = reports.get(name)
    ((_, printed),) = side_by_side.published(name)
    baseline = next(iter(report.IMPLEMENTATIONS.values()))
    found = []
    for m in printed:
        if m.metric != "latency_ms" or m.value is None:
            continue
        ours = report.IMPLEMENTATIONS[m.implementation]
        value = m.value * factor if ours == baseline else m.value
        for dtype in dtypes:
            case = replace(m.case, dtype=dtype)
            found.append(
                replace(m, run_id="own", case=case, implementation=ours, value=value, printed=None, origin=None)
            )
    return found


def claims_of(name: str, own: list[Measurement]) -> dict[str, tuple[str, str | None]]:
    found = side_by_side.sections(name, side_by_side.published(name), [(Run("own", "local"), own)])
    section = next(each for each in found if each.title == "Claims")
    return {row.labels[0]: (row.printed[0], row.own and row.own[0]) for row in section.rows}


def test_a_summarys_range_is_that_of_the_tables() -> None:
    printed, own = claims_of("attention_layers_a100", own_of("attention_layers_a100", 1.0))[
        "Summary / Triton Backward Speedup"
    ]
    assert printed == "3.37 to 41.99x"
    assert own == "4.43 to 17.15x"  # what the findings say of the report's own tables


def test_a_range_follows_the_numbers_of_the_run_and_says_each_dtype() -> None:
    claims = claims_of("attention_layers_a100", own_of("attention_layers_a100", 2.0, DTYPES))
    assert claims["Summary / Triton Backward Speedup"][1] == "bfloat16 8.85 to 34.30x, float16 8.85 to 34.30x"


def test_what_a_run_does_not_hold_is_not_answered() -> None:
    backward = [m for m in own_of("attention_layers_a100", 1.0) if m.mode == "bwd"]
    assert claims_of("attention_layers_a100", backward)["Summary / Flash Forward Speedup"][1] is None


def test_a_claim_about_one_shape_is_answered_by_that_shape() -> None:
    claims = claims_of("flashtile_a100", own_of("flashtile_a100", 1.0, ("float32",)))
    assert claims["Implementation / Triton Kernel / Speed"] == ("11.8x", "11.74x")
    assert claims["Memory reduction at 8K vs Naive / GQA"][1] is None  # the run has times alone


@pytest.mark.parametrize(
    ("block", "head_dim", "own"),
    [("64", "64", "80 KiB; fits 8.0 (163 KiB), 8.6 (99 KiB)"), ("128", "128", "320 KiB; fits none")],
)
def test_shared_memory_is_what_the_formula_says_beside_what_chips_have(block: str, head_dim: str, own: str) -> None:
    found = side_by_side.sections("flashtile_a100", side_by_side.published("flashtile_a100"))
    section = next(each for each in found if each.title.startswith("Shared memory by formula"))
    row = next(row for row in section.rows if row.labels == (block, head_dim))
    assert row.own[0].startswith(own)
