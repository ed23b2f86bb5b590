"""What attention packages share between a call and its launches: keys, the cache, autograd and checks of inputs."""

from __future__ import annotations

import pytest
import torch

from kernels import plans
from kernels.registry import UnsupportedCase
from tests.cases import cases


def key(q: torch.Tensor, *options: object) -> tuple:
    return plans.plan_key(q, q, q, options)


def test_a_key_tells_apart_all_that_a_plan_depends_on() -> None:
    storage = torch.zeros(2 * 64 * 16 + 8, dtype=torch.float16)
    q = storage[:-8].view(1, 2, 64, 16)
    others = {
        "dtype": q.bfloat16(),
        "device": q.to("meta"),
        "shape": q[:, :1],
        "strides": q.mT.contiguous().mT,
        "alignment": storage[1:-7].view(1, 2, 64, 16),
    }
    keys = {name: key(x, True) for name, x in others.items()} | {"options": key(q, False), "itself": key(q, True)}
    assert len(set(keys.values())) == len(keys)
    assert key(storage[8:].view(1, 2, 64, 16), True) == key(q, True), "another address, as aligned"


def test_a_full_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 2)
    cache: plans.PlanCache[str] = plans.PlanCache()
    assert [cache.remember((number,), f"plan {number}") for number in range(3)] == ["plan 0", "plan 1", "plan 2"]
    assert dict(cache) == {(2,): "plan 2"}


class Doubling:
    """A plan whose output is 2 q, and whose gradients say which tensors it was given."""

    prepare = None

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * q

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * q, q.sum(-1)

    def backward(self, q, k, v, out, lse, dout):
        return dout * q, dout * k, dout * v


def test_gradients_come_from_the_plan_and_only_where_they_are_wanted() -> None:
    q, k, v = (torch.full((1, 1, 2, 4), float(value)) for value in (3, 5, 7))
    assert plans.attend(Doubling(), q, k, v).grad_fn is None
    k.requires_grad_()
    out = plans.attend(Doubling(), q, k, v)
    assert torch.equal(out, 2 * q)
    assert torch.equal(torch.autograd.grad(out, k, torch.ones_like(out))[0], k)
    with torch.no_grad():
        assert plans.attend(Doubling(), q, k, v).grad_fn is None


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_a_plan_prepares_its_tensors(wants_gradient: bool) -> None:
    plan = Doubling()
    plan.prepare = lambda x: x + 1
    q = torch.zeros(1, 1, 2, 4, requires_grad=wants_gradient)
    out = plans.attend(plan, q, q, q)
    assert torch.equal(out.detach(), torch.full_like(q, 2.0).detach())
    if wants_gradient:
        out.sum().backward()
        assert torch.equal(q.grad, torch.full_like(q, 3.0).detach()), "dq, dk and dv of the prepared tensors"


@pytest.mark.parametrize(
    ("q", "k", "sentence"),
    cases(__file__, "test_inputs_that_do_not_belong_together_are_refused_in_the_name_of_the_implementation"),
)
def test_inputs_that_do_not_belong_together_are_refused_in_the_name_of_the_implementation(q, k, sentence) -> None:
    q, k = torch.zeros(q), torch.zeros(k)
    with pytest.raises(UnsupportedCase, match=f"^mine got q .*{sentence}"):
        plans.check_inputs("mine", q, k, k, (torch.float32,))


def test_dtypes_and_devices_must_agree() -> None:
    q = torch.zeros(1, 1, 8, 16)
    plans.check_inputs("mine", q, q, q, (torch.float32,))
    for k in (q.half(), q.to("meta")):
        with pytest.raises(UnsupportedCase, match="one dtype of|on one device"):
            plans.check_inputs("mine", q, k, k, (torch.float32,))


def test_gradients_are_taken_once_and_a_second_time_or_a_transform_is_refused() -> None:
    q = torch.ones(1, 1, 2, 4, requires_grad=True)
    (dq,) = torch.autograd.grad(plans.attend(Doubling(), q, q, q).square().sum(), q, create_graph=True)
    assert dq.requires_grad
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dq.sum().backward()
    q = torch.ones(1, 1, 2, 4)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: plans.attend(Doubling(), x, x, x).sum())(q)


def fused(heads: tuple[int, ...], widths: tuple[int, ...], batch: int = 2) -> list[torch.Tensor]:
    """Return tensors (batch, heads, 5, width) that are parts of the rows of one."""
    parts = [count * width for count, width in zip(heads, widths, strict=True)]
    rows = torch.zeros(batch, 5, sum(parts)).split(parts, dim=2)
    return [part.unflatten(2, (-1, width)).transpose(1, 2) for part, width in zip(rows, widths, strict=True)]


@pytest.mark.parametrize(
    ("q", "of_keys", "alone"),
    [
        (None, fused((4, 4, 4), (16, 16, 16)), 0),
        (None, fused((4, 2, 2), (16, 16, 16), batch=1), 0),
        (torch.zeros(2, 4, 5, 16), fused((4, 4), (16, 16)), 1),
        (torch.zeros(2, 4, 5, 24), fused((4, 4), (24, 16)), 1),
        (torch.zeros(2, 4, 5, 16), [torch.zeros(2, 4, 5, 16)] * 2, 3),
        (torch.zeros(2, 1, 5, 4), fused((1, 1), (4, 4)), 3),  # dv would begin within 16 bytes
    ],
)
def test_gradients_lie_side_by_side_where_their_tensors_do(q, of_keys, alone) -> None:
    tensors = of_keys if q is None else [q, *of_keys]
    made: list[torch.Tensor] = []
    room = plans.GradientRoom(*tensors, lambda x: (made.append(x), torch.empty_like(x))[1])
    gradients = room(*tensors)
    assert len(made) == alone
    assert [x.shape for x in gradients] == [x.shape for x in tensors]
    packed = gradients[alone:]
    for i, x in enumerate(packed):
        assert x.stride() == tensors[alone + i].stride()
        assert x.storage_offset() == sum(y.shape[1] * y.shape[3] for y in packed[:i])
        assert x.untyped_storage().data_ptr() == packed[0].untyped_storage().data_ptr()
