"""Packed sequences: which tiles the device lists, what stands around the backward kernel, and results on a GPU."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

import kernels
from kernels import dispatch, feature_calls, paged, reference, routes
from kernels.attention.gluon_hopper import configs, packed
from kernels.attention.gluon_hopper.backward import backward_kernel
from kernels.attention.gluon_hopper.backward_launch import BackwardInputs
from kernels.attention.gluon_hopper.packed import PackedBackward, PackedForward
from kernels.attention.gluon_hopper.packed_backward import packed_finish_kernel, packed_prepare_kernel
from kernels.attention.gluon_hopper.packed_tiles import TileListConfig, list_length, list_tiles_kernel, most_tiles
from kernels.attention.triton_fa2.features.call import FeatureCall
from kernels.constants import Constants
from kernels.features import SequenceBounds
from tests.cases import cases
from tests.kernels.attention.gluon_hopper.test_partitions import run as run_forward
from tests.kernels.attention.gluon_hopper.test_partitions_backward import run as run_backward
from tests.kernels.conftest import NAMES, on_hopper

REST = 9  # rows behind the last sequence


def bounds_of(lengths_q: list[int], lengths_k: list[int], device: str) -> SequenceBounds:
    """Bounds of packed sequences."""
    of_q, of_k = (torch.tensor([0, *x], device=device).cumsum(0).int() for x in (lengths_q, lengths_k))
    return SequenceBounds(of_q[:-1], of_q[1:], of_k[:-1], of_k[1:], max(lengths_q), max(lengths_k), packed=True)


def listed(
    lengths_q: list[int], lengths_k: list[int], rows: int, step: int, of_keys: bool, causal: bool, room: int, few: int
) -> list[tuple[int, ...]]:
    """The entries of a list of tiles, from the definition: element by element."""
    seen = [(q, k) if q > few else (0, 0) for q, k in zip(lengths_q, lengths_k, strict=True)]
    sequences = [(q, k, k if of_keys else q) for q, k in seen]
    sequences.append((0, REST, REST) if of_keys else (REST, 0, REST))
    entries, first_q, first_k, steps = [], 0, 0, 0
    for i, (seqlen_q, seqlen_k, own) in enumerate(sequences):
        behind = i == len(lengths_q)
        first_k = i * room if room else first_k
        firsts = (0 if behind and of_keys else first_q, 0 if behind and not of_keys else first_k)
        entries += [(m, *firsts, seqlen_q, seqlen_k, steps) for m in range(-(-own // rows))]
        first_q, first_k, steps = sum(lengths_q[: i + 1]), first_k + seqlen_k, steps - (-seqlen_q // step)

    def blocks_seen(entry: tuple[int, ...]) -> int:
        m, _, _, seqlen_q, seqlen_k, _ = entry
        found = set()
        for own, other in itertools.product(range(m * rows, (m + 1) * rows), range(seqlen_q if of_keys else seqlen_k)):
            query, key = (other, own) if of_keys else (own, other)
            if key <= query + seqlen_k - seqlen_q or not causal:
                found.add(other // step)
        return len(found)

    return sorted(entries, key=blocks_seen)


@pytest.mark.parametrize(("of_keys", "spaces", "few"), [(False, 0, -1), (True, 0, -1), (False, 64, 8)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("rows", "step"), [(8, 16), (16, 8)])
def test_tiles_are_listed_by_how_many_blocks_each_sees(of_keys, spaces, few, causal, rows, step, device) -> None:
    lengths_q, lengths_k = [37, 0, 5, 50, 8, 70], [37, 20, 0, 61, 3, 30]
    bounds = bounds_of(lengths_q, lengths_k, device)
    total_q, total_k = sum(lengths_q) + REST, sum(lengths_k) + REST
    most, blocks = most_tiles(total_k if of_keys else total_q, len(lengths_q), rows), most_tiles(total_q, 6, step)
    room = torch.zeros(list_length(most, blocks), dtype=torch.int32, device=device)
    sizes = (len(lengths_q), total_q, total_k, spaces, few, most, 3, 1 << 20)
    config = TileListConfig(rows, step, of_keys, causal, 4, 4)  # several rounds of tiles and of sequences
    list_tiles_kernel[(len(lengths_q) + 1, 2)](room, *bounds[:4], *sizes, Constants(config))
    tiles, table = room[: list_length(most)].view(1 + most, -1), room[list_length(most) :].view(1 + blocks, 2)
    expected = listed(lengths_q, lengths_k, rows, step, of_keys, causal, spaces, few)
    assert tiles[0, 0] == len(expected)
    assert [tuple(entry[:6]) for entry in tiles[1 : 1 + len(expected)].tolist()] == expected
    if of_keys:
        assert table[0, 0] == len(blocks_of(lengths_q, step))
        assert table[1 : 1 + table[0, 0]].tolist() == [list(x) for x in blocks_of(lengths_q, step)]


@pytest.mark.parametrize("lengths, of_keys, rows_in_l2, expected", cases(__file__, "heads together"))
def test_more_heads_are_taken_together_the_less_work_a_head_has_beside_its_longest_tile(
    lengths: list[int], of_keys: bool, rows_in_l2: int, expected: int, device: str
) -> None:
    bounds, total = bounds_of(lengths, lengths, device), sum(lengths)
    most = most_tiles(total, len(lengths), 8)
    room = torch.zeros(list_length(most, most), dtype=torch.int32, device=device)
    sizes = (len(lengths), total, total, 0, -1, most, 24, rows_in_l2)
    config = TileListConfig(8, 8, of_keys, True, 8, 16)
    list_tiles_kernel[(len(lengths) + 1, 1)](room, *bounds[:4], *sizes, Constants(config))
    assert room[1] == expected


def blocks_of(lengths: list[int], rows: int) -> list[tuple[int, int]]:
    """The first row of each block of queries, and the end of its sequence; rows that are nobody's are one."""
    ends = list(itertools.accumulate([*lengths, REST]))
    sequences = zip(ends, [*lengths, REST], strict=True)
    return [(first, end) for end, length in sequences for first in range(end - length, end, rows)]


@pytest.mark.parametrize(("block_m", "head_dim", "block_d"), [(64, 104, 128), (128, 64, 64)])
def test_delta_and_dq_have_whole_blocks_of_every_sequence(block_m, head_dim, block_d, device) -> None:
    lengths, heads = [70, 0, 1, 130], 2
    total, blocks = sum(lengths) + REST, blocks_of(lengths, block_m)
    n_m = most_tiles(total, len(lengths), block_m)
    table = torch.tensor([0, 0, len(blocks), 0, *itertools.chain(*blocks)], dtype=torch.int32, device=device)
    table = functional.pad(table, (0, 2 * (n_m - len(blocks))))
    out, dout = (torch.randn(total, heads, head_dim, device=device).transpose(0, 1) for _ in range(2))
    lse = torch.randn(heads, total, device=device)
    padded, delta = (torch.full((heads, n_m, block_m), math.nan, device=device) for _ in range(2))
    fragments = torch.full((heads, n_m, 2, 4096), math.nan, device=device)
    rest = ((out.stride()[:2], dout.stride()[:2]), 2, total, n_m, block_m, head_dim, block_d, False)
    packed_prepare_kernel[(heads * n_m,)](out, dout, lse, padded, delta, fragments, table, *rest)
    expected = (out * dout).sum(-1)
    for i, (first, end) in enumerate((first, min(first + block_m, end)) for first, end in blocks):
        assert torch.allclose(delta[:, i, : end - first], expected[:, first:end], atol=1e-4)
        assert padded[:, i, : end - first].equal(lse[:, first:end])
        assert not delta[:, i, end - first :].any()
        assert (padded[:, i, end - first :] == math.inf).all()
    assert not fragments[:, : len(blocks)].any()

    fragments = torch.randn(fragments.shape, device=device)
    dq = torch.full((total, heads, head_dim), math.nan, device=device).transpose(0, 1)
    rest = (*dq.stride()[:2], 2, n_m, 0.5, block_m, 2, head_dim, False)
    packed_finish_kernel[(heads * n_m * 2,)](fragments, dq, table, *rest)
    tiles = fragments.view(heads, n_m, 2, 8, 4, 8, 4, 2, 2).permute(0, 1, 2, 4, 7, 5, 3, 6, 8)
    tiles = torch.cat(tiles.reshape(heads, n_m, 2, 64, 64).unbind(2), 3 if block_m == 64 else 2)
    for i, (first, end) in enumerate((first, min(first + block_m, end)) for first, end in blocks):
        assert torch.allclose(dq[:, first:end], tiles[:, i, : end - first, :head_dim] * 0.5)


def launches_of(kind: Any, head_dim: int, mask: tuple[bool, int], page: int = 0) -> list[tuple[Any, ...]]:
    """What the launches of packed sequences are made of, by a host that cannot read where sequences begin."""
    named: Any = {"pages": packed.Pages(600, 1, 4, 600, True)} if page else {}
    made: list[tuple[Any, ...]] = []
    q, k = (torch.zeros(1, heads, sum(x) + REST, head_dim) for heads, x in ((2, LENGTHS[0]), (1, LENGTHS[1])))
    k = torch.zeros(7, 1, page, head_dim) if page else k
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3)),
        mock.patch.object(packed, "Launch", lambda *arguments, **_: made.append(arguments)),
    ):
        kind(q.bfloat16(), k.bfloat16(), k.bfloat16(), bounds_of(*LENGTHS, "meta"), (*mask, 1.0), **named)
    return made


def table_of(rows: int, step: int, of_keys: bool, causal: bool) -> torch.Tensor:
    """A list of tiles as kernels are given it."""
    entries = [(*entry, 0, 0) for entry in listed(*LENGTHS, rows, step, of_keys, causal, 0, -1)]
    return torch.tensor([(len(entries), 2, *[0] * 6), *entries])


LENGTHS = ([300, 0, 130, 1], [300, 20, 0, 164])
in_masks = pytest.mark.parametrize("mask", [(True, 0), (False, 0), (True, 70)])


@in_masks
@pytest.mark.parametrize(("head_dim", "page"), [(64, 0), (128, 0), (256, 0), (64, 16), (128, 64), (128, 256)])
def test_no_order_of_the_partitions_breaks_a_rule_of_the_forward(head_dim, page, mask) -> None:
    _, (_, grid, _, makers, rest) = launches_of(PackedForward, head_dim, mask, page)
    config = rest[-1]
    table = table_of(configs.ROWS * config.consumers, config.block_n, False, mask == (True, 0))
    for number, seed in itertools.product(range(grid[0]), range(2)):
        run_forward([grid[0], len(makers) - 1, table, *rest], number, seed)


@in_masks
@pytest.mark.parametrize("head_dim", [64, 128])
def test_no_order_of_the_partitions_breaks_a_rule_of_the_backward(head_dim: int, mask: tuple[bool, int]) -> None:
    launch = next(each for each in launches_of(PackedBackward, head_dim, mask) if each[0] is backward_kernel)
    config = launch[4][-1]
    table = table_of(config.block_n, config.block_m, True, mask == (True, 0))
    for number, seed in itertools.product(range(launch[1][0]), range(2)):
        run_backward((*launch, table), number, seed)


class Doubling:
    """Stands in for PackedCall: out is 2 q, dq is 3 dout, dk and dv are k and v."""

    prepare = None

    def __init__(self, bounds: SequenceBounds, *masks: Any) -> None:
        assert bounds.packed
        assert masks == (True, 0, 0.25)

    def output(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.forward(*tensors)[0]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * q, q.new_zeros(q.shape[:3], dtype=torch.float32)

    def backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor, **_: bool) -> Any:
        return 3 * others[2], k.clone(), v.clone()


@pytest.mark.parametrize(
    ("tensors", "backward"),
    [(dispatch.PLAIN, "gluon_hopper"), (dispatch.PLAIN, "triton_fa2"), ((), "gluon_hopper")],
    ids=["autograd", "forward alone", "operators"],
)
def test_the_front_door_has_packed_sequences_without_a_feature_computed_here(tensors, backward, monkeypatch) -> None:
    monkeypatch.setattr(feature_calls, "takes", lambda *asked: True)
    monkeypatch.setattr(dispatch, "PLAIN", tensors)
    monkeypatch.setattr(routes, "packed_names", lambda *asked: {"forward": "gluon_hopper", "backward": backward})
    monkeypatch.setattr(packed, "PackedCall", Doubling)
    slower = lambda call, q, k, v, out, lse, dout: (5 * dout, k.clone(), v.clone(), None)  # noqa: E731
    monkeypatch.setattr(FeatureCall, "backward", slower)
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    q, k, v, dout = (torch.randn(9, 2, 16, dtype=torch.float16, requires_grad=True) for _ in range(4))
    out = kernels.attention_varlen(q, k, v, starts, starts, 5, 5, causal=True)
    assert out.equal(2 * q)
    times = 3 if backward == "gluon_hopper" else 5
    for found, expected in zip(torch.autograd.grad(out, (q, k, v), dout), (times * dout, k, v), strict=True):
        assert found.equal(expected)


@on_hopper
@pytest.mark.parametrize(("causal", "window"), [(True, 0), (False, 0), (True, 100)])
@pytest.mark.parametrize(("head_dim", "longest"), [(40, 700), (64, 700), (128, 700), (64, 250), (128, 1500)])
def test_no_sequence_sees_what_the_next_one_holds(head_dim: int, longest: int, causal: bool, window: int) -> None:
    lengths_q, lengths_k = [250, 0, longest, 130, 1, 64], [250, 20, longest - 200, 0, 64, 190]
    heads, kv_heads = 4, 2
    sizes = ((sum(lengths_q) + REST, heads), *[(sum(lengths_k) + REST, kv_heads)] * 2)
    q, k, v = (torch.randn(*size, head_dim, device="cuda").bfloat16().transpose(0, 1)[None] for size in sizes)
    bounds = bounds_of(lengths_q, lengths_k, "cuda")
    rows = [[slice(*x) for x in zip(*(y.tolist() for y in bounds[i : i + 2]), strict=True)] for i in (0, 2)]
    rows[0].append(slice(sum(lengths_q), None))
    rows[1].append(slice(sum(lengths_k), None))
    for of_q, of_k in list(zip(*rows, strict=True))[1::2] + [(rows[0][-1], rows[1][-1])]:
        q[:, :, of_q], k[:, :, of_k], v[:, :, of_k] = math.nan, math.nan, math.inf
    masks = (causal, window, head_dim**-0.5)
    out, lse = PackedForward(q, k, v, bounds, masks)(q, k, v, bounds, None)
    dout = torch.randn(out.shape, device="cuda").bfloat16()
    gradients = PackedBackward(q, k, v, bounds, masks)(BackwardInputs(q, k, v, out, lse, dout), bounds)
    for of_q, of_k in list(zip(*rows, strict=True))[:-1:2]:
        if of_q.start == of_q.stop or of_k.start == of_k.stop:
            continue
        own = (q[:, :, of_q], k[:, :, of_k], v[:, :, of_k], dout[:, :, of_q])
        expected = reference.gradients(*own, causal=causal, window_size=window)
        found = (out[:, :, of_q], gradients[0][:, :, of_q], *(x[:, :, of_k] for x in gradients[1:]))
        for name, x in zip(NAMES, found, strict=True):
            exact = getattr(expected, name)
            assert (x - exact).abs().max() <= 2**-6 * exact.abs().max(), name
    for x in (out, *gradients):
        assert not x[:, :, -REST:].any()
    assert (lse[:, :, -REST:] == math.inf).all()


@on_hopper
@pytest.mark.parametrize(
    ("head_dim", "page", "longest", "causal"),
    [(size, page, 1500, True) for size, page in ((64, 16), (64, 64), (80, 64), (128, 64))]
    + [(128, 16, 900, True), (128, 128, 900, True), (128, 256, 1500, False)],
)
def test_pages_give_the_bits_of_rows(head_dim: int, page: int, longest: int, causal: bool) -> None:
    lengths_q, lengths_k, entries = [longest, 700, longest, 4], [longest, 2000, 0, 5], 2000 // page + 2
    bounds = bounds_of(lengths_q, lengths_k, "cuda")
    starts = [torch.cat([first, last[-1:]]) for first, last in (bounds[:2], bounds[2:4])]
    q, *kv = (
        torch.randn(n, h, head_dim, device="cuda").half() for n, h in ((sum(lengths_q), 64), *[(2005 + longest, 8)] * 2)
    )
    table = torch.randperm(4 * entries, device="cuda").int()
    pages = [torch.full((4, entries * page, 8, head_dim), math.nan, device="cuda").half() for _ in kv]
    for room, rows in zip(pages, kv, strict=True):
        for own, used in zip(room, rows.split(lengths_k), strict=True):
            own[: len(used)] = used
    pages = [room.view(-1, page, 8, head_dim)[table.argsort()] for room in pages]
    asked = (*starts, *bounds[4:6])
    expected = kernels.attention_varlen(q, *kv, *asked, causal=causal, return_lse=True)
    table = table.view(4, entries)
    assert paged.ways(q, (pages[0], pages[1]), table, 4, (causal, 0, head_dim**-0.5)) == (True, page > 16)
    found = kernels.attention_varlen(q, *pages, *asked, causal=causal, block_table=table, return_lse=True)
    assert all(map(torch.equal, found, expected))


@on_hopper
@pytest.mark.parametrize("dtype, heads, lengths, head_dim", cases(__file__, "front door"))
def test_the_front_door_is_right_where_it_takes_these_kernels(dtype, heads, lengths, head_dim) -> None:
    sizes = [(sum(lengths), n, head_dim) for n in (heads, heads // 4, heads // 4, heads)]
    q, k, v, dout = (torch.randn(*size, device="cuda").to(getattr(torch, dtype)).requires_grad_() for size in sizes)
    names = routes.packed_names(*(x.transpose(0, 1)[None] for x in (q, k, v)), len(lengths), (True, 0, head_dim**-0.5))
    assert names == {"forward": "gluon_hopper", "backward": "triton_fa2" if head_dim > 128 else "gluon_hopper"}
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    out = kernels.attention_varlen(q, k, v, starts, starts, max(lengths), max(lengths), causal=True)
    found = (out, *torch.autograd.grad(out, (q, k, v), dout))
    last = [x[-lengths[-1] :].detach().transpose(0, 1)[None] for x in (q, k, v, dout)]
    expected = reference.gradients(*last, causal=True)
    for name, x in zip(NAMES, found, strict=True):
        exact = getattr(expected, name)
        own = x[-lengths[-1] :].transpose(0, 1)[None]
        assert (own - exact).abs().max() <= 2**-6 * exact.abs().max(), name
