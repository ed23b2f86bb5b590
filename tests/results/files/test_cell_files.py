"""Files of a cell lie where both the runner and the pages look for them."""

import math
from pathlib import Path

import pytest

from results.files import cell_files
from results.records import case_to_json, layer_case

CASE = layer_case("gqa", batch=1, num_heads=4, num_kv_heads=2, seqlen=128, head_dim=64, dtype="float32", causal=False)
FIELDS = case_to_json(CASE)


def path(case: dict, *, kind: str = "profile", name: str = "torch_naive", mode: str = "fwd") -> Path:
    return cell_files.path_of(Path("run"), kind, case, name, mode)


def test_a_row_of_a_table_has_the_path_of_its_case() -> None:
    of_table = {name: math.nan if value is None else value for name, value in FIELDS.items()}
    of_table |= {"num_heads": 4.0, "causal": False, "note": "more than a case"}
    assert path(of_table) == path(FIELDS)
    assert path(FIELDS) == Path("run/files/torch_naive-fwd-852b4ebda371.trace.json"), (
        "files of earlier runs keep their names"
    )


@pytest.mark.parametrize(
    "other", [{"kind": "snapshot"}, {"name": "triton_fa2"}, {"mode": "bwd"}, {"case": FIELDS | {"subject": "mha"}}]
)
def test_cells_and_kinds_have_files_of_their_own(other: dict) -> None:
    assert path(**({"case": FIELDS} | other)) != path(FIELDS)
