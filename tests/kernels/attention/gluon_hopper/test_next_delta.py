"""delta of the Hopper backward with a dQ warpgroup, computed by programs of earlier key heads: the kernel's own code
with real numbers, and when a program computes, waits and counts itself."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import backward_dq_warpgroup, configs, tuning
from kernels.attention.gluon_hopper.backward_common import BackwardShape
from kernels.attention.gluon_hopper.backward_dq_warpgroup import NextDelta, OutStrides
from kernels.attention.gluon_hopper.backward_launch import DqWarpgroupBackward
from tests.kernels.attention.gluon_hopper import test_partitions_backward
from tests.kernels.attention.gluon_hopper.interleavings.registers import Number, Value
from tests.kernels.attention.gluon_hopper.interleavings.translation import as_python, numbers
from tests.kernels.attention.gluon_hopper.test_partitions_backward import launches_of, run


class Memory:
    """Numbers of global memory, from an address on; what is written twice is no number any more."""

    def __init__(self, content: torch.Tensor, at: Any = 0) -> None:
        self.content, self.at = content, at

    def __add__(self, steps: Any) -> Memory:
        return Memory(self.content, self.at + steps)

    def read(self, mask: torch.Tensor, other: float, **hints: str) -> torch.Tensor:
        """Where the mask allows it; elsewhere nothing need be there."""
        at, mask = torch.broadcast_tensors(self.at, mask.bool())
        return torch.where(mask, self.content[torch.where(mask, at, 0)], other)

    def write(self, values: torch.Tensor) -> None:
        """At fresh addresses."""
        self.content[self.at] = torch.where(self.content[self.at].isnan(), values, math.inf)


def language(place: tuple[int, int, int], grid: tuple[int, int, int]) -> dict[str, Any]:
    """What the kernel's code means by the names of Gluon."""
    gluon = SimpleNamespace(
        program_id=lambda axis: Number(place[axis]),
        num_programs=lambda axis: Number(grid[axis]),
        arange=lambda start, end, layout: torch.arange(start, end),
        load=Memory.read,
        store=Memory.write,
        sum=torch.sum,
        BlockedLayout=lambda *_: None,
        SliceLayout=lambda *_: None,
        int32=torch.int32,
        int64=torch.int64,
        float32=torch.float32,
    )
    return {"gl": gluon, "range": numbers, "mbarrier": SimpleNamespace(arrive=lambda bar, count: None)}


@pytest.mark.parametrize("head_dim", [64, 128, 40])
@pytest.mark.parametrize(
    ("batch", "kv_heads", "group_size", "seqlen_q", "key_tiles", "delay"),
    [(1, 5, 1, 512, 4, 2), (2, 3, 4, 200, 3, 1), (3, 1, 2, 1, 5, 2), (1, 4, 3, 130, 1, 1), (2, 2, 1, 700, 12, 5)],
)
def test_programs_of_earlier_key_heads_compute_delta_of_every_row_once(
    batch: int, kv_heads: int, group_size: int, seqlen_q: int, key_tiles: int, delay: int, head_dim: int
) -> None:
    size, num_heads = configs.padded_head_dim(head_dim), kv_heads * group_size
    block_m = tuning.backward_tiles("sums", size).block_m
    padded_q = -(-seqlen_q // block_m) * block_m
    out = torch.randn(batch, seqlen_q, num_heads, head_dim + 8)[..., :head_dim].transpose(1, 2)
    dout = torch.randn(batch, num_heads, seqlen_q, head_dim)
    beyond = torch.full((64,), math.nan)
    tensors = [
        Memory(torch.cat((torch.as_strided(x, (x.untyped_storage().nbytes() // 4,), (1,)), beyond)))
        for x in (out, dout)
    ]
    delta = torch.full((batch * num_heads * padded_q,), math.nan)
    strides = OutStrides(*out.stride()[:3], *dout.stride()[:3])
    next_delta = NextDelta(*tensors, Memory(delta), None, delay, strides)
    shape = BackwardShape(*map(Number, (num_heads, group_size, seqlen_q, 1, padded_q, padded_q // block_m, 0)))
    config = SimpleNamespace(head_dim=size, unpadded_head_dim=head_dim)
    for kv_head in range(batch * kv_heads):
        for tile in range(key_tiles):
            names = language((tile, kv_head % kv_heads, kv_head // kv_heads), (key_tiles, kv_heads, batch))
            for consumer in range(2):
                share = (next_delta, Number(kv_head), shape, config)
                rows = as_python(backward_dq_warpgroup.read_next_rows, names)(consumer, *share)
                as_python(backward_dq_warpgroup.write_next_delta, names)(consumer, *rows, *share)
    found = delta.view(batch * num_heads, padded_q)
    wanted = torch.zeros(batch, num_heads, padded_q)
    wanted[:, :, :seqlen_q] = (out * dout).sum(-1)
    torch.testing.assert_close(
        found[delay * group_size :], wanted.flatten(0, 1)[delay * group_size :], atol=1e-4, rtol=1e-4
    )
    assert torch.all(found[: delay * group_size].isnan())  # prepare_kernel's


class Watched:
    """A tensor, or the descriptor of one, that notes its use."""

    def __init__(self, note: Any, like: Any) -> None:
        self._note, self._like = note, like

    def __getattr__(self, name: str) -> Any:
        if name == "block_type":  # of a tile that is loaded
            self._note()
        return getattr(self._like, name)

    def __add__(self, steps: Any) -> Value:
        self._note()
        return Value()


def events_of(
    launch: tuple[Any, ...], tile: int, kv_head: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """What a program does about delta and the counters, in its order."""
    events: list[Any] = []
    notes = {"delta_desc": lambda: events.append("read"), "delta": lambda: events.append("written")}
    make = test_partitions_backward._tensor

    def watched(name: str, maker: Any) -> Any:
        return Watched(notes[name], make(name, maker)) if name in notes else make(name, maker)

    with monkeypatch.context() as patch:
        patch.setattr(test_partitions_backward, "_tensor", watched)
        patch.setattr(backward_dq_warpgroup, "counter_of", lambda kv_head, *_: kv_head)
        patch.setattr(
            backward_dq_warpgroup, "await_programs", lambda kv_head, programs: events.append(("awaited", int(kv_head)))
        )
        patch.setattr(backward_dq_warpgroup, "count_finished", lambda head: events.append(("counted", int(head))))
        run(launch, tile, seed, kv_head)
    return events


@pytest.mark.parametrize("mask", [(False, 0), (True, 0), (False, 70)])  # the last: no query sees most keys
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(300, 300), (130, 1000), (500, 100)])
def test_delta_is_read_when_its_key_head_has_been_awaited_and_written_before_a_program_counts_itself(
    seqlen_q: int, seqlen_k: int, head_dim: int, mask: tuple[bool, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    group_size, n_kv_heads, delay = 2, 3, 1
    monkeypatch.setattr(tuning, "computes_next_delta", lambda *_: True)
    (launch,) = launches_of(
        DqWarpgroupBackward, head_dim, (n_kv_heads * group_size, n_kv_heads, seqlen_q, seqlen_k), mask
    )
    block_m = tuning.backward_tiles("sums", head_dim).block_m
    rows = group_size * -(-seqlen_q // block_m) * block_m // backward_dq_warpgroup.ROWS.value
    for tile in range(launch[1][0]):
        for kv_head in range(n_kv_heads):
            share = [*range(2 * tile, rows, 2 * launch[1][0]), *range(2 * tile + 1, rows, 2 * launch[1][0])]
            events = events_of(launch, tile, kv_head, tile, monkeypatch)
            assert events.count("written") == (len(share) if kv_head + delay < n_kv_heads else 0)
            assert events[-1] == ("counted", kv_head)
            if "read" in events and kv_head >= delay:
                assert events.index(("awaited", kv_head - delay)) < events.index("read")
