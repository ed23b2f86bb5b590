"""What is seen of Triton: each kernel's configuration as last launched, and whether it was compiled or loaded."""

from dataclasses import dataclass
from types import FunctionType, SimpleNamespace

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


def test_the_configuration_last_launched_counts_and_nothing_launched_is_none() -> None:
    with triton_hooks.watch() as seen:
        launch("forward", {"BLOCK_M": 64, "HEAD_DIM": 64, "CAUSAL": True}, 4)
        launch("forward", {"BLOCK_M": 128, "HEAD_DIM": 64, "CAUSAL": True}, 8)
        launch("dq", {"BLOCK_M": 32, "HEAD_DIM": 64}, 4)
    assert seen.config == "dq BLOCK_M=32 num_warps=4 num_stages=3; forward BLOCK_M=128 num_warps=8 num_stages=3"
    with triton_hooks.watch() as seen:
        pass
    assert (seen.config, seen.compiled, seen.loaded) == (None, 0, 0)


def test_a_constant_that_is_a_dataclass_counts_as_its_fields() -> None:
    @dataclass(frozen=True)
    class Config:
        block_n: int
        head_dim: int
        causal: bool

    with triton_hooks.watch() as seen:
        launch("forward", {"CAUSAL": Config(64, 128, True)}, 4)
    assert seen.config == "forward BLOCK_N=64 num_warps=4 num_stages=3"


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


class Keyed:
    """A function of Triton as far as its key goes, which is taken when it is asked for."""

    taken: list[str] = []

    def __init__(self, fn: FunctionType) -> None:
        self.fn, self.hash = fn, None

    @property
    def cache_key(self) -> str:
        self.taken.append(self.fn.__name__)
        self.hash = "taken"
        return self.hash


def test_keys_of_what_a_function_calls_are_taken_first_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keyed, "taken", [])
    names = {"Keyed": Keyed, "other": SimpleNamespace(cache_key="not one of Triton's")}
    exec(
        "masked = Keyed(lambda n: masked(n))\n"  # calls itself
        "padded = Keyed(lambda n: masked(n))\n"
        "kernel = Keyed(lambda n: (padded(n), masked(n), other, len(n)))\n",
        names,
    )
    for name in ("masked", "padded", "kernel"):
        names[name].fn.__name__ = name
    triton_hooks.take_keys(names["kernel"])
    triton_hooks.take_keys(names["padded"])
    assert Keyed.taken == ["masked", "padded", "kernel"]
