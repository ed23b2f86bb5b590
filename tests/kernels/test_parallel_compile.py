"""How a compiled kernel is launched: below Triton's Python where its version is known, through it elsewhere."""

from types import SimpleNamespace

import pytest

from kernels import parallel_compile

triton = pytest.importorskip("triton")


def made(**facts: object) -> SimpleNamespace:
    """Return what Triton makes of a kernel, as far as a launch asks."""
    said = {"global_scratch_size": 0, "profile_scratch_size": 0, "launch_cooperative_grid": False, "launch_pdl": True}
    run = SimpleNamespace(**said | {"launch": len} | facts)
    return SimpleNamespace(run=run, function=7, packed_metadata="packed")


def test_triton_3_6_is_launched_by_its_c_function(monkeypatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    launcher, tensordesc_meta = len, ["swizzle"]
    first = (7, False, True, None, None, "packed", None, None, None)
    assert parallel_compile.launcher(made()) == (len, first, [])
    encoding = made(launch=lambda *arguments: launcher(*arguments, tensordesc_meta))
    assert parallel_compile.launcher(encoding) == (len, first, ["swizzle"])


@pytest.mark.parametrize(
    ("version", "facts"),
    [("3.9.0", {}), ("3.6.0", {"global_scratch_size": 128}), ("3.6.0", {"profile_scratch_size": 128})],
    ids=["a later version", "global scratch memory", "a profiler's memory"],
)
def test_everything_else_is_launched_by_triton(monkeypatch, version: str, facts: dict) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    kernel = made(**facts)
    assert parallel_compile.launcher(kernel) == (kernel.run, (7, "packed", None, None, None), None)
