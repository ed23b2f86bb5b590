"""Lines that FlashAttention's benchmark scripts print: blocks of five ages, and the table."""

import pytest

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, numbers, understood


def test_a_block_has_three_passes_a_method_and_no_time() -> None:
    found = understood("flash_attention_a5000.txt")
    rates = [m for m in found.measurements if m.status is Status.OK]
    assert (found.format, found.rejected, numbers(found, "latency_ms")) == ("flash_attention", (), [])
    assert [(m.implementation, m.mode, m.value) for m in rates[:3]] == [
        ("Flash2 (flash-attention)", "fwd", 84.08),
        ("Flash2 (flash-attention)", "bwd", 52.88),
        ("Flash2 (flash-attention)", "fwd_bwd", 59.15),
    ]
    case = rates[0].case
    assert (case.batch, case.seqlen_q, case.seqlen_k, case.head_dim, case.causal) == (32, 512, 512, 64, False)
    assert (case.num_heads, case.dtype, case.window_size) == (None, None, None)


def test_zero_is_no_rate_but_a_method_that_failed_or_never_ran() -> None:
    failed = [m for m in understood("flash_attention_a5000.txt").measurements if m.status is not Status.OK]
    assert {(m.implementation, m.status) for m in failed} == {
        ("Triton (flash-attention)", Status.SKIPPED),
        ("Pytorch (flash-attention)", Status.ERROR),
    }
    assert {m.value for m in failed} == {None} and {m.printed for m in failed} == {"0.00"}


def test_the_pass_may_stand_in_the_block() -> None:
    times = numbers(understood("flash_attention_h20.txt"), "latency_ms")
    assert [(m.implementation, m.mode, m.value) for m in times[:3]] == [
        ("Fav2 (flash-attention)", "fwd", 0.840),
        ("CuDNN (flash-attention)", "fwd", 0.545),
        ("CuDNN varlen (flash-attention)", "fwd", 0.555),
    ]


def test_newer_blocks_name_the_heads_and_their_methods_may_be_tagged() -> None:
    found = understood("flash_attention_b200.txt")
    assert {(m.case.num_heads, m.case.num_kv_heads) for m in found.measurements} == {(16, 16)}
    assert "[2CTA] FA Python (flash-attention)" in {m.implementation for m in found.measurements}


def test_milliseconds_may_follow_the_rate() -> None:
    (first, *_) = numbers(understood("flash_attention_h100.txt"), "latency_ms")
    assert (first.implementation, first.value) == ("Pytorch (flash-attention)", 1.3145040992336967)


def test_a_cell_of_the_table_is_time_rate_and_bandwidth() -> None:
    found = understood("flash_attention_table.txt")
    assert [(m.metric, m.value) for m in found.measurements[:3]] == [
        ("latency_ms", 0.25),
        ("tflops", 1087),
        ("gb_per_s", 2120),
    ]
    assert [m.case.num_heads for m in numbers(found, "latency_ms")] == [32, 32, None]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("headdim=64", "headdim=wide"),
        ("causal=False", "causal=perhaps"),
        ("84.08 TFLOPs/s", "nan TFLOPs/s"),
        ("Flash2 fwd:", "fwd:"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_its_number(old: str, new: str) -> None:
    data = excerpt("flash_attention_a5000.txt").decode().replace(old, new, 1)
    assert 2 in [r.line for r in understood("", data.encode()).rejected]


def test_sparse_and_latent_rows_of_the_table_are_refused() -> None:
    data = excerpt("flash_attention_table.txt").decode().replace("      128  False", "   64-512  False")
    (refused,) = understood("", data.encode()).rejected
    assert (refused.line, refused.column) == (9, "hdim")
