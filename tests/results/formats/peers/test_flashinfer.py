"""FlashInfer's benchmark table and flashinfer-bench's traces."""

import json

from results.records import Status
from tests.results.formats.peers.peer_files import excerpt, understood


def test_a_wrong_result_has_no_speed() -> None:
    line = json.loads(excerpt("flashinfer_trace.jsonl").splitlines()[0])
    line["evaluation"] |= {"status": "INCORRECT_NUMERICAL"}
    (only,) = understood("", json.dumps(line).encode()).measurements
    assert (only.status, only.value) == (Status.INCORRECT, None)


def test_a_line_that_is_no_object_is_refused_with_its_number() -> None:
    data = excerpt("flashinfer_trace.jsonl").splitlines()
    found = understood("", b"\n".join([data[0], b"[1, 2]", b'{"definition": 3}', data[1]]))
    assert [r.line for r in found.rejected] == [2, 3] and len(found.measurements) == 3


def test_a_batch_of_the_largest_size_costs_no_memory() -> None:
    rows = excerpt("flashinfer.csv").decode().splitlines()
    at = rows[0].split(",").index("batch_size")
    cells = next(row for row in rows if row.startswith("BatchDecode")).split(",")
    data = "\n".join([rows[0], ",".join([*cells[:at], "999999999", *cells[at + 1 :]])])
    found = understood("", data.encode())
    assert {m.case.batch for m in found.measurements} == {999_999_999} and found.rejected == ()
