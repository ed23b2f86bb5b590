"""Exports: what leaves as CSV, JSON or Parquet is what was measured, and no spreadsheet runs it."""

import csv
import io
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import duckdb
import pytest

from results.formats import understand
from results.records import CASE_FIELDS, Case, Measurement, Run, Status, attention_case, measurement_from_json
from results.render import export
from results.render.export import COLUMNS, FIELDS, RUN_FIELDS, Selection
from results.render.text import guard, unguard
from results.store.database import Store

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True, inputs="outliers")
RUN = Run(
    "r1",
    "upload",
    created="2026-11-21",
    gpu_name="=HYPERLINK(1)",
    tf32=True,
    seed=2**40,
    measured_tflops={"float16": 612.5, "tf32": 1.0},
    measured_gbs=4012.25,
    sweep={"a": [1, "=x"]},
    implementations={"torch_naive": {"family": "pytorch", "memory": {"growth": "matrix"}}},
    against={"label": "0b16fc2", "git_commit": "0b16fc2"},
    empty_launch_ms=0.0042,
    cards={"card-a": {"host": "one", "calibration": {"x fwd kernel": 1.0}}},
)
TEXTS = [
    "=1+1", "+1", "-1", "@x", "'=1", "'", "", "''", "a\nb", "c\r\nd", "\rx", "\tx", 'q"q', "a,b", "x|y\\", "é😀", " ",
]  # fmt: skip
NUMBERS = [0.1 + 0.2, 1e-17, -1.5, 123456789.123, 5e22, 1.0, 0.0]
MEASUREMENTS = [
    *(Measurement("r1", CASE, "x", "speedup", Status.OK, value=1.0, note=text, origin=text) for text in TEXTS),
    *(
        Measurement(
            "r1", CASE, "y", "memory_saved_percent", Status.OK, value=number, std=abs(number), origin=str(number)
        )
        for number in NUMBERS
    ),
    Measurement("r1", CASE, "z", "tflops", Status.OK, value=0.05, n=2, samples=(0.1, 2e-9), flags=("-a", "b,c")),
    Measurement(
        *("r1", CASE, "w", "tflops", Status.OK),
        value=2.0,
        samples=(1.0, 2.0, 3.0),
        round_sizes=(2, 1),
        sm_clock_mhz=1972.5,
        config="-forward 128x64",
    ),
    Measurement(
        "r1", Case(level=None, subject=None), "z", "latency_ms", Status.OOM, printed="OOM", time="2026-11-21T10:00:00Z"
    ),
]
OTHER = Measurement("r2", replace(CASE, dtype="bfloat16"), "x", "latency_ms", Status.OK, mode="fwd", value=2.0)


@pytest.fixture
def opened(store_of: Callable[..., Store]) -> Store:
    other = Run("r2", "upload", created="2026-11-20", gpu_name="H200")
    return store_of((RUN, MEASUREMENTS), (other, [OTHER]))


def test_the_columns_are_the_fields_of_a_measurement_and_then_of_its_run() -> None:
    assert set(FIELDS) == {f.name for f in fields(Measurement)} - {"case"} | set(CASE_FIELDS)
    assert FIELDS[:4] == ("run_id", "implementation", "metric", "status")
    assert {"run_id", *RUN_FIELDS} == {f.name for f in fields(Run)}
    assert (*FIELDS, *(f"run_{name}" for name in RUN_FIELDS)) == COLUMNS


def test_what_runs_did_not_record_in_earlier_versions_has_no_column(opened: Store) -> None:
    exported = export.export(opened, "csv", Selection(run=("r2",)))
    header = next(csv.reader(io.StringIO(exported.decode(), newline="")))
    assert set(COLUMNS) - set(header) == {"run_implementations", "run_cards", "run_against", "run_empty_launch_ms"}
    assert "implementations" not in json.loads(export.export(opened, "json", Selection(run=("r2",))))["runs"][0]


def test_csv_and_json_are_read_as_the_same_runs_and_markdown_is_one_table(opened: Store) -> None:
    for form in ("csv", "json"):
        found = understand(f"export.{form}", export.export(opened, form, Selection(run=("r1",))))
        assert (found.format, found.rejected) == (f"own_{form}", ())
        assert found.measurements == tuple(MEASUREMENTS)
        assert found.runs == (RUN,)
    lines = export.export(opened, "md", Selection(run=("r1",))).decode().splitlines()
    assert len(lines) == 2 + len(MEASUREMENTS)
    assert "baseline" not in lines[0]
    assert "samples" not in lines[0]
    cells = lines[0].count("|")
    assert {line.replace("\\\\", "").replace("\\|", "").count("|") for line in lines} == {cells}


def test_what_is_exported_as_parquet_has_the_same_values_and_types(opened: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    path.write_bytes(export.export(opened, "parquet"))
    with closing(duckdb.connect()) as plain:
        columns = [name for name, *_ in plain.execute(f"DESCRIBE SELECT * FROM '{path}'").fetchall()]
        assert tuple(columns) == COLUMNS
        rows = plain.execute(f"SELECT {', '.join(FIELDS)} FROM '{path}' WHERE run_id = 'r1'").fetchall()
        seeds = plain.execute(f"SELECT DISTINCT run_seed, run_sweep FROM '{path}' WHERE run_id = 'r1'").fetchall()
    assert [measurement_from_json(dict(zip(FIELDS, row, strict=True))) for row in rows] == MEASUREMENTS
    assert [(seed, json.loads(sweep)) for seed, sweep in seeds] == [(2**40, RUN.sweep)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_guarded_text_is_no_formula_and_comes_back(text: str) -> None:
    assert guard(text)
    assert not guard(text).startswith(("=", "+", "-", "@", "\t", "\r"))
    assert unguard(guard(text)) == text


def test_no_text_cell_of_a_csv_is_a_formula_and_choices_are_those_that_occur(opened: Store) -> None:
    rows = list(csv.DictReader(io.StringIO(export.export(opened, "csv").decode(), newline="")))
    values = [row["value"] for row in rows if row["implementation"] == "y"]
    assert values == [repr(number) for number in NUMBERS]
    for row in rows:
        starts = {name: cell[:1] for name, cell in row.items() if name not in ("value", "std")}
        assert not {"=", "+", "-", "@"} & set(starts.values())
    assert export.choices(opened, "dtype") == ["bfloat16", "float16"]
    assert export.choices(opened, "gpu") == [RUN.gpu_name, "H200"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), len(MEASUREMENTS) + 1),
        (Selection(run=("r1", "r2")), len(MEASUREMENTS) + 1),
        (Selection(run=("r2",)), 1),
        (Selection(gpu=("H200",)), 1),
        (Selection(implementation=("x", "y")), len(TEXTS) + len(NUMBERS) + 1),
        (Selection(dtype=("bfloat16",), mode=("fwd",)), 1),
        (Selection(dtype=("bfloat16",), mode=("bwd",)), 0),
        (Selection(status=("oom",)), 1),
        (Selection(run=("' OR true --",)), 0),
    ],
)
def test_a_selection_takes_what_is_of_all_its_values(opened: Store, selection: Selection, expected: int) -> None:
    assert export.count(opened, selection) == expected
    assert len(json.loads(export.export(opened, "json", selection))["measurements"]) == expected
