"""What is seen of Triton: each kernel's configuration as last launched, and whether it was compiled or loaded."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from runner.measure import triton_hooks

jit = pytest.importorskip("triton.runtime.jit")
knobs = pytest.importorskip("triton.knobs")


def launch(name: str, constants: dict, warps: int) -> None:
    """As a launcher does: the class's `run` answers with a compiled kernel."""
    function = SimpleNamespace(fn=SimpleNamespace(__name__=name), arg_names=["q", "BLOCK_M", "HEAD_DIM", "CAUSAL"])
    src = SimpleNamespace(constants={(function.arg_names.index(n),): value for n, value in constants.items()})
    kernel = SimpleNamespace(src=src, metadata=SimpleNamespace(num_warps=warps, num_stages=3))
    assert jit.JITFunction.run(function, kernel) is kernel


@pytest.fixture(autouse=True)
def plain_run(monkeypatch):
    run = lambda self, kernel: kernel  # noqa: E731
    monkeypatch.setattr(jit.JITFunction, "run", run)
    yield
    assert jit.JITFunction.run is run


def test_the_configuration_last_launched_counts_and_says_how_not_what() -> None:
    with triton_hooks.watch() as seen:
        launch("forward", {"BLOCK_M": 64, "HEAD_DIM": 64, "CAUSAL": True}, 4)
        launch("forward", {"BLOCK_M": 128, "HEAD_DIM": 64, "CAUSAL": True}, 8)
        launch("dq", {"BLOCK_M": 32, "HEAD_DIM": 64}, 4)
    assert seen.config == "dq BLOCK_M=32 num_warps=4 num_stages=3; forward BLOCK_M=128 num_warps=8 num_stages=3"


def test_a_constant_that_is_a_dataclass_counts_as_its_fields() -> None:
    @dataclass(frozen=True)
    class Config:
        block_n: int
        head_dim: int
        causal: bool

    with triton_hooks.watch() as seen:
        launch("forward", {"CAUSAL": Config(64, 128, True)}, 4)
    assert seen.config == "forward BLOCK_N=64 num_warps=4 num_stages=3"


def test_nothing_launched_is_no_configuration() -> None:
    with triton_hooks.watch() as seen:
        pass
    assert (seen.config, seen.compiled, seen.loaded) == (None, 0, 0)


def test_compiled_and_loaded_are_told_apart_and_an_earlier_listener_still_hears(monkeypatch) -> None:
    heard = []
    before = lambda **facts: heard.append(facts)  # noqa: E731
    monkeypatch.setattr(knobs.compilation, "listener", before)
    facts = {"src": None, "metadata": {}, "metadata_group": {}, "times": None}
    with triton_hooks.watch() as seen:
        knobs.compilation.listener(**facts, cache_hit=False)
        knobs.compilation.listener(**facts, cache_hit=True)
        knobs.compilation.listener(**facts, cache_hit=True)
    assert (seen.compiled, seen.loaded, len(heard)) == (1, 2, 3)
    assert knobs.compilation.listener is before


KERNELS = """
from triton import language as tl
from triton.runtime.jit import JITFunction

PAD = tl.constexpr(16)

@JITFunction
def padded(n):
    return n + PAD

@JITFunction
def kernel(n):
    padded(n)
"""


def kernels_anew(path: Path) -> ModuleType:
    """Return a module of two functions, of which one calls the other, without their keys."""
    path.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location("kernels_anew", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_functions_key_is_that_of_a_process_which_knew_what_it_calls(tmp_path: Path) -> None:
    before, after = (kernels_anew(tmp_path / "kernels_anew.py") for _ in range(2))
    assert before.padded.cache_key  # taken first: compiled earlier
    triton_hooks.take_keys(after.kernel)
    assert after.kernel.cache_key == before.kernel.cache_key
    assert [name for name, _ in after.kernel.used_global_vals] == ["PAD"]
