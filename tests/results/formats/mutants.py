"""Files of every format and broken copies of them, for `test_fuzz.py` and `fuzz.py`."""

import copy
import csv
import io
import json
import random
import re
import tarfile
import tempfile
import zipfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from results.files import journal
from results.formats import ReaderFault, Understanding, UploadError, understand
from results.formats.validation import measurement_of, run_of
from results.records import Measurement, Status, measurement_to_json, run_to_json
from results.render import export
from results.schema import LARGEST_WHOLE, magnitude_fits
from results.store.database import open_store
from tests.builders import LONG, ROW, WIDE, fill, random_runs
from tests.results.formats import spreadsheets
from tests.results.formats.peers.peer_files import NAMES, excerpt

WORDS = (
    b"inf", b"-inf", b"NaN", b"Infinity", b"-1", b"-5", b"0", b"0.0", b"1e999", b"1e-320", b"1e-99", b"1e99",
    b"9" * 30, b"9" * 5000, b"999999999", b"1000000000", b"1,024", b"0,5", b"1.024", b"50%", b"1e5", b"0x10",
    b"true", b"null", b"[]", b"{}", b'"', b"'", b",", b";", b"\n", b"\r", b"\x00", b"\xff", b"\xe2\x80\xae", b"|",
    b"[" * 2000, b'{"a":' * 3000, b"![x](http://example.com/y)", b"<script>", b"OOM", b"CUDA out of memory",
    b"### seqlen=1 ###", b"10000-01-01T00:00:00Z", b"x" * 3000, b"x" * 140_000, b"$(reboot)", b"../../etc",
    b"\n" * 3000, b"=cmd()", b"\xc2\xb5s", b"\xed\xa0\x80", b"\xef\xbb\xbf",
)  # fmt: skip
_NUMBERS = WORDS[:22]
_NODES = (
    None, True, 0, -1, -5, 1e99, 1e-99, 10**30, 999_999_999, float("nan"), float("inf"), "", "x", "\x1b[0m",
    [], {}, [[]], {"a": 1}, "9" * 300, "10000-01-01T00:00:00Z", "![x](http://example.com/y)",
)  # fmt: skip
SIZES = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "window_size")
VALUES = ("value", "mean", "std", "p20", "p80", "ci_low", "ci_high")


@cache
def corpus() -> dict[str, bytes]:
    """Return a file of every format and layout by name: other tools', plain tables, and attnbench's own."""
    files = {name: excerpt(name) for name in NAMES}
    files["long.csv"] = (LONG + ROW + ROW.replace("torch,", "mine,")).encode()
    files["wide.csv"] = (WIDE + "128,64,bf16,0.4,0.9,0.1,0.3,4.0\n").encode()
    tables = {"german": spreadsheets.GERMAN, "merged": spreadsheets.MERGED, "rates": spreadsheets.RATES}
    files |= {f"{name}.csv": text.encode() for name, text in (*tables.items(), ("in_cells", spreadsheets.IN_CELLS))}
    files["sheet.xlsx"] = spreadsheets.workbook(spreadsheets.SHEET)
    with tempfile.TemporaryDirectory() as folder, patch.object(journal, "PUBLISHED", Path(folder) / "none"):
        runs = [(run, measurements[:8]) for run, measurements in random_runs(1, count=2)]
        fill(Path(folder), runs)
        with closing(open_store(Path(folder))) as store:
            files |= {f"own.{form}": export.export(store, form) for form in ("csv", "json", "md")}
        paths = sorted(Path(folder).glob("runs/*/*.json*"))
        members = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    files["measurements.jsonl"] = next(data for name, data in members.items() if name.endswith("l"))
    files["runs.zip"], files["runs.tar"] = zipped(members), tarred(members)
    return files


def mutant(name: str, chance: random.Random) -> bytes:
    """Return a broken copy of that file: bytes cut, repeated and inserted, columns moved, nodes replaced."""
    data, ways = corpus()[name], [_bytes]
    if name.endswith(".csv"):
        ways.append(_table)
    if name.endswith((".json", ".jsonl")):
        ways += [_document, _document]
    if name in ("runs.zip", "sheet.xlsx"):
        ways += [_members, _members]
    return chance.choice(ways)(data, chance)


def read(name: str, data: bytes) -> Understanding | None:
    """Read a mutant: it is refused with a message (None), or each number is valid. Other outcomes are defects."""
    try:
        found = understand(name, data)
    except ReaderFault:
        raise
    except UploadError as error:
        assert str(error).strip()
        return None
    for measurement in found.measurements:
        _holds(measurement)
    for run in found.runs:
        assert run_of(run_to_json(run)) == run
    assert all(rejection.reason and rejection.line > 0 for rejection in found.rejected)
    return found


def _holds(measurement: Measurement) -> None:
    """Assert the rules that every number obeys."""
    for name in VALUES:
        number = getattr(measurement, name)
        assert number is None or (magnitude_fits(number) and measurement.status is Status.OK)
    for name in SIZES:
        size = getattr(measurement.case, name)
        assert size is None or 0 <= size <= LARGEST_WHOLE
    assert measurement_of(measurement_to_json(measurement)) == measurement


def _bytes(data: bytes, chance: random.Random) -> bytes:
    """Return the data after a few cuts, repeats and insertions."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        until = min(len(data), at + chance.choice((0, 1, 1, 3, 10, 80)))
        way = chance.randrange(5)
        if way == 0:
            data = data[:at] + chance.choice(WORDS) + data[until:]
        elif way == 1:
            data = data[:at] + data[until:]
        elif way == 2:
            data = data[:until] + data[at:until] + data[until:]
        elif way == 3:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        else:
            data = _with_number(data, chance)
    return data


def _with_number(data: bytes, chance: random.Random) -> bytes:
    """Return the data with one of its numbers replaced, where mutants do most harm."""
    numbers = [found.span() for found in re.finditer(rb"\d+", data)]
    first, last = chance.choice(numbers or [(0, 0)])
    return data[:first] + chance.choice(_NUMBERS) + data[last:]


def _table(data: bytes, chance: random.Random) -> bytes:
    """Return the table with its columns moved, some of them gone, twice there or full of one word."""
    mark = ";" if b";" in data.split(b"\n")[0] else ","
    rows = list(csv.reader(io.StringIO(data.decode()), delimiter=mark))
    order = list(range(len(rows[0])))
    if chance.random() < 0.5:
        chance.shuffle(order)
        order = [at for at in order if chance.random() > 0.05]
        order += [at for at in order if chance.random() < 0.02]
    full, word = chance.choice(order or [0]), chance.choice(WORDS).decode(errors="ignore")
    if chance.random() < 0.5:
        rows[1:] = [[word if at == full else cell for at, cell in enumerate(row)] for row in rows[1:]]
    written = io.StringIO()
    csv.writer(written, delimiter=mark).writerows([row[at] for at in order if at < len(row)] for row in rows)
    return written.getvalue().encode(errors="replace")


def _document(data: bytes, chance: random.Random) -> bytes:
    """Return the document, or its lines, with a few nodes of another kind or gone."""
    try:
        json.loads(data)
        lines = [data]
    except ValueError:  # one document a line
        lines = data.splitlines()
    return b"\n".join(json.dumps(_changed(json.loads(line), chance)).encode() for line in lines) + b"\n"


def _changed(document: Any, chance: random.Random) -> Any:
    for _ in range(chance.randint(1, 3)):
        node = document
        while isinstance(node, dict | list) and node:
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.2:
                node[key] = copy.deepcopy(chance.choice(_NODES))
                break
            node = node[key]
    return document


def _members(data: bytes, chance: random.Random) -> bytes:
    """Return the archive with its members broken, and their names."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    broken = {}
    for name, content in members.items():
        ways = (_bytes, _document, None) if name.endswith((".json", ".jsonl")) else (_bytes, None, None, None)
        way = chance.choice(ways) if content else None
        prefix = chance.choice(("", "", "", "../../", "/etc/", "a/" * 50))
        broken[prefix + name] = way(content, chance) if way else content
    return zipped(broken)


def zipped(members: dict[str, bytes]) -> bytes:
    """Return a zip of files by their names."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w") -> bytes:
    """Return a tar of files by their names."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()
