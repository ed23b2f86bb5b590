"""Which form the Hopper forward of a full mask has at which lengths: arithmetic on any machine, results on an H200."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernels import reference
from tests.cases import cases, named
from tests.kernels.conftest import on_hopper

gluon_hopper = pytest.importorskip("kernels.attention.gluon_hopper")
configs, tuning = (pytest.importorskip(f"kernels.attention.gluon_hopper.{x}") for x in ("configs", "tuning"))
_form = pytest.importorskip("kernels.attention.gluon_hopper.plan", exc_type=ImportError)._form


def form(size: int, seqlen_q: int, seqlen_k: int, n_heads: int) -> tuple[configs.ForwardTiles, bool]:
    tiles = tuning.forward_tiles(size, size, seqlen_q, False, False)
    return tuning.full_mask_form(tiles, size, tuning.Lengths(seqlen_q, seqlen_k, n_heads, programs=132))


@pytest.mark.parametrize("lengths, consumers, split", named(__file__, "tiles at head_dim 64"))
def test_tiles_at_head_dim_64_have_as_many_rows_as_was_fastest(lengths, consumers: int, split: bool) -> None:
    tiles, splits = form(64, *lengths)
    assert (tiles.consumers, splits) == (consumers, split)


def test_only_long_walks_hold_exponentials_and_only_short_ones_with_a_tail_take_steps_of_64() -> None:
    assert [form(128, n, n, 16)[0].exp_before_wait for n in (512, 4096)] == [False, True]
    assert [form(128, n, n, 16)[0].exp_before_wait for n in (4429, 8200)] == [False, True]
    tiles, mask = tuning.forward_tiles(128, 72, 4096, False, False), tuning.Lengths(4096, 4096, 16, 132)
    assert not tuning.full_mask_form(tiles, 128, mask, whole_rows=False)[0].exp_before_wait
    tiles, splits = form(128, 4096, 257, 16)
    assert (tiles.block_n, tiles.pingpong, tiles.exp_before_wait, splits) == (64, True, True, False)
    assert form(128, 4096, 2001, 16)[0].block_n == 128
    assert form(128, 4096, 128, 16)[0].block_n == 128


def test_consumers_at_head_dim_256_take_turns_and_split_keys_only_where_that_pays() -> None:
    free = [tuning.forward_tiles(256, 256, n, causal, False) for n, causal in ((512, True), (512, False), (8192, True))]
    assert [tiles.pingpong for tiles in free] == [False, True, True]
    assert tuning.forward_tiles(256, 200, 512, True, False).pingpong, "padded rows were not timed"
    assert form(256, 4096, 4096, 16)[1]
    assert not form(256, 4096, 4096, 4)[1]


def test_up_to_head_dim_192_fewer_of_256_columns_leave_room_for_a_third_slot() -> None:
    assert [tuning.forward_tiles(256, n, 4096, True, False).kv_slots for n in (136, 192, 200)] == [3, 3, 2]
    assert [configs.narrow_columns(n, 256) for n in (129, 160, 161, 192, 193)] == [160, 160, 192, 192, 0]


def test_few_causal_queries_on_many_keys_have_the_tiles_of_as_many_tokens() -> None:
    lengths = {"seqlen_q": 256, "seqlen_k": 32768, "n_heads": 128, "group_size": 16, "multiprocessors": 132}
    sizes = SimpleNamespace(size=128, head_dim=128, causal=True, window_size=0, l2_bytes=0, **lengths)
    assert _form(sizes, True)[0] == tuning.forward_tiles(128, 128, 32768, True, False)
    assert [tuning.packed_forward_tiles(128, 256, n, True, False).block_n for n in (4095, 0)] == [64, 128]


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "seqlen_q", "seqlen_k", "head_dim"), cases(__file__, "shapes on a GPU"))
def test_each_form_is_right(heads: int, seqlen_q: int, seqlen_k: int, head_dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, seqlen, head_dim, device="cuda", generator=generator).to(dtype)
        for seqlen in (seqlen_q, seqlen_k, seqlen_k)
    )
    out = gluon_hopper.attention(q, k, v)
    for head in range(0, heads, heads // 4):
        wanted = reference.attention(*(x[:, head : head + 1] for x in (q, k, v))).out
        assert (out[:, head : head + 1].double() - wanted).norm() < 4e-3 * wanted.norm()
