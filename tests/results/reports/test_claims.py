"""What reports claim in words, answered by the numbers of an own run."""

from dataclasses import replace

import pytest

from results import reports
from results.files import journal, library
from results.records import Measurement, Run
from results.reports import side_by_side

DTYPES = ("bfloat16", "float16")


def own_of(name: str, factor: float, dtypes: tuple[str, ...] = DTYPES[:1]) -> list[Measurement]:
    """Return a run with a report's own latencies, but those of the baseline that many times as long."""
    report = reports.get(name)
    ((_, printed),) = side_by_side.published(name)
    baseline = next(iter(report.implementations.values()))
    found = []
    for m in printed:
        if m.metric != "latency_ms" or m.value is None:
            continue
        ours = report.implementations[m.implementation]
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


def test_the_layers_summary_says_who_is_fastest_in_how_many_layers() -> None:
    claims = claims_of("attention_layers_a100", own_of("attention_layers_a100", 1.0))
    assert claims["Summary / Total Tests"][1] == "45 across 5 attention types"
    forward, backward = claims["Summary / Best Backend"][1].split("; ")
    assert forward == "forward: torch_sdpa_flash 15 of 15"
    assert backward == "backward: triton_fa2 15 of 15"


def test_flashtiles_words_are_answered_by_growth_and_speed() -> None:
    own = own_of("flashtile_a100", 1.0, ("float32",))
    claims = claims_of("flashtile_a100", own)
    assert claims["Takeaways / Triton"][1] == "triton_fa2: 1.6x at 256 to 11.7x at 8,192, grows as N^0.6"
    assert claims["GroupedQueryAttention(512, 8, num_kv_heads=2)"][1] == "4.0x, by formula"
    found = side_by_side.sections(
        "flashtile_a100", side_by_side.published("flashtile_a100"), [(Run("own", "local"), own)]
    )
    aspects = next(section for section in found if section.title == "Aspects")
    speed = next(row for row in aspects.rows if row.labels == ("Speed",))
    assert speed.own == (
        "tiled_v1 0.0388x naive at 8,192, tiled_v2 0.055x naive at 8,192",
        "",
        "triton_fa2 11.7x naive at 8,192",
    )


@pytest.mark.parametrize(
    ("block", "head_dim", "own"),
    [("64", "64", "80 KiB; fits 8.0 (163 KiB), 8.6 (99 KiB)"), ("128", "128", "320 KiB; fits none")],
)
def test_shared_memory_is_what_the_formula_says_beside_what_chips_have(block: str, head_dim: str, own: str) -> None:
    found = side_by_side.sections("flashtile_a100", side_by_side.published("flashtile_a100"))
    section = next(each for each in found if each.title.startswith("Shared memory: by formula"))
    row = next(row for row in section.rows if row.labels == (block, head_dim))
    assert row.own[0].startswith(own)


@pytest.fixture(scope="module")
def one_head() -> list[Measurement]:
    folder = next(f for f in journal.published_folders() if f.run_id == "h200-fa2_speedup")
    return library.read(folder)[1]


def test_observations_of_fa2_rtx4060_are_answered_by_the_shipped_run(one_head) -> None:
    claims = claims_of("fa2_rtx4060", one_head)
    assert claims["Key Observations / 1"][0] == "2 to 31x"
    assert claims["Key Observations / 5"][1] == "7 of 7 cases ran"
    assert claims["Key Observations / 4"][1].endswith("of 168 cases")
    assert all(own for _, own in claims.values())


def test_a_claim_from_a_length_on_leaves_shorter_sequences_out(one_head) -> None:
    short = [m for m in one_head if m.case.seqlen_q < 4096]
    assert claims_of("fa2_rtx4060", short)["Key Observations / 2"][1] is None


def test_a_claim_about_one_cell_is_that_cell(one_head) -> None:
    kernel = {
        m.implementation: m.value
        for m in one_head
        if (m.mode, m.timing, m.metric) == ("fwd_bwd", "kernel", "latency_ms")
        if (m.case.seqlen_q, m.case.head_dim, m.case.dtype) == (8192, 16, "bfloat16")
    }
    printed, own = claims_of("fa2_rtx4060", one_head)["Key Observations / 3"]
    assert printed == "**15.8x**"
    assert own == f"{kernel['torch_naive'] / kernel['triton_fa2']:.2f}x"


def test_the_text_of_torch_vs_triton_is_answered(one_head) -> None:
    found = side_by_side.sections(
        "torch_vs_triton", side_by_side.published("torch_vs_triton"), [(Run("own", "local"), one_head)]
    )
    rows = next(each for each in found if each.title == "Claims").rows
    forward, gap, backward = (row.own[0] for row in rows)
    assert forward.startswith("in ") and "of 56 cases" in forward
    assert gap.startswith("d_model 16 to 128: ")
    assert backward.startswith("56 backward cases ran")


def test_a_table_of_ratios_alone_is_filled_from_the_times() -> None:
    own = own_of("flashtile_a100", 1.0, ("float32",))
    found = side_by_side.sections(
        "flashtile_a100", side_by_side.published("flashtile_a100"), [(Run("own", "local"), own)]
    )
    section = next(each for each in found if each.title == "Triton speedup")
    assert {row.labels[0]: row.own for row in section.rows}["8,192"] == ("11.7x",)
