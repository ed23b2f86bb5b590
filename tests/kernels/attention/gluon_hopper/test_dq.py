"""dQ of the Hopper backward around its kernels: fragments, their ring, delta."""

import math
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import backward_common, backward_launch, configs, plan, tuning
from kernels.attention.gluon_hopper.backward_launch import BackwardInputs, DqWarpgroupBackward
from kernels.attention.gluon_hopper.plan import GluonHopperPlan


def fragment_of(tile: torch.Tensor) -> torch.Tensor:
    """A 64 x 64 tile in the order of the registers that held it, as finish_kernel reads it."""
    row, column = torch.arange(64)[:, None], torch.arange(64)[None, :]
    bits = [(column, 0), (row, 3), (column, 1), (column, 2), (row, 0), (row, 1), (row, 2), (row, 4), (row, 5)]
    bits += [(column, 3), (column, 4), (column, 5)]
    offsets = sum(((index >> bit) & 1) << place for place, (index, bit) in enumerate(bits))
    fragment = torch.empty(4096)
    fragment[offsets.flatten()] = tile.flatten()
    return fragment


@pytest.mark.parametrize(
    ("head_dim", "block_m", "uneven"), [(128, 64, ()), (64, 128, ()), (40, 128, ()), (64, 128, (3, 2))]
)
def test_fragments_of_dq_return_to_rows_and_columns(
    head_dim: int, block_m: int, uneven: tuple[int, ...], device: str
) -> None:
    heads, seqlen, n_m, width = 6, 150, -(-150 // block_m), 64 if head_dim <= 64 else 128
    dq = torch.randn(heads, n_m * block_m, width)
    tiles = dq.view(heads, n_m, block_m // 64, 64, width // 64, 64).transpose(3, 4).reshape(-1, 64, 64)
    fragments = torch.stack([fragment_of(tile) for tile in tiles]).to(device)
    counted = heads
    if uneven:  # the second part of three heads has one, and room for another
        counted = 8
        fragments = fragments.view(heads, -1, 4096)[[0, 1, 2, 0, 3, 4, 5, 0]]
    out = torch.full((1, heads, seqlen, head_dim), math.nan, device=device)
    sizes = (out.stride()[:3], heads, seqlen, n_m, 2.0, 0, counted, block_m, 2, head_dim, False, *uneven)
    backward_common.finish_kernel[(counted * n_m * 2,)](fragments, out, *sizes)
    assert torch.equal(out[0].cpu(), 2 * dq[:, :seqlen, :head_dim])


def test_the_last_heads_of_dq_are_read_from_their_slots_in_the_ring(device: str) -> None:
    heads, first, slots = 7, 4, 4  # head 4 stands in the first slot
    dq = torch.randn(heads, 128, 64)
    ring = torch.full((slots, 2, 4096), math.nan)
    for head in range(first, heads):
        ring[head % slots] = torch.stack([fragment_of(tile) for tile in dq[head].view(2, 64, 64)])
    out = torch.full((1, heads, 128, 64), math.nan, device=device)
    sizes = (out.stride()[:3], heads, 128, 1, 1.0, first, slots, 128, 2, 64)
    backward_common.finish_kernel[((heads - first) * 2,)](ring.to(device), out, *sizes)
    assert torch.equal(out[0, first:].cpu(), dq[first:])
    assert torch.all(out[0, :first].isnan())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group_size", [1, 8])
@pytest.mark.parametrize("seqlen", [512, 1024, 2048, 4096, 8192, 16384])
def test_at_head_dim_128_dq_has_its_own_warpgroup_only_where_the_ring_is_as_small_as_those_timed(
    seqlen: int, group_size: int, causal: bool
) -> None:
    n_kv_heads = 16 * 16384 // seqlen
    timed = group_size == 1 and seqlen <= (8192 if causal else 16384)
    assert tuning.has_dq_warpgroup(128, n_kv_heads, group_size, seqlen, seqlen, causal, False, 132) == timed
    assert tuning.has_dq_warpgroup(64, n_kv_heads, group_size, seqlen, seqlen, causal, False, 132)


@pytest.mark.parametrize(
    ("head_dim", "seqlen", "causal", "ahead"),
    [(64, 512, False, False), (64, 1024, False, True), (64, 1024, True, False), (64, 2048, True, True)]
    + [(128, 4096, causal, False) for causal in (False, True)],
)
def test_earlier_programs_compute_delta_only_where_that_was_timed_as_faster(head_dim, seqlen, causal, ahead) -> None:
    assert tuning.computes_next_delta(head_dim, seqlen, seqlen, causal, False) == ahead
    assert not tuning.computes_next_delta(head_dim, seqlen, seqlen, causal, True)


@pytest.mark.parametrize(("mib", "fits"), [(1, True), (32, True), (33, False)])
def test_a_ring_larger_than_those_timed_is_not_used(mib: int, fits: bool) -> None:
    assert tuning.fits_in_ring(mib * 2**20 // (64 * 64 * 4)) == fits


@pytest.mark.parametrize(("room", "slots"), [(2**25, 8), (2**17, 12)])
def test_where_the_ring_is_too_large_every_key_head_has_a_slot_and_is_converted_at_the_end(monkeypatch, room, slots):
    made: dict[str, tuple[int, ...]] = {}
    note = lambda kernel, grid, *_, **__: made.update({kernel.fn.__name__: grid})  # noqa: E731
    number = tuning.number
    monkeypatch.setattr(tuning, "number", lambda name: room if name == "ring_bytes" else number(name))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=9))
    monkeypatch.setattr(plan, "Launch", lambda *_, **__: None)
    monkeypatch.setattr(tuning, "computes_next_delta", lambda *_: True)
    monkeypatch.setattr(backward_launch, "Launch", note)
    q = torch.zeros(3, 4, 384, 64, dtype=torch.bfloat16)  # 12 key heads of 3 key tiles and 6 fragments
    backward = DqWarpgroupBackward(GluonHopperPlan(q, q, q, False, 0, 1.0), BackwardInputs(*[q] * 6))
    assert backward.zeros == slots * 6 * 4096 + 256
    heads = 4 if slots == 8 else 12  # converted at the end; those that the kernel before computes delta of
    assert made["finish_kernel"] == (heads * 6, 1, 1)
    assert made["prepare_kernel"] == (heads * (384 // configs.PREPARED_ROWS), 1, 1)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_tiles", [1, 4, 7, 64, 100, 128, 1000])
def test_a_key_head_is_converted_only_after_nearly_all_programs_that_may_still_run(key_tiles, causal, window) -> None:
    assert tuning.dq_delay(512, key_tiles, 132, causal, window) * key_tiles >= 116 + key_tiles


@pytest.mark.parametrize(
    ("size", "head_dim", "places", "own"), [(128, 72, 3, 18), (128, 128, 3, 32), (64, 40, 6, 10), (64, 64, 6, 16)]
)
def test_tma_is_told_of_head_dims_own_columns_alone(size: int, head_dim: int, places: int, own: int) -> None:
    counters = 256
    room = torch.arange(6 * 4096 + counters, dtype=torch.float32)
    described = backward_launch.fragments_of(SimpleNamespace(size=size, head_dim=head_dim), room.numel())(room)
    assert (described.shape, described.block_shape) == ([places, own, 256], [1, 16, 256])
    assert described.strides == [6 * 4096 // places, 256, 1]
    columns = torch.arange(6 * 4096).view(places, -1, 64)[:, : -(-head_dim // 8) * 8]  # (place, column, row), nearly
    assert room.as_strided(described.shape, described.strides).flatten().tolist() == columns.flatten().tolist()


@pytest.mark.parametrize("prepared", [3, 2])
def test_delta_is_padded_by_rows_that_weigh_nothing(prepared: int, device: str) -> None:
    out, dout = torch.randn(2, 1, 3, 150, 40, device=device)
    lse = torch.randn(1, 3, 150, device=device)
    lse_padded, delta = torch.full((2, 3, 256), math.nan, device=device)
    numbers, counters = 3 * 4 * 4096, 4096
    fragments = torch.full((numbers + counters + 1,), math.nan, device=device)
    sizes = ((out.stride()[:3], dout.stride()[:3]), 3, 150, 256, 3 * 256, (numbers, numbers + counters))
    constants = (128, 40, 64, 4 * 8192)
    backward_common.prepare_kernel[(prepared * 2,)](out, dout, lse, lse_padded, delta, fragments, *sizes, *constants)
    assert torch.all(fragments[:numbers].view(12, 64, 64)[:, :40] == 0)  # (fragment, column, row), nearly
    assert torch.all(fragments[:numbers].view(12, 64, 64)[:, 40:].isnan())
    assert torch.all(fragments[numbers:-1] == 0)
    assert fragments[-1].isnan()
    wanted = (out * dout).sum(-1)[0]
    torch.testing.assert_close(delta[:prepared, :150], wanted[:prepared], atol=1e-5, rtol=1e-5)
    assert torch.all(delta[:prepared, 150:] == 0)
    assert torch.all(delta[prepared:].isnan())  # programs of the main kernel compute it
    assert torch.equal(lse_padded[:, :150], lse[0])  # of all heads
    assert torch.all(lse_padded[:, 150:] == math.inf)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 64), (8, 2, 128), (2, 2, 256)])
def test_descriptors_of_gradients_side_by_side_are_those_of_the_tensors_that_they_get(
    monkeypatch: pytest.MonkeyPatch, num_heads: int, num_kv_heads: int, head_dim: int, deterministic: bool
) -> None:
    ran = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    monkeypatch.setattr(backward_launch, "run_in_order", ran.extend)
    rows = torch.zeros(2, 512, (num_heads + 2 * num_kv_heads) * head_dim, dtype=torch.bfloat16)
    parts = rows.split([heads * head_dim for heads in (num_heads, num_kv_heads, num_kv_heads)], dim=2)
    q, k, v = (part.unflatten(2, (-1, head_dim)).transpose(1, 2) for part in parts)
    lse, dout = q.new_empty(q.shape[:3], dtype=torch.float32), torch.empty(q.shape, dtype=q.dtype)
    gradients = GluonHopperPlan(q, k, v, False, 0, 1.0).backward(q, k, v, dout, lse, dout)
    assert [x.stride() for x in gradients] == [x.stride() for x in (q, k, v)]
    assert len({x.untyped_storage().data_ptr() for x in gradients}) == 1
    for launch, tensors in ran:
        for make, x in zip(launch._makers, tensors, strict=True):
            if make is not None and x.dim() == 4:
                assert (make(x).shape, make(x).strides) == ([*x.shape], [*x.stride()])
