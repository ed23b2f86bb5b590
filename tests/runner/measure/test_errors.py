"""Exceptions become a status and a sentence with what was needed and what there was."""

import pytest
import torch

from kernels.registry import UnsupportedCase
from results.records import Status
from runner.measure.errors import context_is_broken, describe, is_out_of_memory
from runner.measure.passes import memory_of_call


class OutOfResources(Exception):
    name, required, limit = "shared memory", 294912, 232448


CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 256.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 138.00 GiB is "
    "free. Process 1 has 1.80 GiB memory in use."
)
CPU_TEXT = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "8796093022208 bytes. Error code 12 (Cannot allocate memory)"
)
OF_TRITON = ValueError("at 3:4:\ndef caller():\n    called()\n    ^")  # the fault is in the function that is called
OF_TRITON.__cause__ = ValueError("at 4:20:\ndef called():\n    a + b\n    ^\nincompatible dimensions")


@pytest.mark.parametrize(
    ("error", "status", "note"),
    [
        (
            torch.OutOfMemoryError(CUDA_TEXT),
            Status.OOM,
            "Out of device memory: needed 256.00 GiB more, 138.00 GiB of 139.80 GiB were free.",
        ),
        (RuntimeError(CPU_TEXT), Status.OOM, "Out of memory: needed 8192.00 GiB more than is available."),
        (OutOfResources(), Status.OUT_OF_RESOURCES, "Out of shared memory: required 294912, limit 232448."),
        (UnsupportedCase("no such head_dim"), Status.UNSUPPORTED, "no such head_dim"),
        (NotImplementedError("not on this device"), Status.UNSUPPORTED, "not on this device"),
        (RuntimeError("first line\nsecond line"), Status.ERROR, "RuntimeError: first line"),
        (ValueError(), Status.ERROR, "ValueError: no message"),
        (RuntimeError("it raised:\nKeyError: 7\n\nSee"), Status.ERROR, "RuntimeError: it raised: KeyError: 7"),
        (OF_TRITON, Status.ERROR, "ValueError: at 3:4: at 4:20: incompatible dimensions"),
    ],
)
def test_an_exception_becomes_a_status_and_a_note(error: Exception, status: Status, note: str) -> None:
    assert describe(error) == (status, note)


def test_a_real_allocation_that_fails_is_out_of_memory_and_breaks_no_context() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**50, dtype=torch.int8)
    assert is_out_of_memory(failed.value)
    assert context_is_broken() is False


@pytest.mark.gpu
def test_memory_of_a_call_is_what_it_allocates() -> None:
    found = memory_of_call(lambda: torch.empty(4 << 20, dtype=torch.int8, device="cuda"), given=3 << 20)
    assert [found.get(f"{name}_memory_mb") for name in ("inputs", "extra", "peak")] == [3.0, 4.0, 7.0]
