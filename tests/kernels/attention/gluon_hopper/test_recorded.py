"""Launches recorded at a first call: later ones get the addresses of their own tensors, in the places of the first."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels import launches, parallel_compile
from kernels.attention.gluon_hopper import backward_launch, launch, plan, tuning
from kernels.attention.gluon_hopper.plan import GluonHopperPlan

STREAM = 7
BEFORE = 3 + 1 + 9  # arguments of Triton's launcher before the kernel's: grid, stream, and what surrounds a launch


class Launcher:
    """Stands for Triton 3.6's launcher, and notes what it was called with."""

    def __init__(self, called: list[tuple[Any, ...]]) -> None:
        launcher, tensordesc_meta = (lambda *arguments: called.append(arguments)), [None] * 16
        self.launch = lambda *arguments: launcher(*arguments, tensordesc_meta)
        self.launch_cooperative_grid = self.launch_pdl = False


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    made = SimpleNamespace(run=Launcher(found), packed_metadata=(4, 1, 0), function=1)
    monkeypatch.setattr(launch, "_COMPILED", {})
    monkeypatch.setattr(parallel_compile, "in_c", lambda run: True)
    monkeypatch.setattr(launch, "compiled", lambda warm_up: made)
    monkeypatch.setattr(launch, "compile_side_by_side", lambda *_: None)
    monkeypatch.setattr(launch, "_encode", lambda descriptor, meta: [descriptor.base.data_ptr()])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    few = SimpleNamespace(multi_processor_count=3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: few)
    return found


def names_of(addresses: tuple[Any, ...], tensors: dict[str, torch.Tensor], rooms: list[int]) -> list[str]:
    """Name the address of each tensor of a launch; the order of rooms tells them apart."""
    known = {x.data_ptr(): name for name, x in tensors.items()} | {x: f"room {i}" for i, x in enumerate(rooms)}
    return [known.get(address, str(address)) for address in addresses]


@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads", "kind"),
    [(64, 2, 2, "DqWarpgroupBackward"), (128, 2, 2, "SingleKernelBackward"), (256, 2, 2, "TwoKernelBackward")]
    + [(128, 8, 2, "parts of groups")],
)
def test_a_later_call_launches_what_the_first_did_for_its_own_tensors(
    called: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, head_dim: int, heads: int, kv_heads: int, kind: str
) -> None:
    monkeypatch.setattr(tuning, "has_dq_warpgroup", lambda *_: kind == "DqWarpgroupBackward")
    monkeypatch.setattr(tuning, "group_splits", lambda *_: 2 if kind == "parts of groups" else 1)
    first: list[Any] = []
    noted: list[torch.Tensor] = []
    for module in (plan, backward_launch):
        run = lambda steps, *_: (first.extend(steps), launch.run_in_order(steps))  # noqa: E731
        monkeypatch.setattr(module, "run_in_order", run)
    monkeypatch.setattr(launches.Rooms, "note", lambda self, x: (self.append(x), noted.append(x), x)[2])

    def call(made: GluonHopperPlan | None = None) -> tuple[GluonHopperPlan, dict[str, torch.Tensor]]:
        q, dout = (torch.zeros(1, heads, 300, head_dim, dtype=torch.bfloat16) for _ in range(2))
        k, v = (torch.zeros(1, kv_heads, 300, head_dim, dtype=torch.bfloat16) for _ in range(2))
        made = made or GluonHopperPlan(q, k, v, False, 0, 1.0)
        out, lse = made.forward(q, k, v)
        gradients = made.backward(q, k, v, out, lse, dout)
        names = ("q", "k", "v", "dout", "out", "lse", "dq", "dk", "dv")
        return made, dict(zip(names, (q, k, v, dout, out, lse, *gradients), strict=True))

    made, tensors = call()
    called.clear()
    wanted = [names_of([x.data_ptr() for x in used], tensors, [x.data_ptr() for x in noted]) for _, used in first]
    allocated: list[torch.Tensor] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: (allocated.append(empty(*a, **k)), allocated[-1])[1])
    _, others = call(made)
    assert {x.data_ptr() for x in others.values()}.isdisjoint(x.data_ptr() for x in tensors.values())
    rooms = _rooms([x for x in allocated if x.dtype == torch.uint8], noted)
    found = [
        names_of(each[BEFORE : BEFORE + len(names)], others, rooms) for each, names in zip(called, wanted, strict=True)
    ]
    assert found == wanted
    assert {each[3] for each in called} == {STREAM}


def _rooms(allocated: list[torch.Tensor], noted: list[torch.Tensor]) -> list[int]:
    """Return where the rooms of the first call are in the allocations of a later one, in their order."""
    found: list[int] = []
    left = [x.untyped_storage().nbytes() for x in noted]
    for room in allocated:
        begin = room.data_ptr()
        while left and begin + left[0] <= room.data_ptr() + room.numel():
            found.append(begin)
            begin += -(-left.pop(0) // 256) * 256
    assert not left
    return found


def test_a_tensor_given_twice_is_told_apart_in_later_calls(called: list[tuple[Any, ...]]) -> None:
    q = torch.zeros(1, 1, 256, 64, dtype=torch.bfloat16)
    made = GluonHopperPlan(q, q, q, False, 0, 1.0)
    made.forward(q, q, q)
    called.clear()
    tensors = [torch.zeros_like(q) for _ in range(3)]
    made.forward(*tensors)
    assert list(called[0][BEFORE : BEFORE + 3]) == [x.data_ptr() for x in tensors]


def test_a_kernel_serves_other_lengths_but_no_other_mask_or_dtype(called, monkeypatch) -> None:
    made, compile_kernel = [], launch.compiled
    monkeypatch.setattr(launch, "compiled", lambda warm_up: made.append(warm_up) or compile_kernel(warm_up))
    numbers = []
    for length, causal, dtype in ((300, True, 0), (417, True, 0), (496, True, 0), (300, False, 0), (300, True, 1)):
        q = torch.zeros(1, 1, length, 128, dtype=(torch.bfloat16, torch.float16)[dtype])
        GluonHopperPlan(q, q, q, causal, 0, 1.0).forward(q, q, q)
        numbers.append(len(made))
    assert numbers == [1, 1, 1, 2, 3] and len(called) == 5


def test_arguments_of_the_same_addresses_are_made_once(called: list[tuple[Any, ...]], monkeypatch) -> None:
    q = torch.zeros(1, 1, 256, 64, dtype=torch.bfloat16)
    made = GluonHopperPlan(q, q, q, False, 0, 1.0)
    encoded: list[Any] = []
    monkeypatch.setattr(launch, "_encode", lambda descriptor, meta: encoded.append(meta) or [0])
    out, lse = made.forward(q, q, q)
    monkeypatch.setattr(torch, "empty_like", lambda x: out)
    monkeypatch.setattr(torch, "empty_strided", lambda *_, **__: lse)
    for _ in range(3):
        made.forward(q, q, q)
    assert len(called) == 4
    assert 0 < len(encoded) <= 4


def test_wide_heads_keep_p_by_parts_of_the_heads_or_compute_scores_twice(called, monkeypatch) -> None:
    q, k, v = (torch.zeros(1, 4, 200, 512, dtype=torch.bfloat16) for _ in range(3))
    for heads, slower, parts in ((4, 1.5, [8]), (3, 1.5, [6, 2]), (3, 0.9, []), (0, 1.5, [])):  # parts: tiles
        known = {"kept_bytes": heads * 8 * 128 * (64 * 2 + 4), "kept_time": slower}  # a head has 8 blocks, and factors
        monkeypatch.setattr(tuning, "number", lambda name, known=known, of=tuning.number: known.get(name, of(name)))
        forward = GluonHopperPlan(q, k, v, False, 0, 1.0)._forward
        assert [launches[1]._grid[0] for launches in forward._launches if parts] == [min(3, n) for n in parts]
        assert forward._n_blocks == 4 * max(parts, default=0)
    kernels = [launch._kernel for launch in forward._launches[0]]
    assert kernels == [plan.forward_kernel] * 2
    known["kept_bytes"] = 1 << 20
    forward = GluonHopperPlan(q, k, v, False, 0, 1.0)._forward
    monkeypatch.setattr(forward, "_rooms", lambda like: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError()))
    forward(q, k, v)
    assert [launch._kernel for launch in forward._launches[0]] == kernels, "memory is short"
