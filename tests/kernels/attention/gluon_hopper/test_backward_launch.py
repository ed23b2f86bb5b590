"""Launches that follow one another: their kernels are compiled at the same time, once, and they run in their order."""

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from triton import AsyncCompileMode
from triton.runtime._async_compile import active_mode

from kernels.attention.gluon_hopper.launch import run_in_order

SECONDS = 20  # that a compiler waits for the others before it gives up
TENSOR = torch.zeros(1)


class Launch:
    """Notes when it is compiled and run."""

    def __init__(self, name: str, noted: list[str], compiler: Callable[[], object] = lambda: "compiled") -> None:
        self._name, self._noted, self._compiler = name, noted, compiler
        self.ran = False

    def is_new(self, tensor: torch.Tensor) -> bool:
        return not self.ran

    def warm_up(self, tensor: torch.Tensor) -> Any:
        """As Triton does it in an AsyncCompileMode."""
        submit = active_mode.get().submit
        wanted = len(inspect.signature(submit).parameters)  # from 3.9 on one more, for what fails
        return submit(self._name, self._compiler, *[self._done, lambda future: None][: wanted - 2])

    def _done(self, kernel: object) -> None:
        self._noted.append("compiled")

    def __call__(self, tensor: torch.Tensor) -> None:
        self._noted.append(self._name)
        self.ran = True


def test_kernels_are_compiled_at_once_and_launched_in_order() -> None:
    noted: list[str] = []
    barrier = threading.Barrier(3)
    launches = [Launch(name, noted, lambda: barrier.wait(SECONDS)) for name in "abc"]
    for _ in range(2):
        run_in_order([(launch, (TENSOR,)) for launch in launches])
    assert noted == ["compiled"] * 3 + ["a", "b", "c"] * 2


def test_only_what_never_ran_is_compiled() -> None:
    noted: list[str] = []
    known, *others = (Launch(name, noted) for name in "abc")
    known.ran = True
    run_in_order([(launch, (TENSOR,)) for launch in (known, *others)])
    assert noted == ["compiled", "compiled", "a", "b", "c"]


def test_other_kernels_are_compiled_meanwhile_where_one_must_be_and_is_beyond_python() -> None:
    noted: list[str] = []
    src = SimpleNamespace(make_ir=lambda: noted.append("beyond Python"), signature={})
    launch = Launch("a", noted, lambda: src.make_ir())
    for _ in range(2):
        run_in_order([(launch, (TENSOR,))], lambda: noted.append("meanwhile"))
    assert noted == ["beyond Python", "meanwhile", "compiled", "a", "a"]


def test_a_kernel_that_does_not_compile_is_left_to_its_launch_which_says_why() -> None:
    def broken() -> None:
        raise SyntaxError("no such instruction")

    noted: list[str] = []
    run_in_order([(Launch("a", noted, broken), (TENSOR,)), (Launch("b", noted), (TENSOR,))])
    assert noted == ["compiled", "a", "b"]
    assert active_mode.get() is None


@pytest.mark.parametrize("threads", [1, 4])
def test_it_works_in_a_mode_of_the_callers_and_in_several_threads(threads: int) -> None:
    def first_call() -> list[str]:
        noted: list[str] = []
        run_in_order([(Launch(name, noted), (TENSOR,)) for name in "ab"])
        return noted

    with ThreadPoolExecutor(threads) as pool, AsyncCompileMode(pool) as mode:
        assert first_call() == ["compiled", "compiled", "a", "b"]
        for found in [pool.submit(first_call) for _ in range(threads)]:
            assert found.result() == ["compiled", "compiled", "a", "b"]
        assert not mode.raw_futures
