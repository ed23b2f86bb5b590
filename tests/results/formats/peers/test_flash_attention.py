"""Lines that FlashAttention's benchmark scripts print: blocks of five ages, and the table."""

import pytest

from tests.results.formats.peers.peer_files import excerpt, understood


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
