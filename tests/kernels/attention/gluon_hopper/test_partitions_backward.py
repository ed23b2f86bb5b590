"""The barriers of the Hopper backward's kernels: their own code, run on the CPU in random orders (interleavings)."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import (
    backward,
    backward_dq_warpgroup,
    backward_launch,
    backward_two_kernels,
    configs,
    plan,
    tuning,
)
from kernels.attention.gluon_hopper.backward_launch import (
    BackwardInputs,
    DqWarpgroupBackward,
    SingleKernelBackward,
    SplitTiles,
    TwoKernelBackward,
)
from kernels.attention.gluon_hopper.plan import GluonHopperPlan
from tests.kernels.attention.gluon_hopper.interleavings.memory import Broken
from tests.kernels.attention.gluon_hopper.interleavings.program import Program
from tests.kernels.attention.gluon_hopper.interleavings.registers import Pointer, Value, as_arguments

KINDS = [
    *((DqWarpgroupBackward, head_dim) for head_dim in (64, 80, 128)),
    (SingleKernelBackward, 128),
    *((TwoKernelBackward, head_dim) for head_dim in (64, 128, 160, configs.WIDE_KEYS, 256)),
]
SHAPES = [(2, 1, 200, 300), (2, 2, 256, 384), (2, 1, 700, 700)]  # heads, key heads, queries, keys
MASKS = [(False, 0), (True, 0), (True, 70)]  # causal, window_size


def launches_of(kind: Any, head_dim: int, shape: tuple[int, ...], mask: tuple[bool, int]) -> list[tuple[Any, ...]]:
    """What the launches of the specialised kernels are made of."""
    heads, kv_heads, seqlen_q, seqlen_k = shape
    q = torch.zeros(1, heads, seqlen_q, head_dim, dtype=torch.bfloat16)
    k = torch.zeros(1, kv_heads, seqlen_k, head_dim, dtype=torch.bfloat16)
    made: list[tuple[Any, ...]] = []
    split: list[SplitTiles] = []
    few = SimpleNamespace(multi_processor_count=3)
    note = lambda *arguments, **_: made.append(arguments)  # noqa: E731
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda device: few),
        mock.patch.object(tuning, "dq_delay", lambda *_: 1),
        mock.patch.object(plan, "Launch", lambda *_, **__: None),
        mock.patch.object(backward_launch, "Launch", note),
        mock.patch.object(backward_launch, "SplitTiles", lambda *sizes: split.append(SplitTiles(*sizes)) or split[-1]),
    ):
        v, dout = (x[..., : configs.values_head_dim(head_dim)] for x in (k, q))
        kind(GluonHopperPlan(q, k, v, *mask, 1.0), BackwardInputs(q, k, v, dout, q, dout))
    found = [launch for launch in made if launch[0].arg_names[0] == "q_desc"]
    assert found
    return [(*launch, *(tiles.table for tiles in split)) for launch in found]


def run(launch: tuple[Any, ...], number: int, seed: int, head: int = 0, watch: Any = None) -> Program:
    """One program of a launch, its arguments as the model has them."""
    kernel, grid, _, makers, rest, *tables = launch
    values = [_tensor(name, maker) for name, maker in zip(kernel.arg_names, makers, strict=False)]
    for table in tables:
        values[kernel.arg_names.index("split_table")] = Pointer(table)
    values += as_arguments(rest)
    program = Program(number, grid[0], seed, head, grid[1])
    if watch:
        watch(program)
    program.run(kernel, values)
    return program


def _tensor(name: str, maker: Any) -> Any:
    if maker is None:
        return Value()
    block = vars(maker)["_fields"]["block_shape"]
    size = math.prod(block) * (2 if len(block) == 4 else 4)
    return SimpleNamespace(name=name, dtype="bfloat16", layout=None, block_type=SimpleNamespace(nbytes=size))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "head_dim"), KINDS)
def test_no_order_of_the_partitions_breaks_a_rule(kind, head_dim, shape, mask, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "computes_next_delta", lambda size, *_: size == 64)
    for launch in launches_of(kind, head_dim, shape, mask):
        heads = 1 if kind is SingleKernelBackward else launch[1][1]  # others' programs work for other heads, or tiles
        for number, head in itertools.product(range(launch[1][0]), range(heads)):
            for seed in range(3):
                run(launch, number, seed, head)


@pytest.mark.parametrize("shape", [(2, 2, 256, 300), (4, 2, 700, 256), (2, 2, 900, 77)])
@pytest.mark.parametrize("kind", [DqWarpgroupBackward, SingleKernelBackward])
def test_no_order_of_the_partitions_of_a_split_tile_breaks_a_rule(kind, shape, monkeypatch) -> None:
    few = shape[3] < 100  # tiles for three multiprocessors
    monkeypatch.setattr(tuning, "tiles_to_split", lambda n_tiles, _, programs: n_tiles if few else n_tiles - programs)
    *whole, split = launches_of(kind, 128, shape, (False, 0))
    assert [launch[1][0] for launch in whole] == ([] if few else [3])
    assert split[1][0] > 0
    for launch in (*whole, split):
        for number in range(launch[1][0]):
            for seed in range(3):
                run(launch, number, seed)


@pytest.mark.parametrize(
    ("kind", "head_dim", "module", "left_out"),
    [
        (DqWarpgroupBackward, 64, backward_dq_warpgroup, "wait_at"),
        (SingleKernelBackward, 128, backward, "wait_at"),
        (SingleKernelBackward, 128, backward, "arrive_at"),
    ],
)
def test_a_wait_or_an_arrival_that_is_left_out_is_found(kind, head_dim, module, left_out, monkeypatch) -> None:
    monkeypatch.setattr(module, left_out, lambda *_: None)
    (launch,) = launches_of(kind, head_dim, SHAPES[-1], (False, 0))
    with pytest.raises(Broken):
        for seed in range(20):
            run(launch, 0, seed)


@pytest.mark.parametrize("head_dim", [64, 128, 160, configs.WIDE_KEYS, 256])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", MASKS)
def test_keys_await_as_many_programs_as_count_themselves_when_both_halves_of_their_rows_are_stored(
    head_dim: int, shape: tuple[int, ...], mask: tuple[bool, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys = launches_of(TwoKernelBackward, head_dim, shape, mask)
    events: list[str] = []
    awaited: set[int] = set()
    monkeypatch.setattr(backward_two_kernels, "store_rows", lambda *_: events.append("stored"))
    monkeypatch.setattr(backward_two_kernels, "count_program", lambda counter: events.append("counted"))
    monkeypatch.setattr(backward_two_kernels, "await_programs", lambda counter, programs: awaited.add(programs))
    for number, head in itertools.product(*map(range, queries[1][:2])):
        events.clear()
        run(queries, number, number, head)
        assert events == ["stored"] * 4 + ["counted"]  # lse and delta of two warpgroups
    for number, head in itertools.product(*map(range, keys[1][:2])):
        run(keys, number, 0, head)
    assert awaited == {math.prod(queries[1]) // shape[1]}


@pytest.mark.parametrize("mask", MASKS)
def test_no_row_of_the_kernel_before_is_loaded_before_it_is_awaited(mask, monkeypatch) -> None:
    keys = launches_of(TwoKernelBackward, 256, SHAPES[-1], mask)[1]
    programs: list[Program] = []
    loaded: list[int] = []

    def note(*_: Any) -> None:
        loaded.append(programs[-1].loaded["lse_desc"] + programs[-1].loaded["delta_desc"])

    monkeypatch.setattr(backward_two_kernels, "await_programs", note)
    for number, head in itertools.product(*map(range, keys[1][:2])):
        run(keys, number, 0, head, programs.append)
        assert programs[-1].loaded["lse_desc"] > 0
    assert loaded == [0] * len(programs)
