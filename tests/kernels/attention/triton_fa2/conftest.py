"""Chips and tiles that new plans of triton_fa2 are told of."""

import pytest

from kernels.plans import PlanCache


@pytest.fixture
def on_h200(monkeypatch):
    """Have the interpreter stand for an H200, as the tables know it."""
    shapes = pytest.importorskip("kernels.attention.triton_fa2.problem")
    monkeypatch.setattr(shapes, "_INTERPRETED_CHIP", ("sm_90", 132, 60 << 20))
    monkeypatch.setattr(shapes, "INTERPRETED", True)


@pytest.fixture
def only(monkeypatch):
    """Return a function that lets new plans use the kernels named alone, in one tile; it returns the new plans."""
    plan, tuning = (pytest.importorskip(f"kernels.attention.triton_fa2.{x}") for x in ("plan", "tuning"))

    def use(*kernels, tile=None, **tiles):
        tiles |= dict.fromkeys(kernels, tile or tuning.Tile(32, 32, 4, 2))
        monkeypatch.setattr(tuning, "tiles", lambda kernel, *key: [tiles[kernel]] if kernel in tiles else [])
        monkeypatch.setattr(plan, "_PLANS", PlanCache())
        return plan._PLANS

    return use
