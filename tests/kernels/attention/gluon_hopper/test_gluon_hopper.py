"""gluon_hopper against the float64 oracle on a Hopper GPU, and what it says of shapes and machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels import features, reference, registry
from kernels.attention import gluon_hopper, torch_naive
from kernels.attention.gluon_hopper import configs, tuning
from kernels.features import Features
from kernels.plans import PlanCache
from tests.cases import cases, named
from tests.kernels.conftest import NEEDS_HOPPER

LONG = 4200  # queries: many blocks, the last one not full
ROUNDING = {torch.bfloat16: 1e-3, torch.float16: 1.5e-4}  # a quarter of the dtype's spacing at 1


@dataclass(frozen=True)
class Problem:
    """A case to check; the defaults are the plain one."""

    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool = False
    window_size: int = 0
    num_heads: int = 3
    num_kv_heads: int = 3
    batch: int = 2
    dtype: torch.dtype = torch.bfloat16
    magnitude: float = 1.0  # of q and k
    softmax_scale: float | None = None
    head_dim_v: int = 0  # head_dim if 0

    @property
    def options(self) -> dict[str, object]:
        return {"causal": self.causal, "window_size": self.window_size, "softmax_scale": self.softmax_scale}

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """q, k, v, dout."""
        generator = torch.Generator("cuda").manual_seed(0)
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads, self.num_heads)
        lengths = (self.seqlen_q, self.seqlen_k, self.seqlen_k, self.seqlen_q)
        width = self.head_dim_v or self.head_dim
        widths = (self.head_dim, self.head_dim, width, width)
        amplitudes = (self.magnitude, self.magnitude, 1.0, 1.0)
        return tuple(
            (torch.randn(self.batch, h, s, d, device="cuda", generator=generator) * a).to(self.dtype)
            for h, s, d, a in zip(heads, lengths, widths, amplitudes, strict=True)
        )


def problems() -> Iterator[Any]:
    """Return the problems of the grids in the table next to this file."""
    for name, grids in cases(__file__, "grids").items():
        for grid in grids:
            for values in itertools.product(*grid.values()):
                fields = dict(zip(grid, values, strict=True))
                id_ = f"{name} {'-'.join(map(str, values))}"
                dtype = getattr(torch, fields.pop("dtype", "bfloat16"))
                yield pytest.param(Problem(*fields.pop("lengths"), dtype=dtype, **fields), id=id_)


def results_of(attention: registry.Attention, tensors: tuple[torch.Tensor, ...], **options: object) -> dict:
    """out, dq, dk, dv."""
    *inputs, dout = tensors
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = attention(*inputs, **options)
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *torch.autograd.grad(out, inputs, dout)), strict=True))


def relative_error(value: torch.Tensor, wanted: torch.Tensor) -> float:
    norm = wanted.norm().item()
    return (value.double() - wanted).norm().item() / (norm or 1.0)


def assert_within_budget(problem: Problem, tensors: tuple[torch.Tensor, ...] | None = None) -> None:
    """Each result's error is at most twice torch_naive's in the same dtype, plus rounding."""
    tensors = tensors or problem.tensors()
    wanted = reference.gradients(*tensors, **problem.options)
    ours = results_of(gluon_hopper.attention, tensors, **problem.options)
    naive = results_of(torch_naive.attention, tensors, **problem.options)
    for name, value in ours.items():
        error = relative_error(value, getattr(wanted, name))
        budget = 2 * relative_error(naive[name], getattr(wanted, name)) + ROUNDING[problem.dtype]
        assert error <= budget, f"{name} of {problem}: error {error:.1e}, budget {budget:.1e}"


class TestOnHopper:
    pytestmark = [*NEEDS_HOPPER, pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")]

    @pytest.fixture(autouse=True)
    def new_plans(self, monkeypatch) -> None:
        plan = pytest.importorskip("kernels.attention.gluon_hopper.plan", exc_type=ImportError)
        monkeypatch.setattr(plan, "_PLANS", PlanCache())

    @pytest.mark.parametrize("problem", [*problems()])
    def test_every_length_mask_width_dtype_and_scale_is_right(self, problem: Problem) -> None:
        assert_within_budget(problem)

    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    def test_strided_and_expanded_tensors_are_right(self, head_dim: int) -> None:
        problem = Problem(300, 300, head_dim, causal=True)
        q, k, v, dout = problem.tensors()
        assert_within_budget(problem, tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, dout)))
        assert_within_budget(problem, (q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), dout))
        assert_within_budget(problem, tuple(x.mT.contiguous().mT for x in (q, k, v, dout)))

    @pytest.mark.parametrize("num_kv_heads", [1, 3])  # fewer key heads may be split into parts
    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    def test_gradients_of_packed_qkv_are_right(self, head_dim: int, num_kv_heads: int) -> None:
        problem = Problem(300, 300, head_dim, num_kv_heads=num_kv_heads)
        *inputs, dout = problem.tensors()
        rows = torch.cat([x.transpose(1, 2).flatten(2) for x in inputs], dim=2)
        parts = rows.split([x.shape[1] * head_dim for x in inputs], dim=2)
        assert_within_budget(problem, (*(x.unflatten(2, (-1, head_dim)).transpose(1, 2) for x in parts), dout))

    @pytest.mark.parametrize("ahead", [False, True])  # delta of a later key head
    @pytest.mark.parametrize("head_dim", [64, 128])
    @pytest.mark.parametrize("delay", [1, 3])
    @pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(300, 300), (1000, 100), (130, 1000)])
    def test_a_ring_of_few_slots_is_right(self, monkeypatch, seqlen_q, seqlen_k, delay, head_dim, ahead) -> None:
        monkeypatch.setattr(tuning, "dq_delay", lambda *_: delay)
        monkeypatch.setattr(tuning, "heads_by_length", lambda heads, *_: (heads % 2, min(delay, 2)))
        monkeypatch.setattr(tuning, "computes_next_delta", lambda *_: ahead)
        assert tuning.has_dq_warpgroup(head_dim, 15, 2, seqlen_q, seqlen_k, True, False, 132)
        assert_within_budget(Problem(seqlen_q, seqlen_k, head_dim, True, num_heads=10, num_kv_heads=5, batch=3))

    @pytest.mark.parametrize("deterministic", [False, True])
    @pytest.mark.parametrize("head_dim", [60, 64, 128, 256])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("splits", [2, 3, 6])
    def test_gradients_of_groups_that_are_split_are_right(self, monkeypatch, splits, causal, head_dim, deterministic):
        monkeypatch.setattr(tuning, "group_splits", lambda *_: splits)
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
        problem = Problem(520, 700, head_dim, causal, num_heads=12, num_kv_heads=2)
        assert_within_budget(problem)
        assert_within_budget(Problem(2100, 2100, head_dim, causal, num_heads=12, num_kv_heads=2, batch=1))
        tensors = problem.tensors()
        first, again = (results_of(gluon_hopper.attention, tensors, **problem.options) for _ in range(2))
        fixed = ("dq", "dk", "dv") if deterministic or head_dim == 256 else ("dk", "dv")
        assert all(torch.equal(first[name], again[name]) for name in fixed)

    @pytest.mark.parametrize("has_dq_warpgroup", [False, True])
    @pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(700, 384), (1000, 1000), (130, 700)])
    def test_tiles_that_are_split_by_queries_are_right(self, monkeypatch, seqlen_q, seqlen_k, has_dq_warpgroup) -> None:
        monkeypatch.setattr(tuning, "tiles_to_split", lambda n_tiles, *_: min(n_tiles - 1, 7))
        monkeypatch.setattr(tuning, "has_dq_warpgroup", lambda *_: has_dq_warpgroup)
        assert_within_budget(Problem(seqlen_q, seqlen_k, 128, num_heads=10, num_kv_heads=5, batch=3))

    @pytest.mark.parametrize(
        ("heads", "seqlen_k", "head_dim"), [(5, 77, 64), (8, 257, 128), (6, 300, 72), (3, 512, 128)]
    )
    def test_tiles_that_are_all_split_by_queries_are_right(self, heads: int, seqlen_k: int, head_dim: int) -> None:
        assert tuning.tiles_to_split(2 * heads * -(-seqlen_k // 128), 2300, 132)
        assert_within_budget(Problem(2300, seqlen_k, head_dim, num_heads=heads, num_kv_heads=heads))

    @pytest.mark.parametrize("has_dq_warpgroup", [False, True])
    @pytest.mark.parametrize("causal", [False, True])
    def test_gradients_of_long_sequences_are_right(self, monkeypatch, causal, has_dq_warpgroup) -> None:
        monkeypatch.setattr(tuning, "has_dq_warpgroup", lambda *_: has_dq_warpgroup)
        assert_within_budget(Problem(LONG, 300, 128, causal, batch=1))
        assert_within_budget(Problem(LONG, 1000, 128, causal, num_heads=2, num_kv_heads=1, batch=1))

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    def test_many_tiles_give_the_same_result_every_time(self, head_dim: int, causal: bool) -> None:
        problem = Problem(1900, 2048, head_dim, causal, num_heads=5, num_kv_heads=5)
        tensors = problem.tensors()
        first = results_of(gluon_hopper.attention, tensors, **problem.options)
        for _ in range(10):
            again = results_of(gluon_hopper.attention, tensors, **problem.options)
            fixed = ("out", "dk", "dv", "dq") if head_dim == 256 else ("out", "dk", "dv")
            assert all(torch.equal(first[name], again[name]) for name in fixed)
            assert relative_error(again["dq"], first["dq"].double()) < ROUNDING[problem.dtype]  # summed in any order
        assert_within_budget(problem)

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
    @pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(700, 700), (513, 513), (129, 1024)])
    def test_consumers_without_rows_hold_up_no_later_tile(self, seqlen_q, seqlen_k, head_dim, causal) -> None:
        problem = Problem(seqlen_q, seqlen_k, head_dim, causal, num_heads=80, num_kv_heads=40)
        q, k, v, _ = problem.tensors()
        wanted = reference.attention(q, k, v, causal=causal).out
        assert relative_error(gluon_hopper.attention(q, k, v, causal=causal), wanted) < 4 * ROUNDING[problem.dtype]

    @pytest.mark.parametrize("mask", [{}, {"causal": True}, {"causal": True, "window_size": 129}])
    @pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
    def test_gradients_are_the_same_bits_where_pytorch_is_told_to_be_deterministic(self, head_dim, mask, monkeypatch):
        problem = Problem(700, 900, head_dim, **mask, num_heads=16, num_kv_heads=8)
        tensors = problem.tensors()
        wanted = reference.gradients(*tensors, **problem.options)
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        first = results_of(gluon_hopper.attention, tensors, **problem.options)
        for _ in range(5):
            again = results_of(gluon_hopper.attention, tensors, **problem.options)
            assert all(torch.equal(first[name], again[name]) for name in first)
        errors = {name: relative_error(value, getattr(wanted, name)) for name, value in first.items()}
        assert max(errors.values()) < 6 * ROUNDING[problem.dtype], errors

    @pytest.mark.parametrize(
        "mask", [{}, {"causal": True}, {"causal": True, "window_size": 300}, {"window_size": (300, 40)}]
    )
    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    @pytest.mark.parametrize("seqlen", [513, 2050])
    def test_natural_logsumexp_and_largest_logits_are_right(self, seqlen: int, head_dim: int, mask: dict) -> None:
        from kernels.attention.gluon_hopper.plan import plan_of

        problem = Problem(seqlen, seqlen, head_dim, **mask, num_heads=16, num_kv_heads=8)
        q, k, v, _ = problem.tensors()
        plan = plan_of(q, k, v, problem.causal, problem.window_size, 0.2)
        largest = torch.full((16,), -math.inf, device=q.device)
        (out, lse, natural), (same, *_) = (plan.forward_with_more(q, k, v, x) for x in (largest, None))
        assert relative_error(out, same.double()) < 4 * ROUNDING[problem.dtype]  # tiles may differ
        torch.testing.assert_close(natural, lse * math.log(2))
        scores = features.logits(q.double(), k.double(), Features(), **problem.options | {"softmax_scale": 0.2})
        torch.testing.assert_close(largest.double(), scores.amax((0, 2, 3)), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(natural.double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4)

    def test_logsumexp_has_the_meaning_that_the_backward_expects(self) -> None:
        from kernels.attention.gluon_hopper.plan import plan_of

        q, k, v, _ = Problem(300, 200, 128).tensors()
        lse = plan_of(q, k, v, True, 0, 128**-0.5).forward(q, k, v)[1]
        wanted = reference.attention(q, k, v, causal=True).lse / math.log(2)
        assert torch.all(lse[:, :, :100] == math.inf)  # rows that see no key
        torch.testing.assert_close(lse[:, :, 100:].double(), wanted[:, :, 100:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seqlen, head_dim, group_size, n_heads, rows, together", named(__file__, "heads at a time"))
def test_as_many_heads_are_worked_on_at_a_time_as_two_rounds_of_tiles_take(
    seqlen: int, head_dim: int, group_size: int, n_heads: int, rows: int, together: int
) -> None:
    n_m = -(-seqlen // rows)
    programs = min(132, n_m * n_heads)
    assert tuning.heads_in_l2(seqlen, head_dim, group_size, n_heads, n_m, programs) == together


@pytest.mark.parametrize(("head_dim", "stored"), [(64, True), (40, False), (256, True), (200, False), (184, True)])
def test_lanes_store_the_output_only_of_whole_or_narrow_rows(head_dim: int, stored: bool) -> None:
    size = configs.padded_head_dim(head_dim)
    assert tuning.forward_tiles(size, head_dim, 4096, True, False).store_from_registers == stored


def test_a_call_on_the_cpu_says_where_it_runs() -> None:
    q = torch.zeros(1, 1, 16, 64, dtype=torch.bfloat16)
    with pytest.raises(registry.UnsupportedCase, match="Hopper"):
        gluon_hopper.attention(q, q, q)


@pytest.mark.parametrize(
    ("stride_of", "copied"),
    [("contiguous", False), ("heads beside rows", False), ("expanded", True), ("odd rows", True), ("transposed", True)],
)
def test_only_what_tma_cannot_address_is_copied(stride_of: str, copied: bool) -> None:
    launch = pytest.importorskip("kernels.attention.gluon_hopper.launch", exc_type=ImportError)
    x = torch.randn(2, 3, 20, 64).to(torch.bfloat16)
    x = {
        "contiguous": x,
        "heads beside rows": x.transpose(1, 2).contiguous().transpose(1, 2),
        "expanded": x[:, :1].expand(2, 3, 20, 64),
        "odd rows": torch.randn(2, 3, 20, 65).to(torch.bfloat16)[..., :64],
        "transposed": x.mT.contiguous().mT,
    }[stride_of]
    ready = launch.addressable(x)
    assert launch.is_addressable(ready)
    assert (ready is not x) == copied
    assert torch.equal(ready, x)
