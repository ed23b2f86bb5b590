"""Runs a warp-specialised kernel's own Python on the CPU, for the order of its reads and writes alone.

Each partition is a coroutine, and at every wait and product a dice says who goes on, some being favoured. What breaks a
rule raises Broken:
- a tile is loaded or stored while a product or a store still reads it, or what it held before its load came is kept;
- an arrival at an mbarrier in a phase before anybody has waited for the one before (PTX ISA, "Phase of the mbarrier
  object"), more arrivals than it counts, or a wait that sees the phase after the one that it is for;
- a wait at a named barrier to which a warp came twice before all others had come;
- all wait.

Parts of tiles, and programs that wait for each other, are beyond it.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.kernels.attention.gluon_hopper.interleavings.memory import Broken, Mbarrier, NamedBarrier, Slot, Tile, keep
from tests.kernels.attention.gluon_hopper.interleavings.partition import Partition
from tests.kernels.attention.gluon_hopper.interleavings.registers import Number, Pointer, Unread, Value
from tests.kernels.attention.gluon_hopper.interleavings.translation import as_python, numbers

WARPS = 4  # of the partition that loads


class Program:
    """One program of a kernel: its partitions, taken in turns by a dice."""

    def __init__(self, number: int, programs: int, seed: int, head: int = 0, heads: int = 1) -> None:
        self.place, self.grid, self.dice = (number, head, 0), (programs, heads, 1), random.Random(seed)
        self.loads: deque[tuple[Slot, Mbarrier, int]] = deque()
        self.named: dict[int, NamedBarrier] = {}
        self.partitions: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []  # with their warps
        self.read: dict[int, list[list[tuple[str, int, int]]]] = {}  # by partition, the loads of its products' factors
        self.loaded: Counter[str] = Counter()
        self.mbarriers: list[Mbarrier] = []
        self.tasks: list[Partition] = []

    def run(self, kernel: Any, arguments: list[Any]) -> None:
        """The kernel, then its partitions side by side until all have ended."""
        as_python(kernel, hardware_of(self))(*arguments)
        self.tasks = [Partition(self, at, *partition) for at, partition in enumerate(self.partitions)]
        self.favour = [self.dice.random() ** 3 for _ in range(len(self.tasks) + 1)]
        try:
            while task := self.next_turn():
                task.go_on()
        finally:
            for task in self.tasks:
                task.abandon()

    def next_turn(self) -> Partition | None:
        """The partition that goes on next, until which loads end and warps arrive; None when all have ended."""
        while left := [task for task in self.tasks if not task.ended]:
            choices: list[Partition | None] = [task for task in left if task.condition()]
            if self.loads:
                choices.append(None)
            late = [task for task in self.tasks if task.late]
            if not choices and not late:
                raise Broken("all wait: " + ", ".join(task.waits_for for task in left))
            if late and (not choices or self.dice.random() < 0.2):
                self.dice.choice(late).deliver()
                continue
            weights = [self.favour[task.number] if task else self.favour[-1] for task in choices]
            chosen = self.dice.choices(choices, weights)[0]
            if chosen:
                self.task = chosen
                return chosen
            self._finish_load()
        return None

    def _finish_load(self) -> None:
        at = self.dice.randrange(len(self.loads))
        slot, barrier, size = self.loads[at]
        del self.loads[at]
        slot.loading, barrier.bytes = slot.loading - 1, barrier.bytes - size
        barrier.end()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let others go on until it holds."""
        self.task.pause(condition, what)

    def specialize(self, partitions: list[tuple[Any, ...]], warps: list[int], registers: list[int]) -> None:
        """gl.warp_specialize"""
        self.partitions = [(own, *partition) for own, partition in zip([WARPS, *warps], partitions, strict=True)]

    def init(self, bar: Tile, count: int) -> None:
        """mbarrier.init"""
        (place,) = bar.parts
        place.__class__ = Mbarrier
        place.__init__(count)
        self.mbarriers.append(place)

    def wait(self, bar: Tile, parity: int) -> None:
        """mbarrier.wait"""
        barrier, me = bar.only, self.task.number
        wanted = barrier.wanted(me, parity)
        self.wait_until(lambda: barrier.completed >= wanted, f"phase {wanted} of an mbarrier")
        barrier.heard(me, wanted)

    def arrive(self, bar: Tile, count: int = 1, pred: bool = True) -> None:
        """mbarrier.arrive: all warps of a partition have come."""
        self.task.converge()
        if pred:
            bar.only.arrive(count)

    def expect(self, bar: Tile, size: int) -> None:
        """mbarrier.expect"""
        self.task.converge()
        bar.only.bytes += size
        bar.only.arrive()

    def load(self, descriptor: Any, place: Any, bar: Tile, tile: Tile) -> None:
        """By TMA."""
        slot = tile.only
        if tile.box is None or tile.box in slot.boxes or not slot.boxes:  # the first box of a tile
            slot.overwrite()
            slot.load, slot.boxes = (descriptor.name, self.loaded[descriptor.name], self.loaded["q"]), set()
            self.loaded[descriptor.name] += 1
        slot.boxes.add(tile.box)
        slot.loading += 1
        self.loads.append((slot, bar.only, descriptor.block_type.nbytes))

    def product(self, a: Any, b: Any, acc: Any, use_acc: Any = True, is_async: bool = False) -> Value:
        """Begin one; what it reads must stay until it is waited for."""
        keep(a, acc)
        self.task.converge()
        slots = [operand.only for operand in (a, b) if isinstance(operand, Tile)]
        for slot in slots:
            slot.readers += 1
        unread = any(slot.loading or slot.load is None for slot in slots)
        self.read.setdefault(self.task.number, []).append([slot.load for slot in slots])
        self.task.products.append(slots)
        self.wait_until(lambda: True, "")
        return Unread() if unread else Value()

    def product_wait(self, left: int, deps: tuple[Any, ...]) -> Any:
        """Until no more than these are under way."""
        self.task.finish(self.task.products, left)
        return deps[0] if len(deps) == 1 else deps

    def store(self, descriptor: Any, place: Any, tile: Tile) -> None:
        """By TMA, from shared memory."""
        tile.only.readers += 1
        self.task.stores.append([tile.only])

    def store_wait(self, left: int) -> None:
        """Until no more than these still read shared memory."""
        self.task.finish(self.task.stores, left)

    def assembler(self, code: str, constraints: str, arguments: Any, dtype: Any = None, *_: int, **__: Any) -> Any:
        """PTX: named barriers, and a zero; all else is of registers."""
        if found := re.match(r"bar\.(sync|arrive) (\$1|\d+), (\d+);", code):
            kind, number, total = found.groups()
            self.bar(kind, int(arguments[0] if number == "$1" else number), int(total))
        elif code.startswith("mov.u32 $0, 0;"):
            return Number(0)
        return tuple(Value() for _ in dtype) if isinstance(dtype, tuple) else Value()

    def bar(self, kind: str, number: int, total: int) -> None:
        """A named barrier, at which each warp arrives for itself, soon after the others."""
        barrier = self.named.setdefault(number, NamedBarrier(number, total))
        if barrier.total != total:
            raise Broken(f"barrier {number} counts {barrier.total} and {total}")
        task, before = self.task, barrier.rounds
        if kind == "arrive":
            task.late.extend((barrier, warp) for warp in range(task.warps))
            return
        task.converge()
        for warp in range(task.warps):
            barrier.come(task.number, warp)
        self.wait_until(lambda: barrier.rounds > before, f"others at barrier {number}")
        barrier.left()


def hardware_of(program: Program) -> dict[str, Any]:
    language = {
        "static_range": numbers,
        "minimum": lambda a, b: min(a, b) if isinstance(a, int) and isinstance(b, int) else Value(),
        "maximum": lambda a, b: max(a, b) if isinstance(a, int) and isinstance(b, int) else Value(),
        "cdiv": lambda a, b: Number(-(-int(a) // int(b))),
        "to_tensor": lambda x: Number(x) if isinstance(x, int) else x,
        "load": lambda at, *_, **__: Number(at.numbers[at.at]) if isinstance(at, Pointer) else Value(),
        "store": lambda at, value, *_, **__: keep(value),
        "program_id": lambda axis: Number(program.place[axis]),
        "num_programs": lambda axis: Number(program.grid[axis]),
        "allocate_shared_memory": lambda dtype, shape, layout: Tile([Slot() for _ in range(shape[0])], dtype),
        "inline_asm_elementwise": program.assembler,
        "warp_specialize": program.specialize,
    }
    return {
        "gl": _Language(language),
        "range": numbers,
        "mbarrier": SimpleNamespace(
            MBarrierLayout=Value, init=program.init, wait=program.wait, arrive=program.arrive, expect=program.expect
        ),
        "tma": SimpleNamespace(store_wait=program.store_wait),
        "tma_load": program.load,
        "tma_store": program.store,
        "tma_add": program.store,
        "reinterpret": lambda tile, dtype, shape, layout: tile.in_boxes(shape[0] // len(tile.parts)),
        "run_ptx": program.assembler,
        "fence_async_shared": lambda: None,
        "partition_sync": lambda: None,
        "warpgroup_mma": program.product,
        "warpgroup_mma_wait": program.product_wait,
    }


class _Language:
    """triton.language, of which what is not named gives a tensor."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        return Value()
