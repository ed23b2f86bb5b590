"""Groups of query heads that share keys, split into parts: what programs read, and how dK and dV of parts are added."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import backward_common, tuning
from kernels.attention.gluon_hopper.plan import GluonHopperPlan
from tests.cases import named
from tests.kernels.attention.gluon_hopper.interleavings.program import Program
from tests.kernels.attention.gluon_hopper.test_partitions_backward import KINDS, launches_of, run


@pytest.mark.parametrize(("kind", "head_dim", "heads"), [*((*kind, 8) for kind in KINDS), (*KINDS[0], 14)])
def test_a_program_reads_the_keys_of_its_heads(kind: Any, head_dim: int, heads: int, monkeypatch) -> None:
    kv_heads, splits = 2, 2
    whole = GluonHopperPlan.with_groups_split
    monkeypatch.setattr(tuning, "computes_next_delta", lambda *_: False)
    split = lambda shape, given: kind(whole(shape, splits), given)  # noqa: E731
    found = set()
    monkeypatch.setattr(Program, "load", noting(found, Program.load))
    for launch in launches_of(split, head_dim, (heads, kv_heads, 130, 130), (False, 0)):
        for head in range(launch[1][1]):
            found.clear()
            run(launch, 0, 0, head)
            read = {name: {at for what, at in found if what == name} for name in ("q_desc", "k_desc")}
            assert read["k_desc"] == {int(at) // (heads // kv_heads) for at in read["q_desc"]}
            group = heads // kv_heads
            part = -(-group // splits) if "dk_desc" in launch[0].arg_names else 1
            firsts = [kv * group + first for kv in range(kv_heads) for first in range(0, group, part)]
            end = min(firsts[head] + part, (firsts[head] // group + 1) * group)  # the second part of seven has three
            assert read["q_desc"] == set(range(firsts[head], end))


def noting(found: set[tuple[str, int]], load: Any) -> Any:
    def noted(self: Program, descriptor: Any, place: Any, *rest: Any) -> None:
        found.add((descriptor.name, int(place[1])) if len(place) == 4 else (descriptor.name, 0))
        load(self, descriptor, place, *rest)

    return noted


@pytest.mark.parametrize(("splits", "head_dim", "width"), [(5, 60, 64), (2, 100, 104), (16, 64, 64)])
def test_dk_and_dv_are_the_sums_of_their_parts(device: str, splits: int, head_dim: int, width: int) -> None:
    batch, heads, seqlen = 2, 3, 37
    parts = torch.randn(2, batch, heads * splits, seqlen, width, device=device)
    dk, dv = torch.full((2, batch, seqlen, heads, head_dim), math.nan, device=device).transpose(2, 3)
    sizes = (dk.stride()[:3], dv.stride()[:3], seqlen, heads, splits, 16, width, head_dim, width)
    block = 1 << (head_dim - 1).bit_length()
    backward_common.sum_parts_kernel[(-(-seqlen // 16), batch * heads)](*parts, dk, dv, *sizes[:-1], block)
    for got, of_parts in zip((dk, dv), parts, strict=True):
        wanted = of_parts[..., :head_dim].unflatten(1, (heads, splits)).sum(2)
        torch.testing.assert_close(got, wanted)


# head_dim, key heads, query heads of each, queries, keys, causal
@pytest.mark.parametrize("shape, splits", named(__file__, "splits of groups"))
def test_groups_are_split_where_that_saves_time(shape: tuple[Any, ...], splits: int) -> None:
    assert tuning.group_splits(tuning.SharedKeys(*shape, 0), 132) == splits


@pytest.mark.parametrize(("heads", "splits"), [(71, 8), (13, 13), (12, 6), (7, 7)])
def test_only_a_large_prime_number_of_heads_is_split_into_uneven_parts(heads: int, splits: int) -> None:
    assert tuning.group_splits(tuning.SharedKeys(64, 1, heads, 256, 2048, True, 0), 132, uneven=True) == splits
