"""What the store makes of a journal's lines: every field of each, and a problem for what is no measurement."""

import json
import random
from contextlib import closing
from dataclasses import fields, replace

import pytest

from results.files.journal import RunFolder, line_of, parse_line
from results.records import CASE_FIELDS, Case, Measurement, RecordError, measurement_to_json
from results.store.database import Store, open_store
from tests.cases import cases
from tests.results.store.conftest import CASE, FULL, count, latency


def test_a_measurement_is_stored_to_the_last_digit(opened: Store, folder: RunFolder) -> None:
    folder.append(FULL)
    assert opened.refresh() == 1
    names = [f.name for f in fields(Measurement) if f.name not in ("case", "time")]
    row = opened.rows(f"SELECT {', '.join([*names, *CASE_FIELDS])} FROM measurements")[0]
    stored = dict(zip([*names, *CASE_FIELDS], row, strict=True))
    case = Case(**{name: stored.pop(name) for name in CASE_FIELDS})
    stored |= {name: tuple(stored[name]) for name in ("samples", "flags", "round_sizes")}
    assert Measurement(case=case, time=FULL.time, **stored) == FULL
    assert opened.rows("SELECT time::VARCHAR, time_text FROM measurements") == [("2026-11-21 06:30:00", FULL.time)]


def test_a_journal_from_before_a_field_was_added_reads_the_same(opened: Store, folder: RunFolder) -> None:
    later = ("round_sizes", "sm_clock_mhz", "config", "inputs")
    plain = latency(1, round_sizes=(), sm_clock_mhz=None, config=None)
    old = {name: value for name, value in measurement_to_json(plain).items() if name not in later}
    folder.journal_path.write_text(json.dumps(old, separators=(",", ":")) + "\n")
    assert (opened.refresh(), opened.problems) == (1, [])
    assert opened.rows("SELECT measurement_id, round_sizes, sm_clock_mhz, config, inputs FROM results") == [
        (plain.measurement_id, [], None, None, None)
    ]


@pytest.mark.parametrize("inputs", [None, "normal", "outliers"])
def test_the_store_knows_the_id_of_a_line_whatever_its_inputs(opened: Store, folder: RunFolder, inputs) -> None:
    folder.append(latency(1, case=replace(CASE, inputs=inputs)))
    assert (opened.refresh(), opened.problems) == (1, [])


def test_a_malformed_line_is_a_problem_with_its_number_and_the_others_are_taken(opened, folder, home) -> None:
    folder.append(latency(1))
    with open(folder.journal_path, "ab") as file:
        file.write(b'{"run_id": "r1", "va\n\n\xff\xfe\n')
    folder.append(latency(2))
    opened.refresh()
    assert count(opened) == 2
    assert [(run_id, line) for run_id, line, _ in opened.problems] == [("r1", 2), ("r1", 4)]
    opened.close()
    with closing(open_store(home)) as again:
        assert len(again.problems) == 2
        folder.journal_path.write_text(line_of(latency(1)))
        again.refresh()
        assert (count(again), again.problems) == (1, [])


NUMBERS = cases(__file__, "NUMBERS")


def test_no_numbers_are_taken_that_cannot_be(opened: Store, folder: RunFolder) -> None:
    dice, refused = random.Random(5), 0
    with open(folder.journal_path, "a") as file:
        for number in range(1, 401):
            record = measurement_to_json(latency(number))
            for name in dice.sample(list(NUMBERS), dice.choice((1, 2))):
                record[name] = dice.choice(NUMBERS[name])
            line = json.dumps(record, separators=(",", ":"))
            file.write(line + "\n")
            try:
                parse_line(line.encode())
            except RecordError:
                refused += 1
    opened.refresh()
    assert 50 < refused < 350
    assert len(opened.problems) == refused
    assert count(opened) == 400 - refused


def _spoiled(dice: random.Random) -> bytes:
    """A line with one thing changed, as a hand, a disk or an older version might."""
    record = json.loads(line_of(latency(dice.randrange(10**6))))
    name = dice.choice(list(record))
    numbers = (1, -1, 0, 1.5, 10**12, float("nan"), True, None)
    values = [*numbers, "", "x", "ok", "oom", "float16", "1e5", [], [1], ["a"], {}]
    kind = dice.randrange(5)
    if kind == 0:
        del record[name]
    elif kind == 1:
        record[name] = dice.choice(values)
    elif kind == 2:
        record["extra"] = 1
    elif kind == 3:
        record = dict(sorted(record.items()))
        record[name] = dice.choice(values)
    line = bytearray(json.dumps(record, separators=(",", ":")).encode())
    if kind == 4:
        line[dice.randrange(len(line))] = dice.randrange(256)
    return bytes(line).replace(b"\n", b" ")


def test_no_line_is_taken_that_the_records_refuse_and_none_is_lost(opened: Store, folder: RunFolder) -> None:
    dice = random.Random(7)
    lines = [_spoiled(dice) for _ in range(3000)]
    folder.journal_path.write_bytes(b"".join(line + b"\n" for line in lines))
    opened.refresh()
    problems = {number for _, number, _ in opened.problems}
    refused, ids = set(), set()
    for number, line in enumerate(lines, 1):
        try:
            measurement = parse_line(line)
        except RecordError:
            refused.add(number)
            continue
        if number not in problems:
            ids.add(measurement.measurement_id)
            assert measurement.run_id == "r1"
    assert len(refused) > 500
    assert refused <= problems
    assert len(problems - refused) < 400  # types that the records do not check, such as a number for a note
    assert count(opened) > 500
    stored = opened.rows("SELECT measurement_id FROM measurements")
    assert len(stored) == len(set(stored))
    assert len(stored) == len(ids)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *cases(__file__, "test_a_line_that_is_json_and_still_no_measurement_says_why"),
        ({"batch": 10**10}, "batch is 10000000000"),
        ({"samples": [1, 2, float("nan")]}, "samples hold nan"),
        ({"value": 10**400}, "out of range"),
    ],
)
def test_a_line_that_is_json_and_still_no_measurement_says_why(opened, folder, changes, reason) -> None:
    folder.journal_path.write_text(json.dumps(json.loads(line_of(FULL)) | changes) + "\n")
    assert opened.refresh() == 0
    assert [reason in text for _, _, text in opened.problems] == [True], opened.problems


def test_a_line_written_by_another_hand_is_taken_if_it_says_the_same(opened: Store, folder: RunFolder) -> None:
    record = json.loads(line_of(FULL))
    del record["measurement_id"], record["flags"], record["baseline"]
    folder.journal_path.write_text(json.dumps(dict(sorted(record.items()))) + "\r\n")
    opened.refresh()
    assert opened.rows("SELECT measurement_id, flags FROM measurements") == [(FULL.measurement_id, [])]


def test_a_number_that_comes_again_is_there_once_and_the_first_stays(opened: Store, folder: RunFolder) -> None:
    folder.append(latency(1, note="first"))
    folder.append(latency(1, note="second"))
    assert opened.refresh() == 1
    version = opened.version()
    folder.append(latency(1, note="third"))
    assert (opened.refresh(), opened.version()) == (0, version)
    assert opened.rows("SELECT note FROM measurements") == [("first",)]


def test_a_line_copied_by_hand_gets_the_id_that_belongs_to_it(opened: Store, folder: RunFolder) -> None:
    line = line_of(FULL)
    edited = line.replace('"seqlen_q":128', '"seqlen_q":256')
    folder.journal_path.write_text(edited + line + edited)
    assert opened.refresh() == 2
    other = replace(FULL, case=replace(CASE, seqlen_q=256))
    assert opened.rows("SELECT seqlen_q, measurement_id FROM measurements ORDER BY 1") == [
        (128, FULL.measurement_id),
        (256, other.measurement_id),
    ]
