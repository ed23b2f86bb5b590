"""What a first call asks Triton to compile, on a chip that is not there and with kernels that are never made.

Each scenario is a fork of a process in which Triton compiles instead of interpreting (tests.kernels.tools), with a
separate folder for Triton's cache.
"""

import contextlib
import os
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels.attention.triton_fa2 import launches, plan
from kernels.attention.triton_fa2 import problem as problems

SECONDS = 60  # timeout of compilers that wait for one another
compiled: list[str] = []
launched: list[str] = []
launchers: list[str] = []  # kernels whose launcher was made before they were loaded


class Chip:
    """What JITFunction asks of a driver."""

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    launcher_cls = staticmethod(lambda src, metadata: launchers.append(src.name))


class Kernel:
    """A compiled kernel that says when it is launched."""

    function = packed_metadata = metadata = None

    def __init__(self, src) -> None:
        self.src = src

    @property
    def run(self) -> Callable[..., None]:
        """Loads nothing."""
        return lambda *arguments: launched.append(self.src.name)


compilers: list[Callable[..., Kernel]] = [Kernel]  # the last one counts


def compile_noted(src, target, options, **more) -> Kernel:
    """Replace Triton's compiler."""
    compiled.append(src.name)
    return compilers[-1](src)


def at_once(number: int) -> Callable[..., Kernel]:
    """A compiler that is done only when so many kernels are being compiled."""
    barrier = threading.Barrier(number)

    def made(src):
        barrier.wait(SECONDS)
        return Kernel(src)

    return made


def problem() -> tuple[plan.TritonPlan, torch.Tensor]:
    """A causal plan, and what will do for any of its tensors."""
    q = torch.empty(1, 1, 4096, 64, device="meta")
    return plan.TritonPlan(q, q, q, True, 0, None, "ieee"), q


def forward_and_backward() -> None:
    """Pieces of a cut walk, which take three kernels each way."""
    made, q = problem()
    compilers.append(at_once(3))
    out, lse = made.forward(q, q, q)
    made.backward(q, q, q, out, lse, q)
    before = len(compiled)
    made.backward(q, q, q, *made.forward(q, q, q), q)
    assert len(compiled) == before == len(launchers), "nothing is left for later calls"


def in_a_mode_of_the_callers() -> None:
    """Called where kernels are compiled asynchronously already."""
    made, q = problem()
    with ThreadPoolExecutor(1) as executor, triton.AsyncCompileMode(executor):
        made.backward(q, q, q, *made.forward(q, q, q), q)


def in_two_threads() -> None:
    """The same first call, twice at once."""
    made, q = problem()
    compilers.append(at_once(3))
    with ThreadPoolExecutor(2) as executor:
        for future in [executor.submit(made.output, q, q, q) for _ in range(2)]:
            future.result()


def one_that_does_not_compile() -> None:
    """Once, then it does."""
    made, q = problem()

    def broken(src):
        if src.name.startswith("forward"):
            raise SyntaxError("no such instruction")
        return Kernel(src)

    compilers.append(broken)
    try:
        made.output(q, q, q)
    except SyntaxError as error:
        print(error)
    compilers.pop()
    made.output(q, q, q)


SCENARIOS = (forward_and_backward, in_a_mode_of_the_callers, in_two_threads, one_that_does_not_compile)


def run(scenario: Callable[[], None], folder: Path) -> None:
    """Run a scenario; prints what was compiled and what was launched, in order."""
    triton.knobs.cache.dir = str(folder)
    driver.set_active(Chip())
    triton.compiler.compile = compile_noted
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    problems._chip = lambda device: ("sm_90", 132, 60 << 20)
    plan.device_guard = lambda device: contextlib.nullcontext()  # none of the device "meta"
    scenario()
    print(*sorted(compiled))
    print(*launched)


def in_a_fork(scenario: Callable[[], None], folder: Path) -> str:
    """Return the output of a scenario in a separate process, with its traceback if it fails."""
    output = folder / "output"
    folder.mkdir()
    if child := os.fork():
        os.waitpid(child, 0)
        return output.read_text()
    with output.open("w") as file, contextlib.redirect_stdout(file):
        try:
            run(scenario, folder)
        except BaseException:
            traceback.print_exc(file=file)
    os._exit(0)


def printed(folder: Path) -> dict[str, str]:
    """Return what each scenario prints, by its name; sources are hashed once, before the forks."""
    _ = [found.cache_key for found in vars(launches).values() if isinstance(found, triton.JITFunction)]
    return {each.__name__: in_a_fork(each, folder / each.__name__) for each in SCENARIOS}
