"""Every encoding of the records says what the fields themselves say."""

import json
import re

import pytest

from results.files import columns
from results.files.journal import parse_line
from results.formats import own
from results.formats.errors import CellError
from results.formats.validation import measurement_of
from results.records import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    RUN_SCHEMA,
    SOURCES,
    Case,
    Measurement,
    RecordError,
    Status,
    attention_case,
    measurement_to_json,
)
from results.schema import LARGEST_WHOLE, Field
from results.store import ingest, summary
from results.store.database import SCHEMA, Store
from tests.cases import cases

ROW = {**MEASUREMENT_SCHEMA, **CASE_SCHEMA}
CASE = attention_case(batch=1, num_heads=1, seqlen=128, head_dim=64, dtype="float16", causal=True)
RECORD = measurement_to_json(
    Measurement("r", CASE, "x", "latency_ms", Status.OK, mode="fwd", timing="kernel", value=1.0)
)
SQL = cases(__file__, "types of columns by kind")


def _columns(store: Store, table: str) -> dict[str, tuple[str, bool]]:
    rows = store.rows("SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = ?", [table])
    return {name: (kind, nullable) for name, kind, nullable in rows}


@pytest.mark.parametrize(
    ("table", "fields", "beyond"),
    [("measurements", ROW, ["measurement_id", "time_text"]), ("runs", RUN_SCHEMA, ["created_text"])],
)
def test_columns_of_the_store_have_the_kinds_of_the_fields(opened: Store, table, fields: dict, beyond) -> None:
    columns = _columns(opened, table)
    assert columns.keys() - fields.keys() == set(beyond)
    for name, rules in fields.items():
        kind, nullable = columns[name]
        assert kind in SQL[rules.kind], name
        assert nullable or not rules.nullable, name
        assert not nullable or rules.nullable or rules.kind == "status", name


def test_columns_that_pages_read_and_checks_of_the_store_have_the_kinds_choices_and_minima_of_the_fields(opened):
    numbers = _columns(opened, "numbers")
    shared = numbers.keys() & ROW.keys()
    assert {"value", "status", "seqlen_q", "implementation", "note"} <= shared
    assert {name for name in shared if numbers[name][0] not in SQL[ROW[name].kind]} == set()
    assert {*summary.OF_NUMBER} - {"case_id", "seqlen"} <= ROW.keys()
    (listed,) = re.findall(r"CHECK \(source IN \((.*?)\)\)", SCHEMA)
    assert tuple(re.findall(r"'(\w+)'", listed)) == SOURCES
    above_0 = set(re.findall(r"CHECK \((\w+) IS NULL OR \w+ > 0\)", SCHEMA))
    assert above_0 and {ROW[name].minimum for name in above_0} == {1}
    finite = set(re.findall(r"isfinite\((\w+)\)", SCHEMA))
    assert finite and all(ROW[name].only_if_ok for name in finite)
    kinds = {rules.kind for rules in (*ROW.values(), *RUN_SCHEMA.values())}
    assert kinds == set(own.PARSERS) == set(columns.SQL_TYPES)


def _broken(rules: Field) -> list[object]:
    """Values that the field must refuse everywhere."""
    wrong: list[object] = [{"a": 1}]
    wrong += ["no such choice"] if rules.choices else []
    wrong += [rules.minimum - 1, 1.5, True] if rules.minimum is not None else []
    wrong += [LARGEST_WHOLE + 1] if rules.kind == "whole" else []
    wrong += [1e100, "1"] if rules.kind == "number" else []
    return wrong


@pytest.mark.parametrize("name", ROW)
def test_what_a_field_refuses_neither_an_upload_nor_the_store_takes(name: str) -> None:
    for value in _broken(ROW[name]):
        record = RECORD | {name: value}
        with pytest.raises(RecordError):
            ingest.stored(parse_line(json.dumps(record).encode()))
        with pytest.raises(CellError):
            measurement_of(record)


def test_a_whole_record_is_taken_by_all() -> None:
    assert measurement_of(RECORD).case == Case(**{name: RECORD[name] for name in CASE_SCHEMA})
    assert json.loads(ingest.stored(parse_line(json.dumps(RECORD).encode()))) == json.loads(json.dumps(RECORD))
