"""How the Hopper forward's query tiles are dealt to its programs: pure arithmetic, on any machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.agenda import OVERHEAD, Tiling, agenda

CPU = torch.device("cpu")
PLAIN = Tiling(2, 8, 1000, 1000, 128, 64, causal=False, window=0, together=4)
TILINGS = [
    PLAIN,
    replace(PLAIN, causal=True),
    replace(PLAIN, causal=True, together=3),
    replace(PLAIN, causal=True, window=100),
    replace(PLAIN, window=100),
    replace(PLAIN, seqlen_q=200, causal=True),
    replace(PLAIN, seqlen_k=200, causal=True),
    replace(PLAIN, batch=1, num_heads=1, seqlen_q=1, seqlen_k=1),
]


def taken(tiling: Tiling, programs: int) -> list[list[list[int]]]:
    """Each program's entries, without their count and their padding."""
    rows = agenda(tiling, programs, CPU).tolist()
    return [row[1 : 1 + row[0][0]] for row in rows]


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("programs", [1, 13, 132])
def test_every_tile_is_taken_once(tiling: Tiling, programs: int) -> None:
    tiles = [(m, head) for own in taken(tiling, programs) for m, head in own]
    wanted = {(m, head) for m in range(tiling.n_m) for head in range(tiling.n_heads)}
    assert len(tiles) == len(wanted)
    assert set(tiles) == wanted


@pytest.mark.parametrize("tiling", TILINGS)
def test_a_program_finds_an_entry_behind_its_last_tile(tiling: Tiling) -> None:
    entries = agenda(tiling, 13, CPU)
    assert entries[:, 0, 0].max() + 2 == entries.shape[1]


@pytest.mark.parametrize(
    ("seqlen", "rows", "block_n", "together", "excess"),
    [(512, 128, 64, 64, 0.02), (1024, 128, 64, 32, 0.02), (2048, 128, 128, 16, 0.01), (16384, 128, 128, 2, 0.01)],
)
def test_causal_tiles_are_dealt_evenly(seqlen: int, rows: int, block_n: int, together: int, excess: float) -> None:
    tiling = Tiling(16384 // seqlen, 16, seqlen, seqlen, rows, block_n, causal=True, window=0, together=together)
    times = [sum(tiling.blocks(entry[0]) + OVERHEAD for entry in own) for own in taken(tiling, 132)]
    assert max(times) < (1 + excess) * sum(times) / len(times)


def test_a_tile_counts_the_blocks_that_it_sees() -> None:
    causal = Tiling(1, 1, 300, 500, 128, 64, causal=True, window=0, together=1)
    assert [causal.blocks(m) for m in range(causal.n_m)] == [6, 8, 8]  # keys up to 328, 456 and 500
    window = replace(causal, window=65)
    assert [window.blocks(m) for m in range(window.n_m)] == [4, 4, 2]  # from 136, 264 and 392 on
    assert replace(causal, seqlen_k=100).blocks(0) == 1  # sees nothing, and computes a block


@pytest.mark.parametrize(
    ("seqlen", "head_dim", "n_heads", "rows", "together"),
    [(512, 128, 512, 128, 32), (1024, 64, 512, 256, 32), (2048, 256, 64, 128, 8), (16384, 128, 16, 128, 1)],
)
def test_dealt_tiles_have_one_round_of_heads_in_use(
    seqlen: int, head_dim: int, n_heads: int, rows: int, together: int
) -> None:
    assert tuning.heads_together(seqlen, head_dim, 1, n_heads, seqlen // rows, 132, rounds=1) == together
