"""Shared memory: tiles, whose contents are the number of their load, and barriers."""

from __future__ import annotations

from typing import Any

from tests.kernels.attention.gluon_hopper.interleavings.registers import Unread, Value


class Broken(AssertionError):
    """A rule was broken."""


STORED = ("", 0, 0)  # instead of a load


class Slot:
    """A tile of shared memory."""

    def __init__(self) -> None:
        self.load: tuple[str, int, int] | None = None  # of what, the number of its load, and how many tiles had begun
        self.loading, self.readers = 0, 0  # how many loads, and products, are under way
        self.boxes: set[int | None] = set()  # of the last load

    def overwrite(self) -> None:
        """Begin to load or store."""
        if self.readers or self.loading:
            raise Broken("a tile is written while it is read or loaded")


class Mbarrier:
    """Counts arrivals and bytes."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.completed = self.seen = 0
        self._known: dict[int, int] = {}  # completed phases at a partition's last wait

    def arrive(self, number: int = 1) -> None:
        """Some arrivals."""
        if self.seen < self.completed:
            raise Broken("an arrival in a phase before anybody has waited for the one before")
        self.pending -= number
        if self.pending < 0:
            raise Broken("more arrivals than the mbarrier counts")
        self.end()

    def wanted(self, partition: int, parity: int) -> int:
        """How many phases will be complete when its wait for this parity ends."""
        known = self._known.get(partition, 0)
        return known + ((known & 1) == parity)

    def heard(self, partition: int, wanted: int) -> None:
        """The wait has ended."""
        if self.completed > wanted:
            raise Broken("a wait that sees the phase after the one that it is for")
        self._known[partition] = self.seen = wanted

    def end(self) -> None:
        """The phase, if nothing is left."""
        if self.pending == 0 and self.bytes == 0:
            self.completed, self.pending = self.completed + 1, self.count


def keep(*values: Any) -> None:
    """In memory or in an accumulator, whatever depends on it."""
    if any(isinstance(value, Unread) for value in values):
        raise Broken("a tile is read before it is loaded")


class NamedBarrier:
    """Counts warps, of which none may come twice to one round."""

    def __init__(self, number: int, total: int) -> None:
        self.number, self.total, self.rounds = number, total, 0
        self.muddled = False  # a warp came twice
        self._come: list[tuple[int, int]] = []

    def come(self, partition: int, warp: int) -> None:
        """A warp."""
        self.muddled |= (partition, warp) in self._come
        self._come.append((partition, warp))
        if 32 * len(self._come) == self.total:
            self._come, self.rounds = [], self.rounds + 1

    def left(self) -> None:
        """By those who waited."""
        if self.muddled:
            raise Broken(f"a warp came to barrier {self.number} twice before all others had come")


class Tile:
    """A view of one or several slots, or barriers, of shared memory."""

    shape = (1, 1, 1, 1, 1)  # nobody counts rows or columns

    def __init__(self, parts: list[Any], dtype: Any, whole: Slot | None = None, boxes: int = 1) -> None:
        self.parts, self.dtype, self.whole, self.boxes = parts, dtype, whole, boxes
        self.box: int | None = None  # a part of its slot, which is loaded alone

    def index(self, number: int) -> Tile:
        """One of them."""
        found = Tile([self.parts[number // self.boxes]], self.dtype)
        found.box = number % self.boxes if self.boxes > 1 else None
        return found

    def in_boxes(self, boxes: int) -> Tile:
        """The same slots, of which each is so many boxes."""
        return Tile(self.parts, self.dtype, boxes=max(1, boxes))

    def reshape(self, shape: Any) -> Tile:
        """The same."""
        return self

    permute = reshape

    @property
    def only(self) -> Any:
        """What it is a view of."""
        return self.parts[0]

    def slice(self, start: int, length: int, dim: int = 0) -> Tile:
        """A part of it, of which nobody keeps track."""
        part = Slot()
        part.load = self.only.load or STORED
        return Tile([part], self.dtype, self.only)

    def load(self, layout: Any) -> Value:
        """To registers."""
        return Unread() if self.only.loading else Value()

    def store(self, value: Any) -> None:
        """From registers."""
        keep(value)
        self.only.overwrite()
        for slot in filter(None, (self.only, self.whole)):
            slot.load = slot.load or STORED
