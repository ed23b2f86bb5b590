"""The order that decides which run counts, in each of its three forms."""

import duckdb

from results.counting import compared_run, counting_run, standing, surpasses

# run_id, has_baseline, measured names, code_age, age: the first is the best.
RUNS = [
    ("baseline-new-code-complete", {"torch", "a", "b"}, 1, 3),
    ("baseline-new-code-newer", {"torch", "a"}, 1, 1),
    ("baseline-new-code-older", {"torch", "b"}, 1, 2),
    ("baseline-old-code", {"torch", "a", "b", "c"}, 2, 4),
    ("no-baseline", {"a", "b"}, 0, 0),
    ("baseline-alone", {"torch"}, 0, 5),
    ("nothing", set(), 0, 6),
]


def test_the_run_with_the_baseline_newer_code_more_implementations_and_the_newest_is_first_in_python_and_sql():
    ordered = sorted(RUNS, key=lambda run: standing(run[1], "torch", {"code_age": run[2], "age": run[3]}))
    assert ordered == RUNS
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (run_id TEXT, has_baseline BOOL, measured INT, code_age INT, age INT)")
        for at, expected in enumerate(RUNS):
            connection.execute("DELETE FROM t")
            rows = [[name, "torch" in names, len(names), code, age] for name, names, code, age in RUNS[at:]]
            connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
            found = connection.execute(f"SELECT run_id FROM t QUALIFY {compared_run('1')}").fetchall()
            assert found == [(expected[0],)]


def test_preferred_conditions_decide_in_their_order():
    rows = "(VALUES ('a', true, false, 0, 1, 0), ('b', false, true, 0, 9, 0), ('c', true, true, 5, 1, 9))"
    columns = "t(run_id, first, second, code_age, measured, age)"
    with duckdb.connect() as connection:
        for preferred, expected in ((("first", "second"), "c"), (("first",), "a"), (("second",), "b"), ((), "b")):
            sql = f"SELECT run_id FROM {rows} {columns} QUALIFY {counting_run('1', *preferred)}"
            assert connection.execute(sql).fetchone() == (expected,)


def test_a_run_surpasses_another_by_newer_code_or_by_age():
    with duckdb.connect() as connection:
        for one, other, expected in (((1, 5), (2, 0), True), ((1, 1), (1, 2), True), ((1, 2), (1, 2), False)):
            tables = f"(VALUES {one}) x(code_age, age), (VALUES {other}) y(code_age, age)"
            assert connection.execute(f"SELECT {surpasses('x', 'y')} FROM {tables}").fetchone() == (expected,)


def test_a_comparison_needs_two_implementations_and_the_baseline_only_where_it_is_preferred():
    lacks = {
        each: standing(each.split(), "torch", {"code_age": 0, "age": 0})[:2] for each in ("torch a", "a b", "torch")
    }
    assert lacks == {"torch a": (False, False), "a b": (True, False), "torch": (True, True)}
