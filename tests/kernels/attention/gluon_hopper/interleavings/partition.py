"""A partition of a program: a coroutine that runs until another one takes its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import greenlet

from tests.kernels.attention.gluon_hopper.interleavings.memory import NamedBarrier, Slot


class Partition:
    """Its warps arrive at named barriers each for itself, soon after the others: `late` are those that have not yet."""

    def __init__(
        self, program: Any, number: int, warps: int, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self._program, self.number, self.warps = program, number, warps
        self.ended = False
        self.condition, self.waits_for = lambda: True, "its start"
        self.products: deque[list[Slot]] = deque()
        self.stores: deque[list[Slot]] = deque()
        self.late: list[tuple[NamedBarrier, int]] = []
        self._coroutine = greenlet(partial(self._run, function, arguments))  # the program gets what it raises

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        function(*arguments)
        self.ended = True

    def go_on(self) -> None:
        """Let it run; returns to the program when a partition has ended."""
        self._coroutine.switch()

    def abandon(self) -> None:
        """End it wherever it is."""
        if not self._coroutine.dead:
            self._coroutine.throw()

    def pause(self, condition: Callable[[], bool], what: str) -> None:
        """Let others run, at least until the condition holds."""
        self.condition, self.waits_for = condition, what
        turn = self._program.next_turn()
        if turn is not self:
            turn.go_on()

    def converge(self) -> None:
        """All warps stand here."""
        while self.late:
            self.deliver(0)

    def deliver(self, at: int | None = None) -> None:
        """The arrival of one warp, which keeps the order of its own."""
        warps = [warp for _, warp in self.late]
        at = warps.index(self._program.dice.choice(warps)) if at is None else at
        barrier, warp = self.late.pop(at)
        barrier.come(self.number, warp)

    def finish(self, under_way: deque[list[Slot]], left: int) -> None:
        """The oldest of what is under way."""
        self.pause(lambda: True, "")
        while len(under_way) > left:
            for slot in under_way.popleft():
                slot.readers -= 1
