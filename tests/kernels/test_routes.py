"""Which of our kernels a problem gets on a Hopper GPU, without one."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from kernels import feature_calls, routes
from results.files import columns
from results.files.journal import published_folders
from results.records import Case, measurement_from_json
from results.reports.headline import PICKS
from tests.cases import named
from tests.kernels.tools import picks

OURS = {"triton_fa2", "gluon_hopper"}
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_capability", lambda device: routes.HOPPER)
    monkeypatch.setattr(routes, "_has_gluon", lambda: True)


class OnGpu:
    """What the table asks of a tensor."""

    device = torch.device("cuda")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)


@pytest.mark.parametrize("ways, shape, more, expected", named(__file__, "picks"))
def test_a_call_goes_to_the_kernels_that_are_faster_there(ways, shape, more, expected) -> None:
    batch, heads, queries, head_dim = shape
    of_keys = (batch, more.get("kv_heads", heads), more.get("keys", queries), head_dim)
    q, k = (OnGpu(each, getattr(torch, more.get("dtype", "bfloat16"))) for each in (shape, of_keys))
    picked = {
        routes.name(way, q, k, more.get("scale"), more.get("window", 0), more.get("causal", True)) for way in ways
    }
    assert picked == {expected}


def test_other_chips_take_the_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_capability", lambda device: (8, 9))
    q = OnGpu((8, 16, 2048, 64), torch.bfloat16)
    assert routes.name("forward", q, q, None) == "triton_fa2"


@pytest.mark.parametrize(
    ("seqlen", "head_dim", "head_dim_v", "taken"),
    [(4096, 192, 128, True), (2048, 192, 128, False), (4096, 192, 64, False), (4096, 128, 128, False)],
)
def test_much_work_of_wide_keys_goes_to_the_hopper_kernels(seqlen, head_dim, head_dim_v, taken) -> None:
    q, v = (OnGpu((1, 16, seqlen, width), torch.bfloat16) for width in (head_dim, head_dim_v))
    assert routes.takes_wide_keys(q, q, v, None) == taken
    assert not routes.takes_wide_keys(q, q, v, -0.1)


@pytest.mark.parametrize("batch, causal, window, asked, left", named(__file__, "calls left to PyTorch"))
def test_calls_that_the_host_decides_are_left_to_pytorch(batch, causal, window, asked, left) -> None:
    q = OnGpu((batch, 12, 197, 64), torch.bfloat16)
    assert routes.left_to_pytorch(q, q, causal, window, asked) == left
    assert not routes.left_to_pytorch(OnGpu(q.shape, torch.float32), q, causal, window, asked)


@pytest.mark.parametrize("shape, sequences, masks, ways", named(__file__, "packed sequences"))
def test_packed_sequences_go_to_the_hopper_kernels_where_these_are_faster(shape, sequences, masks, ways) -> None:
    expected = {way: "gluon_hopper" if ways in ("both", way) else "triton_fa2" for way in DIRECTIONS.values()}
    heads, total, head_dim = shape
    for dtype in (torch.bfloat16, torch.float16):
        q, k = (OnGpu((1, n, total, head_dim), dtype) for n in (heads, heads // 4))
        assert routes.packed_names(q, k, k, sequences, masks) == expected


def published() -> list[tuple[str, Case, str, dict[str, float]]]:
    """Run, case, mode and the milliseconds of both, where a published run timed them on the GPU the routes are of.

    Of runs that timed as many heads of one shape the newest counts, because kernels change.
    """
    found: dict[tuple[str, Case, str], dict[str, float]] = {}
    folders = [folder for folder in published_folders() if folder.run().gpu_name == "NVIDIA H200"]
    for folder in sorted(folders, key=lambda folder: folder.run().created or ""):
        for record in columns.read(folder.columns_path):
            if record["implementation"] in OURS and record["timing"] == "kernel" and record["mode"] in DIRECTIONS:
                m = measurement_from_json(record)
                if m.value is not None:
                    found.setdefault((folder.run_id, m.case, m.mode), {})[m.implementation] = m.value
    newest = {}
    for (run, case, mode), times in found.items():
        heads, keys = case.batch * case.num_heads, case.batch * case.num_kv_heads
        if set(times) == OURS:
            newest[replace(case, batch=1, num_heads=heads, num_kv_heads=keys), mode] = run, case, mode, times
    return list(newest.values())


@pytest.mark.slow
def test_no_published_shape_goes_to_the_slower_kernel() -> None:
    cells = published()
    assert len(cells) > 100
    wrong = []
    for _, case, mode, times in cells:
        dtype = getattr(torch, case.dtype)
        q = OnGpu((case.batch, case.num_heads, case.seqlen_q, case.head_dim), dtype)
        k = OnGpu((case.batch, case.num_kv_heads, case.seqlen_k, case.head_dim), dtype)
        picked = routes.name(DIRECTIONS[mode], q, k, None, case.window_size, case.causal)
        if case.features == "sinks" and case.head_dim == 64 and 0 < case.window_size <= feature_calls._SHORT_WINDOW:
            picked = "triton_fa2"
        if times[picked] > 1.1 * min(times.values()):  # a tenth: two runs of one kernel differ by up to a few percent
            wrong.append((q.shape, case.seqlen_k, mode))
    assert not wrong


def test_the_headline_counts_what_an_eager_call_picks_today() -> None:
    assert json.loads(PICKS.read_text()) == picks.record(), "python -m tests.kernels.tools.picks; headline --update"
