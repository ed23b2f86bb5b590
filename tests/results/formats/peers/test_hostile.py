"""Broken files of other tools: every mutant is refused in words or understood, and what is understood can be stored.

A longer run: `ATTNBENCH_MUTANTS=3000 python -m pytest tests/results/formats/peers/test_hostile.py`.
"""

import copy
import csv
import io
import json
import os
import random
from typing import Any

import pytest

from results.files.journal import RunFolder
from results.formats import UploadError, import_understanding, understand
from results.formats.validation import measurement_of, run_of
from results.records import Measurement, Status, measurement_to_json, run_to_json
from results.schema import LARGEST_WHOLE, magnitude_fits
from tests.results.formats.peers.peer_files import EXCERPTS, excerpt

MUTANTS = int(os.environ.get("ATTNBENCH_MUTANTS", "40"))  # of each excerpt
FILES = sorted(path.name for path in EXCERPTS.iterdir() if path.name != "SOURCES.md")
WORDS = (
    *(b"inf", b"-inf", b"NaN", b"Infinity", b"-1", b"0", b"0.0", b"1e999", b"1e-320", b"1e99", b"9" * 30, b"9" * 5000),
    *(b"true", b"null", b"[]", b"{}", b'"', b"'", b",", b";", b"\n", b"\r", b"\x00", b"\xff", b"\xe2\x80\xae", b"|"),
    *(b"[" * 2000, b"![x](http://example.com/y)", b"<script>", b"OOM", b"CUDA out of memory", b"### seqlen=1 ###"),
    *(b"10000-01-01T00:00:00Z", b"999999999", b"1000000000", b"x" * 3000, b"$(reboot)", b"../../etc"),
)
NODES = (
    None,
    True,
    0,
    -1,
    1e99,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x1b[0m",
    [],
    {},
    [[]],
    {"a": 1},
    "9" * 300,
)
NUMBERS = ("value", "mean", "std", "p20", "p80")
SIZES = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "window_size")


def _mutant(data: bytes, chance: random.Random) -> bytes:
    """The data after a few cuts, repeats and insertions."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        until = min(len(data), at + chance.choice((0, 1, 1, 3, 10, 80)))
        data = chance.choice(
            (
                lambda at=at, until=until, data=data: data[:at] + chance.choice(WORDS) + data[until:],
                lambda at=at, until=until, data=data: data[:at] + data[until:],
                lambda at=at, until=until, data=data: data[:until] + data[at:until] + data[until:],
                lambda at=at, data=data: data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
                lambda data=data: _with_number(data, chance),
            )
        )()
    return data


def _with_number(data: bytes, chance: random.Random) -> bytes:
    """The data with one of its numbers replaced, where mutants do most harm."""
    digits = [at for at, byte in enumerate(data) if 48 <= byte < 58]
    if not digits:
        return data
    first = last = chance.choice(digits)
    while first > 0 and data[first - 1 : first].isdigit():
        first -= 1
    while last < len(data) and data[last : last + 1].isdigit():
        last += 1
    return data[:first] + chance.choice(WORDS[:12]) + data[last:]


def _holds(measurement: Measurement) -> None:
    """What holds of every number that is taken."""
    for name in NUMBERS:
        number = getattr(measurement, name)
        assert number is None or (magnitude_fits(number) and measurement.status is Status.OK)
    assert measurement.status is not Status.OK or measurement.value > 0
    for name in SIZES:
        size = getattr(measurement.case, name)
        assert size is None or 0 <= size <= LARGEST_WHOLE
    assert measurement_of(measurement_to_json(measurement)) == measurement


def _table(data: bytes, chance: random.Random) -> bytes:
    """The table with its columns moved, and some of them gone, twice there or renamed."""
    mark = ";" if b";" in data.split(b"\n")[0] else ","
    rows = list(csv.reader(io.StringIO(data.decode()), delimiter=mark))
    order = list(range(len(rows[0])))
    chance.shuffle(order)
    order = [at for at in order if chance.random() > 0.05]
    order += [at for at in order if chance.random() < 0.02]
    written = io.StringIO()
    csv.writer(written, delimiter=mark).writerows([row[at] for at in order if at < len(row)] for row in rows)
    return written.getvalue().encode()


def _document(data: bytes, chance: random.Random) -> bytes:
    """The document, or its lines, with a few nodes of another kind or gone."""
    lines = data.splitlines() if data.startswith(b"{") and b"\n{" in data else [data]
    return b"\n".join(json.dumps(_changed(json.loads(line), chance)).encode() for line in lines)


def _changed(document: Any, chance: random.Random) -> Any:
    for _ in range(chance.randint(1, 3)):
        node = document
        while isinstance(node, dict | list) and node:
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.2:
                node[key] = copy.deepcopy(chance.choice(NODES))
                break
            node = node[key]
    return document


def _read(data: bytes) -> None:
    """Read a mutant: it is refused in words, or all that is taken of it holds."""
    try:
        found = understand("file.txt", data)
    except UploadError as error:
        assert str(error)
        return
    for measurement in found.measurements:
        _holds(measurement)
    for run in found.runs:
        assert run_of(run_to_json(run)) == run
    assert all(rejection.reason and rejection.line > 0 for rejection in found.rejected)


@pytest.mark.parametrize("name", FILES)
def test_a_mutant_is_refused_in_words_or_understood(name: str) -> None:
    chance = random.Random(name)
    for _ in range(MUTANTS):
        _read(_mutant(excerpt(name), chance))


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".csv", ".json", ".jsonl"))])
def test_a_table_of_other_columns_and_a_document_of_other_nodes_too(name: str) -> None:
    chance = random.Random(name)
    change = _table if name.endswith(".csv") else _document
    for _ in range(MUTANTS):
        _read(change(excerpt(name), chance))


@pytest.mark.parametrize("name", FILES)
def test_what_is_understood_is_written_and_read_again(name: str, tmp_path) -> None:
    found = understand(name, excerpt(name))
    assert found.rejected == () and found.measurements
    ids = import_understanding(tmp_path, found, gpu_name="NVIDIA H200")
    written = [m for run_id in ids for m in RunFolder(tmp_path / "runs" / run_id).read()[0]]
    assert {m.measurement_id for m in written} == {m.measurement_id for m in found.measurements}
    assert import_understanding(tmp_path, found) == []
