"""On a CPU machine these run in Triton's interpreter (float16 and float32), on a CUDA machine for real."""

import math

import pytest
import torch

from kernels import reference, registry
from kernels.plans import PlanCache
from tests.cases import cases
from tests.kernels.conftest import in_both_places

triton_fa2 = pytest.importorskip("kernels.attention.triton_fa2")
modules = (pytest.importorskip(f"kernels.attention.triton_fa2.{x}") for x in ("plan", "problem", "stored", "tuning"))
plan, shapes, stored, tuning = modules
interpreter = pytest.importorskip("triton.runtime.interpreter")
CUDA = torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if CUDA else [])]
# batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim; causal, window_size
CASES = cases(__file__, "CASES")
# every way in which bfloat16 parts are laid out and walked over, and in which scores are stored
BF16X6_CASES, STORED_CASES = cases(__file__, "BF16X6_CASES"), cases(__file__, "STORED_CASES")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_outputs_and_gradients_are_as_near_the_oracle_as_naive(problem, case, dtype):
    shape, causal, window_size = case
    problem(shape, dtype, causal=causal, window_size=window_size).check(triton_fa2.attention)


@pytest.mark.parametrize("backward", [["dq_dkdv"], ["dq", "dkdv"]], ids="-".join)
@pytest.mark.parametrize("case", BF16X6_CASES.values(), ids=BF16X6_CASES.keys())
def test_float32_in_bf16x6_is_as_near_the_oracle_as_naive(problem, case, backward, only, monkeypatch):
    plans = only("forward", "dq", "dkdv", *backward)
    monkeypatch.setattr(tuning, "uses_bf16x6", lambda *key: True)
    shape, causal, window_size = case
    made = problem(shape, torch.float32, causal=causal, window_size=window_size)
    made.check(triton_fa2.attention)
    assert all(used.problem.precision == "bf16x6" for used in plans.values())


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((x, torch.float16) for x in STORED_CASES.values()), ([[1, 2, 1, 20, 300, 100], True, 0], torch.float32)],
)
def test_stored_scores_of_parts_are_as_near_the_oracle_as_naive(problem, case, dtype, only, monkeypatch):
    only("forward", "stored_scores", "stored_dkdv", "stored_dq")
    monkeypatch.setattr(tuning, "uses_bf16x6", lambda *key: True)
    monkeypatch.setattr(stored, "MOST_BYTES", 1)
    shape, causal, window_size = case
    problem(shape, dtype, causal=causal, window_size=window_size).check(triton_fa2.attention)


@pytest.mark.parametrize("backward", [["dq_dkdv"], ["dq", "dkdv"]], ids="-".join)
@pytest.mark.parametrize("name", ["window and rows that see no key", "more keys than queries", "full, unequal lengths"])
def test_a_walk_of_one_masked_loop_is_as_near_the_oracle_as_naive(problem, name, backward, only, monkeypatch):
    plans = only("forward", *backward)
    monkeypatch.setattr(shapes, "ONE_LOOP", 1 << 30)
    sizes, causal, window_size = CASES[name]
    problem(sizes, torch.float16, causal=causal, window_size=window_size).check(triton_fa2.attention)
    (used,) = plans.values()
    assert used.problem.walk_config.one_loop


@pytest.mark.parametrize("dtype, head_dim, window_size, one_loop", cases(__file__, "loops"))
def test_loops_of_much_code_are_not_repeated(dtype, head_dim, window_size, one_loop, on_h200):
    q = torch.empty(1, 1, 4096, head_dim, dtype=getattr(torch, dtype))
    assert shapes.TritonProblem.of(q, q, True, window_size, None, "ieee").walk_config.one_loop == one_loop


@pytest.mark.parametrize(("seqlen_q", "head_dim"), [(1, 128), (1000, 32), (2048, 32)])
def test_few_queries_of_many_keys_have_a_forward_in_float32(seqlen_q, head_dim, on_h200):
    q, k = (torch.empty(1, 1, seqlen, head_dim) for seqlen in (seqlen_q, 8192))
    shape = shapes.TritonProblem.of(q, k, True, 0, None, "ieee")
    assert shape.tiles(shape.forward_table)


@pytest.mark.parametrize("softmax_scale", [0.5, 0.0, -0.25])
def test_any_softmax_scale(problem, softmax_scale):
    shape = (1, 1, 1, 40, 40, 16)
    problem(shape, torch.float32, causal=True, softmax_scale=softmax_scale).check(triton_fa2.attention)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_scores_neither_overflow_nor_lose_the_maximum(problem, dtype):
    # on a GPU the backward recomputes scores of up to 1500 to the bit; numpy's products round by their factors' order
    slack = 32 if dtype == torch.float32 and not CUDA else 1
    problem((1, 2, 2, 64, 64, 32), dtype, causal=True, magnitude=8.0).check(triton_fa2.attention, slack)


def test_rows_of_one_winner_and_scores_of_100000_keep_their_gradients(problem, only):
    only("forward", "dq", "dkdv", tile=tuning.Tile(16, 16, 4, 2))
    made = problem((1, 2, 2, 48, 100, 64), torch.float16, seed=1)
    generator = torch.Generator().manual_seed(1)
    for x in (made.q, made.k, made.v):
        x.div_(torch.rand(x.shape, generator=generator).clamp_(min=1e-3).to(x.device))
    exact = reference.gradients(made.q, made.k, made.v, made.dout)
    rounded = reference.gradients(made.q, made.k, made.v, made.dout, stored_as=torch.float16)
    got = made.run(triton_fa2.attention)
    for name in got:
        expected, best = getattr(exact, name), getattr(rounded, name)
        allowed = 2 * (best - expected).abs().max() + 1e-3 * expected.abs().max()
        assert (got[name].double() - expected).abs().max() <= allowed, name


def chained_dot(builder, a, b, d, *_):
    """Sum a product over its inner dimension term by term, as the FMA units do for any shapes of the factors."""
    total = d.data
    for i in range(a.data.shape[-1]):
        total = (total + a.data[:, i : i + 1].astype("float64") * b.data[i]).astype("float32")
    return interpreter.TensorHandle(total, d.dtype.scalar)


@in_both_places
@pytest.mark.parametrize(("kernels", "head_dim"), [(("dq_dkdv",), 160), (("dq", "dkdv"), 64), (("dq", "dkdv"), 160)])
def test_float32_rows_of_one_winner_give_no_gradient_to_scores(problem, kernels, head_dim, only, monkeypatch):
    if not CUDA:
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", chained_dot)
    only("forward", *kernels, tile=tuning.Tile(16, 16, 4, 1))
    monkeypatch.setattr(tuning, "uses_bf16x6", lambda *key: False)
    made = problem((1, 1, 1, 24, 24, head_dim), torch.float32, softmax_scale=math.log(2))
    made.k = torch.eye(24, head_dim, device=made.k.device)[None, None] * 64
    made.q = made.k.flip(2) * 64
    got = made.run(triton_fa2.attention)
    assert got["out"].equal(made.v.flip(2))
    assert not got["dq"].any()
    assert not got["dk"].any()


def test_transposed_expanded_and_offset_inputs(problem):
    made = problem((2, 2, 2, 40, 40, 16), torch.float16, causal=True)
    made.q = made.q.transpose(1, 2).contiguous().transpose(1, 2)  # (batch, seqlen, heads, head_dim) in memory
    made.k = made.k.mT.contiguous().mT  # the last dim is not contiguous
    made.v = made.v[:, :1].expand(2, 2, 40, 16)
    made.dout = torch.ones((), dtype=torch.float16, device=made.q.device).expand(2, 2, 40, 16)
    made.check(triton_fa2.attention)
    storage = torch.empty(made.q.numel() + 1, dtype=made.q.dtype, device=made.q.device)
    unaligned = storage[1:].view(made.q.shape)
    made.q = unaligned.copy_(made.q)
    made.check(triton_fa2.attention)


def test_gradients_are_the_same_bits_every_time_and_so_is_the_output_without_them(problem):
    made = problem((1, 4, 2, 70, 70, 16), torch.float16, causal=True)
    first, second = made.run(triton_fa2.attention), made.run(triton_fa2.attention)
    assert all(first[name].equal(second[name]) for name in first)
    made = problem((1, 2, 2, 40, 40, 16), torch.float32, causal=True)
    with torch.no_grad():
        out = triton_fa2.attention(made.q, made.k, made.v, causal=True)
    assert out.equal(made.run(triton_fa2.attention)["out"])


def test_a_plan_that_one_tensor_thrice_has_made_serves_three(problem, monkeypatch):
    monkeypatch.setattr(plan, "_PLANS", PlanCache())
    made = problem((1, 1, 1, 20, 20, 16), torch.float32, causal=True)
    x = made.q.detach().requires_grad_()
    triton_fa2.attention(x, x, x, causal=True).sum().backward()
    made.check(triton_fa2.attention)
    assert len(plan._PLANS) == 1


def test_tensors_without_elements(device):
    q = torch.empty(0, 2, 8, 16, device=device)
    assert triton_fa2.attention(q, q, q).shape == q.shape


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256, 512])
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    @pytest.mark.parametrize("causal", [True, False])
    def test_every_rung_of_the_tables_is_right(self, problem, head_dim, dtype, causal):
        for heads, seqlen in ((1, 300), (1, 3100), (1, 7000), (48, 1100)):
            made = problem((1, heads, heads, seqlen, seqlen, head_dim), getattr(torch, dtype), causal=causal)
            made.check(triton_fa2.attention)

    def test_tf32_is_near_the_oracle(self, problem):
        for seqlen in (300, 3100, 7000):
            made = problem((1, 1, 1, seqlen, seqlen, 64), torch.float32, causal=True)
            got, expected = made.run(registry.get("triton_fa2_tf32").attention), made.expected()
            for name in expected:
                assert (got[name].double() - expected[name]).norm() < 5e-3 * expected[name].norm()

    def test_more_heads_than_a_grid_axis_has(self, problem):
        problem((1, 70000, 70000, 5, 5, 16), torch.float16, causal=True).check(triton_fa2.attention)

    def test_offsets_beyond_32_bits(self):
        k = torch.randn(1, 1, 70000, 64, device="cuda", dtype=torch.bfloat16)
        wide = torch.empty(1, 70000, 640, 64, device="cuda", dtype=torch.bfloat16)  # 2.9e9 elements
        strided = wide.transpose(1, 2)[:, 639:]
        strided.copy_(k)
        q = torch.randn(1, 1, 16, 64, device="cuda", dtype=torch.bfloat16)
        expected = triton_fa2.attention(q, k, k, causal=True)
        assert triton_fa2.attention(q, strided, strided, causal=True).equal(expected)

    def test_it_can_be_captured_in_a_graph(self, problem):
        made = problem((1, 2, 2, 128, 128, 64), torch.bfloat16, causal=True)
        expected = triton_fa2.attention(made.q, made.k, made.v, causal=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = triton_fa2.attention(made.q, made.k, made.v, causal=True)
        graph.replay()
        torch.cuda.synchronize()
        assert out.equal(expected)
