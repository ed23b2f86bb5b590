"""The logsumexp as a differentiable result, windows of two widths, and merging, against float64."""

import itertools

import pytest
import torch

import kernels
from kernels import features
from kernels.examples.ring_attention import simulate
from kernels.features import Features
from kernels.registry import UnsupportedCase

WINDOWS = (0, 4, (3, -1), (-1, 2), (5, 1), (0, 3))
MASKS = [{"causal": causal, "window_size": window} for causal, window in itertools.product((False, True), WINDOWS)]


def numbers(*shapes: tuple[int, ...], device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]


def both_gradients(out, lse, inputs):
    """The results, and gradients of sums that weigh out and the lse of rows that see a key."""
    weights = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype, device=x.device).view_as(x) for x in (out, lse)]
    seen = torch.where(lse.isinf(), 0.0, lse)
    return out, lse, *torch.autograd.grad((out * weights[0]).sum() + (seen * weights[1]).sum(), inputs)


def assert_near(got, expected, units: float = 32) -> None:
    for mine, exact in zip(got, expected, strict=True):
        assert torch.equal(mine.isinf(), exact.isinf().to(mine.device))
        mine, exact = (torch.where(x.isinf(), 0.0, x.double()).cpu() for x in (mine, exact))
        assert (mine - exact).abs().max() <= units * torch.finfo(torch.float32).eps * exact.abs().max().clamp(1)


def exact_results(inputs, found=None, **masks):
    causal, window_size = features.one_window(masks["causal"], masks["window_size"])
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    results = features.attention_and_lse(*wide, found or Features(), causal=causal, window_size=window_size)
    return both_gradients(*results, wide)


@pytest.mark.parametrize("masks", MASKS, ids=str)
def test_gradients_flow_through_out_and_lse(front, masks) -> None:
    inputs = numbers((2, 2, 23, 16), (2, 1, 19, 16), (2, 1, 19, 16), device=front)
    out, lse = kernels.attention(*inputs, return_lse=True, **masks)
    assert lse.dtype == torch.float32 and lse.shape == (2, 2, 23)
    assert_near(both_gradients(out, lse, inputs), exact_results(inputs, **masks))
    assert torch.all(out[lse.isinf()] == 0)


def test_a_window_of_two_widths_sees_the_keys_between() -> None:
    q, k, v = numbers((1, 2, 9, 8), (1, 2, 12, 8), (1, 2, 12, 8))
    positions, keys = torch.arange(3, 12)[:, None], torch.arange(12)
    seen = (keys >= positions - 4) & (keys <= positions + 1)
    got = kernels.attention(q, k, v, window_size=(4, 1))
    assert (got - kernels.attention(q, k, v, mask=seen)).abs().max() < 1e-5
    with pytest.raises(UnsupportedCase, match="at least -1"):
        kernels.attention(q, k, v, window_size=(-2, 1))


def test_lse_alone_has_a_gradient_also_in_a_compiled_program(front) -> None:
    inputs = q, k, _ = numbers((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16), device=front)
    hidden = torch.ones(9, 9, dtype=torch.bool, device=front).triu(1)
    exact = (3 * torch.tanh(q @ k.mT / 12)).masked_fill(hidden, float("-inf")).logsumexp(-1)
    expected = torch.autograd.grad(exact.square().sum(), (q, k))
    for attend in (kernels.attention, torch.compile(kernels.attention, backend="aot_eager")):
        lse = attend(*inputs, causal=True, softcap=3.0, return_lse=True)[1]
        assert_near((lse, *torch.autograd.grad(lse.square().sum(), (q, k))), (exact, *expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_packed_sequences_have_their_lse(front, dtype) -> None:
    lengths = [3, 0, 20, 7], [5, 10, 17, 0]
    starts = [torch.tensor([0, *x], device=front).cumsum(0).int() for x in lengths]
    inputs = numbers((30, 4, 16), (32, 2, 16), (32, 2, 16), device=front, dtype=dtype)
    masks = {"causal": True, "window_size": (6, 0)}
    got = kernels.attention_varlen(*inputs, *starts, 20, 17, return_lse=True, **masks)
    assert got[1].shape == (4, 30)
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    expected = []
    for i in range(4):
        rows, keys = (slice(*x[i : i + 2].tolist()) for x in starts)
        parts = [x[s].transpose(0, 1)[None] for x, s in zip(wide, (rows, keys, keys), strict=True)]
        expected.append(features.attention_and_lse(*parts, Features(), causal=True, window_size=7))
    out = torch.cat([x[0].transpose(0, 1) for x, _ in expected])
    lse = torch.cat([x[0] for _, x in expected], 1)
    units = 64 if dtype == torch.float32 else 64 * 2**13
    assert_near(both_gradients(*got, inputs), both_gradients(out, lse, wide), units)
    nothing = kernels.attention_varlen(*inputs, *(x[:1] for x in starts), 0, 0)
    assert not any(x.any() for x in (nothing, *torch.autograd.grad(nothing.sum(), inputs))), "of no sequences at all"


def test_paged_keys_of_packed_queries_are_those_of_their_table(front) -> None:
    starts = [torch.tensor([0, *x], device=front).cumsum(0).int() for x in ([3, 5], [6, 9])]
    q, k, v = numbers((8, 4, 16), (5, 4, 2, 16), (5, 4, 2, 16), device=front)
    table = torch.tensor([[4, 1, 99], [0, 3, 2]], dtype=torch.int32, device=front)  # 99 is beyond the first's keys
    rows = [x[table.clamp(max=4)].flatten(1, 2) for x in (k, v)]
    plain = [torch.cat([x[0, :6], x[1, :9]]) for x in rows]
    results = [
        kernels.attention_varlen(q, *kv, *starts, 5, 9, causal=True, **options)
        for kv, options in (((k, v), {"block_table": table}), (plain, {}))
    ]
    assert_near(*((x, *torch.autograd.grad(x.square().sum(), (q, k, v))) for x in results))
    with pytest.raises(UnsupportedCase, match="hold 12 keys, fewer than 13"):
        kernels.attention_varlen(q, k, v, *starts, 5, 13, block_table=table)


def test_merged_parts_are_the_whole(front) -> None:
    inputs = q, k, v = numbers((1, 2, 9, 16), (1, 2, 21, 16), (1, 2, 21, 16), device=front)
    first = kernels.attention(q, k[:, :, :8], v[:, :, :8], return_lse=True, window_size=(2, 2))  # some rows see no key
    second = kernels.attention(q, k[:, :, 8:], v[:, :, 8:], return_lse=True)
    empty = torch.zeros_like(q), torch.full_like(first[1], float("-inf"))
    seen = torch.ones(9, 21, dtype=torch.bool)
    positions, keys = torch.arange(-1, 8)[:, None], torch.arange(8)
    seen[:, :8] = (positions - keys).abs() <= 2
    merged = kernels.merge(*kernels.merge(*empty, *first), *second)
    expected = exact_results(inputs, Features(mask=seen), causal=False, window_size=0)
    assert_near(both_gradients(*merged, inputs), expected)
    nothing = kernels.merge(*empty, *empty)
    assert torch.equal(nothing[0], empty[0]) and torch.equal(nothing[1], empty[1])


@pytest.mark.parametrize(
    "asked", [{}, {"softcap": 2.0, "window_size": (3, 1)}, {"causal": True, "softmax_scale": -0.7}]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_largest_logit_of_each_head_is_returned(front, asked, dtype) -> None:
    q, k, v = numbers((2, 2, 21, 16), (2, 1, 37, 16), (2, 1, 37, 16), device=front, dtype=dtype)
    out, lse, largest = kernels.attention(q, k, v, return_lse=True, return_max_logits=True, **asked)
    again, alone = kernels.attention(q, k, v, return_max_logits=True, **asked)
    assert torch.equal(out, again) and torch.equal(largest, alone) and largest.shape == (2,)
    masks = {"causal": False, "window_size": 0, "softmax_scale": None, **asked}
    found = Features(softcap=masks.pop("softcap", 0.0))
    exact = features.logits(q.double(), k.double(), found, **masks).amax((0, 2, 3))
    torch.testing.assert_close(largest.double(), exact, rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-5)
    out.sum().backward()
    assert bool(q.grad.isfinite().all()) and not largest.requires_grad
    for tensors in ((q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0])):
        assert torch.equal(
            kernels.attention(*tensors, return_max_logits=True, **asked)[1], largest.new_full((2,), -torch.inf)
        )


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_of_a_ring_computed_in_turn_are_as_near_float64_as_one_call(ranks, device) -> None:
    """Chunks of 5 rows, in float16 whose parts are merged in float32."""
    with torch.no_grad():
        q, k, v = numbers(*[(1, heads, 10 * ranks, 16) for heads in (4, 2, 2)], device=device, dtype=torch.float16)
        found, seconds, _ = simulate(q, k, v, ranks)
        exact = kernels.attention(*(x.double() for x in (q, k, v)), causal=True)
        errors = [(x.double() - exact).norm() for x in (found, kernels.attention(q, k, v, causal=True))]
    assert len(seconds) == ranks
    assert errors[0] <= 2 * errors[1] + torch.finfo(torch.float16).eps * exact.norm()
