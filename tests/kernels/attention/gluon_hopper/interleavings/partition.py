"""A partition of a program: a thread that runs only while it is told to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.kernels.attention.gluon_hopper.interleavings.memory import NamedBarrier, Slot


class Partition:
    """Its warps arrive at named barriers each for itself, soon after the others: `late` are those that have not yet."""

    def __init__(
        self, program: Any, number: int, warps: int, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self._program, self.number, self.warps = program, number, warps
        self.ended, self._abandoned = False, False
        self.condition, self.waits_for = lambda: True, "its start"
        self.products: deque[list[Slot]] = deque()
        self.stores: deque[list[Slot]] = deque()
        self.late: list[tuple[NamedBarrier, int]] = []
        self.turn = threading.Lock()  # free while its thread may run
        self.turn.acquire()
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.turn.acquire()
        try:
            if not self._abandoned:
                function(*arguments)
                self.ended = True
                self._program.next_turn().release()
        except SystemExit:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the program runs
            self.ended, self._program.error = True, error
            self._program.over.release()

    def abandon(self) -> None:
        """End it wherever it is."""
        if not self.ended:
            self._abandoned = True
            self.turn.release()
            self._thread.join()

    def pause(self, condition: Callable[[], bool], what: str) -> None:
        """Let others run, at least until the condition holds."""
        self.condition, self.waits_for = condition, what
        turn = self._program.next_turn()
        if turn is not self.turn:
            turn.release()
            self.turn.acquire()
            if self._abandoned:
                raise SystemExit

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
