"""Files of a call: a trace that names its operators, and memory on a GPU alone."""

import json

import pytest
import torch

from results.files import cell_files
from results.records import case_to_json, layer_case
from runner.cells import Cell
from runner.measure import passes

CASE = layer_case("mha", batch=1, num_heads=1, num_kv_heads=1, seqlen=8, head_dim=8, dtype="float32", causal=False)
CELL = Cell(CASE, "torch_naive", "fwd")


def test_a_trace_names_the_operators_of_one_call(tmp_path) -> None:
    calls = []

    def call() -> torch.Tensor:
        calls.append(1)
        return torch.ones(4, 4) @ torch.ones(4, 4)

    passes.record("profile", lambda: call, tmp_path, CELL)
    path = cell_files.path_of(tmp_path, "profile", case_to_json(CASE), "torch_naive", "fwd")
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("aten::mm") == 1
    assert len(calls) == 2  # one before, to be warm


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_history_of_memory_needs_a_gpu(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="GPUs only"):
        passes.record("snapshot", lambda: lambda: None, tmp_path, CELL)
