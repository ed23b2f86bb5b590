"""How the Hopper forward's query tiles are dealt to its programs: pure arithmetic, on any machine."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.forward_schedule import OVERHEAD, Tiling, tile_schedule
from tests.cases import cases, named
from tests.kernels.conftest import on_hopper

CPU = torch.device("cpu")
PLAIN = Tiling(2, 8, 1000, 1000, 128, 64, causal=False, window=0, heads_in_l2=4)
TILINGS = [replace(PLAIN, **changes) for changes in cases(__file__, "TILINGS")]


def taken(tiling: Tiling, programs: int, split_kv: bool) -> list[list[list[int]]]:
    """Each program's entries, without their count and their padding."""
    rows = tile_schedule(tiling, programs, split_kv, CPU).entries.tolist()
    return [row[1 : 1 + row[0][0]] for row in rows]


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("programs", [1, 13, 132])
def test_every_tile_is_taken_once(tiling: Tiling, programs: int) -> None:
    tiles = [tuple(entry[:2]) for own in taken(tiling, programs, split_kv=False) for entry in own if entry[2] < 0]
    wanted = {(m, head) for m in range(tiling.n_m) for head in range(tiling.n_heads)}
    assert len(tiles) == len(wanted)
    assert set(tiles) == wanted


def test_short_causal_heads_are_dealt_eight_at_a_time_the_longest_tiles_first() -> None:
    assert tuning.heads_dealt_together(128, 512, 512, True, False, 6) == 8
    others = ((64, 512, 512, True, False, 6), (128, 512, 513, True, False, 6), (128, 512, 512, True, False, 5))
    assert not any(tuning.heads_dealt_together(*other) for other in others)
    tiling = Tiling(1, 5, 200, 200, 128, 64, causal=True, window=0, heads_in_l2=3, heads_together=1)
    assert tiling.tiles() == [*zip((1, 0, 1, 0, 1, 1, 1, 0, 0, 0), (0, 0, 1, 1, 2, 3, 4, 2, 3, 4), strict=True)]


def test_the_last_heads_that_are_dealt_are_as_many_as_the_l2_holds() -> None:
    tiling = Tiling(32, 16, 512, 512, 128, 64, causal=True, window=0, heads_in_l2=32)
    times = [blocks + OVERHEAD for blocks in tiling.blocks(tiling.first)]
    longest = {}
    for together in (0, 8):
        programs = taken(replace(tiling, heads_together=together), 132, split_kv=False)
        longest[together] = max(sum(times[entry[0]] for entry in own) for own in programs)
    assert longest[8] <= 1.01 * longest[0]


@pytest.mark.parametrize("tiling", TILINGS)
def test_a_program_finds_an_entry_behind_its_last_tile(tiling: Tiling) -> None:
    entries = tile_schedule(tiling, 13, False, CPU).entries
    assert entries[:, 0, 0].max() + 2 == entries.shape[1]


@pytest.mark.parametrize("programs", [7, 13, 60, 127, 132])
@pytest.mark.parametrize(("seqlen_k", "causal"), [(1000, False), (4096, False), (4096, True)])
def test_the_splits_of_a_tile_are_all_of_its_keys(programs: int, seqlen_k: int, causal: bool) -> None:
    tiling = replace(PLAIN, seqlen_k=seqlen_k, causal=causal)
    ends = tiling.blocks(tiling.first)
    stretches = defaultdict(list)
    for own in taken(tiling, programs, split_kv=True):
        for m, head, split, blocks in own:
            low, high = (blocks & 0xFFFF, blocks >> 16) if split >= 0 else (0, ends[m])
            stretches[m, head].append((low, high, split))
    combines = tile_schedule(tiling, programs, True, CPU).combines
    combined = {tuple(row[:2]): list(range(row[2], row[2] + row[3])) for row in combines.tolist()}
    assert len(stretches) == tiling.n_m * tiling.n_heads
    assert len(combined) == tiling.n_m * tiling.n_heads % programs
    for tile, splits in stretches.items():
        splits.sort()
        assert [low for low, _, _ in splits] == [0, *(high for _, high, _ in splits[:-1])]
        assert splits[-1][1] == ends[tile[0]]
        assert [split for _, _, split in splits] == combined.get(tile, [-1])


def test_programs_that_split_keys_all_have_the_same_number_of_blocks() -> None:
    tiling = Tiling(1, 16, 16384, 16384, 128, 128, causal=False, window=0, heads_in_l2=16)
    blocks = [sum((b >> 16) - (b & 0xFFFF) if p >= 0 else 128 for *_, p, b in own) for own in taken(tiling, 132, True)]
    assert max(blocks) - min(blocks) <= 1


@pytest.mark.parametrize(("seqlen", "rows", "block_n", "heads_in_l2", "excess"), cases(__file__, "even causal tiles"))
def test_causal_tiles_are_dealt_evenly(seqlen: int, rows: int, block_n: int, heads_in_l2: int, excess: float) -> None:
    tiling = Tiling(16384 // seqlen, 16, seqlen, seqlen, rows, block_n, causal=True, window=0, heads_in_l2=heads_in_l2)
    blocks = tiling.blocks(tiling.first)
    times = [sum(blocks[entry[0]] + OVERHEAD for entry in own) for own in taken(tiling, 132, split_kv=False)]
    assert max(times) < (1 + excess) * sum(times) / len(times)


def test_a_tile_counts_the_blocks_that_it_sees() -> None:
    causal = Tiling(1, 1, 300, 500, 128, 64, causal=True, window=0, heads_in_l2=1)
    assert causal.blocks(causal.first) == [6, 8, 8]  # keys up to 328, 456 and 500
    window = replace(causal, window=65)
    assert window.blocks(window.first) == [4, 4, 2]  # from 136, 264 and 392 on
    assert replace(window, seqlen_q=500).tiles() == [(1, 0), (2, 0), (3, 0), (0, 0)]  # of 3, 3, 3 and 2 blocks
    assert replace(causal, seqlen_k=100).blocks(100 - causal.seqlen_q)[0] == 1  # sees nothing, and computes a block


@pytest.mark.parametrize("head_dim, n_tiles, n_blocks, split", named(__file__, "splits of keys"))
def test_keys_are_split_where_many_programs_would_idle_for_long(head_dim, n_tiles, n_blocks, split) -> None:
    assert tuning.splits_keys(head_dim, n_tiles, min(132, n_tiles), n_blocks) == split


@pytest.mark.parametrize(("seqlen", "head_dim", "n_heads", "rows", "heads_in_l2"), cases(__file__, "heads in use"))
def test_dealt_tiles_have_one_round_of_heads_in_use(seqlen, head_dim, n_heads, rows, heads_in_l2) -> None:
    assert tuning.heads_in_l2(seqlen, head_dim, 1, n_heads, seqlen // rows, 132, rounds=1) == heads_in_l2


@pytest.mark.parametrize("shape, consumers, said", named(__file__, "causal splits of keys"))
def test_causal_keys_are_split_where_few_tiles_see_many_keys(shape: tuple[int, ...], consumers: int, said: str):
    size, seqlen_q, seqlen_k, n_heads, *more = shape
    tiles = tuning.forward_tiles(size, size, seqlen_q, True, False, True, seqlen_k)
    form, splits = tuning.causal_form(tiles, size, tuning.Lengths(seqlen_q, seqlen_k, n_heads, 132, *more))
    assert (form.consumers, form.across_heads, splits) == (consumers, "across" in said, "split" in said)


def assert_right_on_hopper(shape: tuple[int, ...], kv_shape: tuple[int, ...], dtype: torch.dtype, causal: bool) -> None:
    from kernels.attention.gluon_hopper.plan import plan_of

    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(x, device="cuda", generator=generator).to(dtype) for x in (shape, kv_shape, kv_shape))
    wanted = reference.attention(q, k, v, causal=causal)
    out, lse = plan_of(q, k, v, causal, 0, shape[3] ** -0.5).forward(q, k, v)
    assert (out.double() - wanted.out).norm() < 4e-3 * wanted.out.norm()
    torch.testing.assert_close(lse.double(), wanted.lse / math.log(2), atol=1e-4, rtol=1e-4)


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiles_whose_keys_are_split_are_right(dtype: torch.dtype) -> None:
    programs = torch.cuda.get_device_properties("cuda").multi_processor_count
    assert tuning.splits_keys(256, 6 * -(-4000 // 128), programs, 65)
    assert_right_on_hopper((1, 6, 4000, 256), (1, 3, 4100, 256), dtype, causal=False)


@on_hopper
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(256, 2048), (300, 9001), (129, 4096), (384, 8192), (500, 8192)])
@pytest.mark.parametrize(
    ("head_dim", "heads"), [(64, 71), (64, 32), (64, 142), (128, 28), (136, 9), (160, 16), (256, 16)]
)
def test_causal_tiles_whose_keys_are_split_are_right(head_dim: int, heads: int, seqlen_q: int, seqlen_k: int) -> None:
    assert_right_on_hopper((1, heads, seqlen_q, head_dim), (1, 1, seqlen_k, head_dim), torch.bfloat16, causal=True)


@on_hopper
@pytest.mark.parametrize("head_dim", [128, 256])
def test_short_causal_heads_are_right(head_dim: int) -> None:
    programs = torch.cuda.get_device_properties("cuda").multi_processor_count
    assert tuning.heads_dealt_together(head_dim, 500, 500, True, False, 13 * 16 * 4 // programs)
    assert_right_on_hopper(*[(13, 16, 500, head_dim)] * 2, torch.bfloat16, causal=True)


# Rows 64 to 99 of the fifth head.
@pytest.mark.parametrize(("group", "tile", "first_head", "padded"), [(1, 1, 4, 16), (3, 5, 2, 32)])
def test_combined_splits_are_what_all_keys_give(device, group: int, tile: int, first_head: int, padded: int) -> None:
    forward = pytest.importorskip("kernels.attention.gluon_hopper.forward", exc_type=ImportError)
    scores, values = torch.randn(64, 96) * 3, torch.randn(96, 16)
    stretches = (slice(0, 10), slice(10, 70), slice(70, 96))
    scores[:20, 70:] = -math.inf  # rows that see no key of the last split
    partial_out = torch.full((4, 64, 16), math.nan)  # the first is another tile's
    partial_lse = torch.full((4, 64), math.nan)
    for split, keys in enumerate(stretches, start=1):
        partial_out[split] = scores[:, keys].softmax(1).nan_to_num() @ values[keys]
        partial_lse[split] = scores[:, keys].logsumexp(1) / math.log(2)
    combines = torch.tensor([[tile, first_head, 1, 3]], dtype=torch.int32, device=device)
    out, lse, natural = (torch.full((2, 3, 100, *x), math.nan, device=device) for x in ((16,), (), ()))
    strides = tuple(stride // 8 for stride in out.stride()[:3])
    tensors = (partial_out.to(device), partial_lse.to(device), out, lse, natural, combines)
    forward.combine_kernel[(1, 4)](*tensors, 3, group, 100, *strides, 64, 16, padded, 16, True)
    torch.testing.assert_close(out[1, 1, 64:].cpu(), (scores.softmax(1) @ values)[:36], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse[1, 1, 64:].cpu(), scores[:36].logsumexp(1) / math.log(2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(natural, lse * math.log(2), equal_nan=True)
    assert out.isnan().sum() == out.numel() - 36 * 16  # rows beyond the end, and others, are left alone
