"""What precompiling asks of an implementation, how many compile at a time, and the whole way to Triton's cache."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import registry
from kernels.attention.torch_naive import attention as naive
from results.records import attention_case
from runner.cells import Cell
from runner.measure.precompile_child import Claims, processes, rehearse, small_cells
from tests.forks import forks

GIB = 1 << 30
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("cores", "gpus", "free_bytes", "count"),
    [(16, 1, 100 * GIB, 14), (32, 2, 200 * GIB, 14), (32, 2, 5 * GIB, 5), (2, 1, 8 * GIB, 1), (64, 0, 99 * GIB, 62)],
)
def test_cores_are_shared_out_among_gpus_and_memory_sets_a_bound(cores, gpus, free_bytes, count) -> None:
    assert processes(cores, gpus, free_bytes) == count


def cells(*wanted: tuple[str, str]) -> list[Cell]:
    cases = [
        attention_case(batch=1, num_heads=1, seqlen=seqlen, head_dim=16, dtype="float32", causal=True)
        for seqlen in (8, 16)
    ]
    return [Cell(case, *one) for case in cases for one in wanted]


def test_each_pass_that_is_wanted_is_called_once_a_case_and_a_fault_stops_nothing_else(monkeypatch) -> None:
    calls = []

    def implementation(name: str):
        def call(q, k, v, **mask):
            calls.append((name, q.shape[2], torch.is_grad_enabled()))
            if name == "broken":
                raise RuntimeError("no such kernel")
            out = naive(q, k, v, **mask)
            if out.requires_grad:
                out.register_hook(lambda gradient: calls.append((name, q.shape[2], "backward")))
            return out

        return SimpleNamespace(attention=call)

    known = {name: implementation(name) for name in ("broken", "plain")}
    monkeypatch.setattr(registry, "implementations", lambda level: known)
    rehearse(
        cells(("broken", "fwd"), ("broken", "bwd"), ("plain", "fwd"), ("plain", "bwd"), ("plain", "fwd_bwd")), "cpu"
    )
    plain = [call[1:] for call in calls if call[0] == "plain"]
    assert plain == [(n, what) for n in (8, 16) for what in (False, True, "backward")]
    calls.clear()
    rehearse(cells(("plain", "fwd")), "cpu")
    assert [call[1:] for call in calls] == [(8, False), (16, False)]
    calls.clear()
    rehearse(cells(("plain", "fwd")), "cpu", lambda case: case.seqlen_q == 16)
    assert [call[1:] for call in calls] == [(16, False)], "another GPU's process took the other case on"


def test_what_one_process_claims_another_leaves_and_waits_for(tmp_path: Path) -> None:
    first, second = Claims(str(tmp_path)), Claims(str(tmp_path))
    assert [first.take("a kernel"), second.take("a kernel"), second.take("another")] == [True, False, True]
    with first.at_work():
        begun = time.monotonic()
        second.wait_for_others(limit_s=0.1)
        assert time.monotonic() - begun >= 0.1
    (tmp_path / "at-work-0").touch()  # of a process that was killed
    begun = time.monotonic()
    second.wait_for_others(limit_s=60)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("folder", [None, "/no/such/folder"])
def test_without_a_folder_everything_is_ones_own(folder: str | None) -> None:
    claims = Claims(folder)
    assert claims.take("a kernel")
    assert claims.take("a kernel")
    with claims.at_work():
        claims.wait_for_others(limit_s=60)


def test_libraries_are_loaded_by_a_small_problem_for_each_dtype_and_head_dim() -> None:
    planned = cells(
        ("torch_sdpa_auto", "fwd"), ("torch_sdpa_auto", "bwd"), ("triton_fa2", "fwd"), ("torch_naive", "fwd")
    )
    planned.append(Cell(planned[0].case, "torch_sdpa_cudnn", "fwd", reason="no float32"))
    found = small_cells(planned)
    assert [(cell.implementation, cell.case.dtype, cell.case.head_dim, cell.case.seqlen_q) for cell in found] == [
        ("torch_sdpa_auto", "float32", 16, 64),
        ("torch_naive", "float32", 16, 64),
    ]


# Next to the kernel, a driver that knows its chip and nothing else: whatever would touch a GPU fails.
KERNEL = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget

class Chip:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

@triton.jit
def double(x_ptr, n, stride, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    tl.store(x_ptr + rows * stride, 2 * tl.load(x_ptr + rows * stride, mask=rows < n), mask=rows < n)
"""
SCRIPT = """
import pickle, sys, triton
from double import Chip, double
from kernels.unspecialized import UnspecializedTuples
from triton.runtime import driver

class Tensor:
    dtype = "fp32"
    data_ptr = staticmethod(lambda: 256)

driver.set_active(Chip())
from runner.measure import triton_hooks

found, hits = [], []
triton.knobs.compilation.listener = lambda cache_hit, **facts: hits.append(cache_hit)
with triton_hooks.collect(found.append):
    for n, stride, block in ((100, 16, 128), (200, 32, 128), (100, 1, 128), (100, 16, 256)):
        kernel = double[(1, 1, 1)](Tensor(), n, stride, block, num_warps=2)
        kernel.run(1, 1, 1, kernel.function)
        assert kernel.run.global_scratch_size
print(len(found), [sorted(kernel.constants.values()) for kernel in found], hits)
sys.modules["double"].double = UnspecializedTuples(double)
for kernel in found:
    assert triton_hooks.compile_kernel(pickle.loads(pickle.dumps(kernel))) > 0
double.device_caches.clear()
hits.clear()
double.warmup(Tensor(), 100, 16, 128, num_warps=2, grid=(1,))
double.warmup(Tensor(), 100, 1, 128, num_warps=2, grid=(1,))
double.warmup(Tensor(), 100, 16, 128, num_warps=4, grid=(1,))
print(hits)
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Return a function that runs code in a fork of a process in which Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with forks(tmp_path_factory.mktemp("forks"), environment | {"OMP_NUM_THREADS": "1"}) as answer:
        yield answer


@pytest.fixture
def answered(forked: Callable[..., str], tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that runs a script next to a kernel, with a cache of its own, and returns what it prints."""
    (tmp_path / "double.py").write_text(KERNEL)
    cache = f"import os; os.environ['TRITON_CACHE_DIR'] = {str(tmp_path / 'cache')!r}\n"
    return lambda script: forked(cache + script, tmp_path, ROOT, folder=tmp_path).splitlines()


def test_what_is_compiled_elsewhere_is_what_a_launch_looks_for(answered) -> None:
    pytest.importorskip("triton")
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher") and not torch.cuda.is_available():
        pytest.skip("Triton 3.6 builds launchers, which need the driver's library")
    found, hits = answered(SCRIPT)
    # A stride of 1 is another kernel, and so is another block; another length that 16 does not divide is not.
    assert found == "3 [[128], [1, 128], [256]] []"
    assert hits == "[True, True, False]"


# A worker's sweep of one implementation, with a chip that is not there: its launches would fail.
SWEEP = """
import os, triton, torch
from types import SimpleNamespace
from double import Chip, double
from triton.runtime import driver

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        double[(1,)](q, q.shape[2], q.stride(2), 64)
        return q + k + v

    @staticmethod
    def backward(ctx, dout):
        double[(1,)](dout, dout.shape[2], dout.stride(2), 128)
        return dout, dout, dout

def attention(q, k, v, **mask):
    if q.shape[3] == 32:
        raise RuntimeError("this shape does not fit")
    return Attention.apply(q, k, v)

driver.set_active(Chip())
from collections import defaultdict
from kernels import registry
from runner import cells
from runner.measure import precompile_child
from runner.ipc import both_ends
from results.records import attention_case

registry.implementations = lambda level: defaultdict(lambda: SimpleNamespace(attention=attention))
torch.cuda.set_device = lambda device: None
one = dict(batch=1, num_heads=1, seqlen=48, dtype="float32", causal=True)
planned = [
    cells.cell_to_json(cells.Cell(attention_case(head_dim=head_dim, **one), "ours", mode))
    for head_dim in (16, 32) for mode in ("fwd", "bwd")
]
helper = precompile_child.Helper(both_ends()[0])
os.mkdir("claims")
helper.begin("cpu", planned, "claims")
said = []
for message in helper.messages(iter(())):
    said.append(message)
    if message["event"] == "rehearsed":
        break
helper.end()
hits = []
triton.knobs.compilation.listener = lambda cache_hit, **facts: hits.append(cache_hit)
x = torch.zeros(1, 1, 48, 16)
double.warmup(x, 48, 16, 64, grid=(1,))
double.warmup(x, 48, 16, 128, grid=(1,))
print([message["event"] for message in said], said[-1]["kernels"], said[-1]["failed"], hits, len(os.listdir("claims")))
"""


@pytest.mark.slow
def test_the_helper_finds_and_compiles_what_a_sweep_will_launch(answered) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("a real chip is there; sweeps on it show the same")
    assert answered(SWEEP) == ["['compiled', 'compiled', 'rehearsed'] 2 0 [True, True] 4"]


HELPER = """
import os
from runner import levels
from runner.measure import precompile_child
from runner.ipc import both_ends

for level in levels.with_own_implementations().values():
    level.implementations()  # once, at normal priority: helpers share the imports

def serve(channel, pool):
    asked = channel.receive()
    assert asked | {"cells": []} == {"device": "cuda:1", "cells": [], "claims": None}
    channel.send({"event": "compiled", "pids": [os.getpid(), pool.submit(os.getpid).result()]})
    if asked["cells"] == ["fails"]:
        raise RuntimeError("no GPU for the helper")
    channel.send({"event": "rehearsed"})
    pool.submit(__import__("threading").Event().wait).result()

precompile_child._serve = serve
for how in ("works", "fails"):
    helper = precompile_child.Helper(both_ends()[0])
    helper.begin("cuda:1", [how])
    events, steps = [], iter(range(3))
    for message in helper.messages(steps):
        pids = message.get("pids", []) or pids
        events.append(message["event"])
        if message["event"] == "rehearsed":
            break
    helper.end()
    helper.end()
    assert next(steps, "taken") == "taken"
    print(*events, os.getpid() in pids, *pids, flush=True)
"""


@pytest.mark.slow
def test_the_helper_is_a_child_that_leaves_nothing_behind(answered, tmp_path, wait_for) -> None:
    works, fails = (line.split() for line in answered(HELPER))
    assert (works[:-2], fails[:-2]) == (["compiled", "rehearsed", "False"], ["compiled", "False"])
    assert (tmp_path / "errors").read_text().count("RuntimeError: no GPU for the helper") == 1
    for pid in (*works[-2:], *fails[-2:]):
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"the end of process {pid}")
