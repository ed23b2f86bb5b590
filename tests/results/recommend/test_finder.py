"""The finder: what computes a combination of features, what is fastest, and how to measure it."""

from kernels import registry
from results.query import block_sparse
from results.recommend import finder
from runner import sweeps
from tests.builders import add_run, latency, small_case

FACTS = {"mine": {"level": "op", "features": ["softcap", "sinks"], "window": True}, "other": {"features": ["softcap"]}}


def test_the_fastest_counts_only_cases_that_have_everything(home, opened) -> None:
    capped, more = small_case(features="softcap=50"), small_case(features="softcap=50,sinks", window_size=64)
    times = [(capped, "mine", 2.0), (capped, "other", 1.0), (more, "mine", 3.0), (more, "other", 6.0)]
    add_run(home, "a", *(latency(name, ms, case) for case, name, ms in times), implementations=FACTS)
    store = opened()
    assert finder.able(store, ("softcap",)) == ["mine", "other"]
    assert finder.able(store, ("softcap", "window")) == ["mine"]
    (row,) = finder.found(store, ("softcap", "sinks", "window")).to_dict("records")
    assert [row[name] for name in ("winner", "next", "cases", "run")] == ["mine", "other", 1, "a"]
    assert round(row["ratio"], 6) == 2.0
    assert finder.found(store, ("softcap",))["cases"].tolist() == [2]
    (missing,) = finder.found(store, ("softcap", "backward")).to_dict("records")
    assert (isinstance(missing["winner"], str), missing["standing"]) == (False, finder.NOT_MEASURED)
    add_run(home, "b", *(latency(name, ms, capped, mode="bwd") for name, ms in (("mine", 1.0), ("other", 2.0))))
    assert finder.found(opened(), ("softcap", "backward"))["winner"].tolist() == ["mine"]


def test_a_block_sparse_mask_pays_where_the_fastest_is_ahead_of_the_fastest_dense_call(home, opened) -> None:
    sizes = {"seqlen": 1024, "dtype": "bfloat16"}
    rows = [latency(name, ms, small_case(**sizes)) for name, ms in (("mine", 4.0), ("other", 3.0))]
    for share, ms in ((0.5, 4.0), (0.75, 2.0), (0.9, 1.0)):
        case = small_case(**sizes, features=f"blocks=128:{share}")
        rows += [latency("mine", ms, case), latency("torch_flex", 2 * ms, case)]
    add_run(home, "a", *rows)
    table = block_sparse.rows(opened())
    assert table["speedup"].tolist() == [0.75, 0.375, 1.5, 0.75, 3.0, 1.5]
    assert set(table["dense"]) == {"other"} and set(table["block"]) == {128}
    assert block_sparse.pays_from(table) == {1024: 75.0}
    assert block_sparse.pays_from(table[table["implementation"] == "torch_flex"]) == {1024: 90.0}


def test_every_combination_of_two_has_a_command_that_runs() -> None:
    for first in finder.WANTS:
        for second in finder.WANTS:
            text = finder.command({first, second})
            words = text.removeprefix("python -m runner run ").split()
            try:
                sweep = sweeps.override(sweeps.get(words[0]), sweeps.changes_of(words[2::2]))
            except sweeps.SweepError as error:
                assert "exclude each other" in str(error) or "needs" in str(error), text
            else:
                assert all(finder.has(case, {first, second}) for case in sweep.cases()), text


def test_features_have_the_names_of_the_registry() -> None:
    assert set(registry.FEATURES) < set(finder.WANTS)
