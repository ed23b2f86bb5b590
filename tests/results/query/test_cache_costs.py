"""What pages, ragged lengths, e4m3 and query tokens cost: ratios within one run, of cases alike in all else."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from results.query import cache_costs
from results.records import Case, Measurement, Run, Status, decode_case
from results.slice import Filters
from results.store.database import Store

PLAIN = decode_case(batch=8, num_heads=64, num_kv_heads=8, context=8192, head_dim=128, dtype="bfloat16")
E4M3 = replace(PLAIN, cache_dtype="float8_e4m3fn")
SLICE = Filters(
    gpu="A GPU", workload="decode attention", mask="causal", mode="decode", timing="kernel", baseline="torch_naive"
)


def timed(run: str, case: Case, ms: float, name: str = "ours", **errors: float) -> Iterator[Measurement]:
    given = {"status": Status.OK, "mode": "decode", "n": 3}
    yield Measurement(run, case, name, "latency_ms", timing="kernel", value=ms, statistic="median", **given)
    for metric, value in errors.items():
        yield Measurement(run, case, name, metric, value=value, statistic="single", **given)


@pytest.fixture
def store(store_of: Callable[..., Store]) -> Store:
    runs = {
        "older": [*timed("older", PLAIN, 1.0), *timed("older", replace(PLAIN, page_size=16), 9.0)],
        "newer": [
            *timed("newer", PLAIN, 2.0, error_out=0.001),
            *timed("newer", replace(PLAIN, page_size=16), 2.2),
            *timed("newer", replace(PLAIN, lengths="ragged"), 2.5),
            *timed("newer", replace(PLAIN, page_size=16, lengths="ragged"), 3.0),
            *timed("newer", replace(PLAIN, batch=32), 4.0),
            *timed("newer", replace(PLAIN, batch=32, page_size=16), 8.8),
            *timed("newer", E4M3, 1.1, error_out=0.002, error_out_original=0.03),
            *timed("newer", replace(PLAIN, seqlen_q=4), 2.1),
            *timed("newer", replace(PLAIN, page_size=16), 5.0, "peer"),  # without a contiguous case
        ],
    }
    days = {"older": "2026-11-21", "newer": "2026-11-22"}
    return store_of(*((Run(name, "local", gpu_name="A GPU", created=days[name]), rows) for name, rows in runs.items()))


def test_each_form_is_beside_the_case_that_differs_in_it_alone(store: Store) -> None:
    found = cache_costs.rows(store, SLICE)
    ratios = {(row.form, row.beside, row.batch): row.ratio for row in found.itertuples()}
    assert ratios == pytest.approx(
        {
            ("page 16", "H64 KV8 D128", 8): 1.1,
            ("page 16", "H64 KV8 D128", 32): 2.2,
            ("page 16", "H64 KV8 D128 ragged", 8): 1.2,
            ("ragged", "H64 KV8 D128", 8): 1.25,
            ("ragged", "H64 KV8 D128 page 16", 8): 3 / 2.2,
            ("float8_e4m3fn cache", "H64 KV8 D128", 8): 0.55,
            ("4 query tokens", "H64 KV8 D128", 8): 1.05,
        }
    )
    assert set(found["run_id"]) == {"newer"}
    assert set(found["implementation"]) == {"ours"}


def test_the_summary_has_errors_and_geometric_means_and_a_chosen_shape_hides_no_plain_case(store: Store) -> None:
    found = cache_costs.rows(store, SLICE).set_index("form").loc["float8_e4m3fn cache"]
    assert (found["error"], found["error_original"], found["plain_error"]) == (0.002, 0.03, 0.001)
    found = cache_costs.summary(cache_costs.rows(store, SLICE)).set_index(["form", "beside"])
    paged = found.loc["page 16", "H64 KV8 D128"]
    assert paged["cases"] == 2
    assert paged["ratio"] == pytest.approx((1.1 * 2.2) ** 0.5)
    assert (paged["lowest"], paged["highest"]) == pytest.approx((1.1, 2.2))
    chosen = replace(SLICE, shape="H64 KV8 D128 page 16", batch=(8,))
    assert len(cache_costs.rows(store, chosen)) == len(cache_costs.rows(store, SLICE))


def test_a_store_without_such_cases_has_none(store_of: Callable[..., Store]) -> None:
    opened = store_of((Run("one", "local", gpu_name="A GPU"), timed("one", PLAIN, 1.0)))
    assert cache_costs.rows(opened, SLICE).empty
    assert cache_costs.summary(cache_costs.rows(opened, SLICE)).empty
