"""What a peak is made of, beside its formula."""

from contextlib import closing

import pandas as pd
import pytest

from pages.ui import memory as page
from results.files import journal
from results.files.journal import RunFolder
from results.query import memory, pages
from results.records import Measurement, Run, Status, attention_case
from results.slice import Filters
from results.store.database import open_store

SLICE = {"gpu": "A GPU", "workload": "attention", "mask": "causal", "timing": "kernel", "baseline": "torch_naive"}
VALUES = {"inputs_memory_mb": 12.0, "extra_memory_mb": 6.0, "peak_memory_mb": 18.0, "reserved_memory_mb": 20.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of one run, with nothing published; no test here changes it."""
    home, rows = tmp_path_factory.mktemp("home"), []
    for seqlen in (1024, 2048):
        case = attention_case(batch=1, num_heads=4, seqlen=seqlen, head_dim=64, dtype="float16", causal=True)
        for mode, factor in (("fwd", 1), ("fwd_bwd", 2)):
            rows += [_row(case, metric, mode, value * factor) for metric, value in VALUES.items()]
        rows.append(_row(case, "activation_memory_mb", "fwd_bwd", 7.0))
    RunFolder.create(home, Run("a", "local", gpu_name="A GPU"), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "PUBLISHED", home / "none")
        with closing(open_store(home)) as opened:
            yield opened


def _row(case, metric: str, mode: str, value: float) -> Measurement:
    return Measurement("a", case, "torch_naive", metric, Status.OK, mode=mode, value=value)


@pytest.mark.parametrize("mode,peak", [("fwd", 18.0), ("fwd_bwd", 36.0)])
def test_every_kind_of_memory_stands_beside_its_formula_in_the_mode_of_the_slice(store, mode, peak):
    row = memory.parts(store, Filters(**SLICE, mode=mode), ["a"]).iloc[0]
    assert row[["peak_memory_mb", "activation_memory_mb"]].tolist() == [peak, 7.0]
    tensor = 4 * 1024 * 64 * 2 / 2**20
    assert row["given"] == (3 if mode == "fwd" else 4) * tensor
    assert row["kv_cache"] == 2 * tensor
    assert row["matrices"] == (2 if mode == "fwd" else 4) * 4 * 1024**2 * 2 / 2**20
    assert row["peak"] == pytest.approx(row[["given", "returned", "matrices", "workspace"]].sum())


def test_the_kinds_are_those_of_the_rows_that_are_drawn(store):
    filters = Filters(**SLICE, mode="fwd")
    drawn = pages.memory(store, filters, "peak_memory_mb").query("seqlen == 2048").assign(head_dim="64")
    found = page.kinds_of(memory.parts(store, filters, ["a"]), drawn)
    assert found["seqlen_q"].tolist() == [2048]
    assert found["of_formula"].iloc[0] == pytest.approx(18.0 / found["peak"].iloc[0])
    nothing = pd.DataFrame(columns=["run_id", "implementation", "seqlen", "dtype", "shape", "head_dim"])
    assert page.kinds_of(memory.parts(store, Filters(**SLICE, mode="fwd"), ["a"]), nothing).empty
