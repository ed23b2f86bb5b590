"""The front door: which kernels it takes, and that it works wherever scaled_dot_product_attention does."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import dispatch, plans, reference, registry, routes
from kernels.attention import torch_naive
from kernels.tools import host_time
from tests.cases import cases
from tests.kernels.conftest import in_both_places

ON_GPU = torch.cuda.is_available()
TORCH_COMPILE = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def tensors(
    shape: tuple[int, ...] = (2, 4, 200, 64), dtype: torch.dtype = torch.float32, device: str = "cpu", kv_heads: int = 2
) -> list[torch.Tensor]:
    """q, k, v and dout; q, k and v want gradients."""
    batch, heads, seqlen, head_dim = shape
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(batch, h, seqlen, head_dim, generator=generator) for h in (heads, kv_heads, kv_heads, heads))
    *inputs, dout = (x.to(dtype).to(device) for x in made)
    return [*(x.requires_grad_() for x in inputs), dout]


def gradients_of(attention, q, k, v, dout, **options):
    out = attention(q, k, v, **options)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout)]


def errors(values, q, k, v, dout, **options) -> list[float]:
    """Relative errors of out, dq, dk and dv against float64."""
    wanted = reference.gradients(q.detach(), k.detach(), v.detach(), dout, **options)
    pairs = zip(values, (wanted.out, wanted.dq, wanted.dk, wanted.dv), strict=True)
    return [((value.double() - right).norm() / right.norm()).item() for value, right in pairs]


def assert_right(values, q, k, v, dout, **options) -> None:
    """Errors of at most twice torch_naive's in the same dtype, plus a rounding."""
    naive = errors(gradients_of(torch_naive.attention, q, k, v, dout, **options), q, k, v, dout, **options)
    ours = errors(values, q, k, v, dout, **options)
    floor = torch.finfo(q.dtype).eps / 4
    assert all(a <= 2 * b + floor for a, b in zip(ours, naive, strict=True)), (ours, naive)


def test_importing_the_package_brings_no_torch_and_its_submodule_does_not_take_the_functions_name() -> None:
    code = "import kernels, sys; print(callable(kernels.attention), {'torch', 'triton'} & set(sys.modules))"
    code += "\nassert kernels.flash_attn.flash_attn_func and kernels.routes.forget"
    answer = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert answer.stdout.strip() == "True set()", answer.stderr
    code = "from kernels.attention import torch_naive; import kernels; from kernels import registry\n"
    code += "print(kernels.attention.__name__, len(registry.implementations()) > 5, type(kernels.attention).__name__)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert answer.stdout.strip() == "attention True function", answer.stderr


SCALES = [{"causal": True, "softmax_scale": scale} for scale in (0.3, -0.1)]  # the second one is NaN in PyTorch


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window_size": 17}, *SCALES])
def test_on_the_cpu_pytorch_computes_it(options: dict) -> None:
    inputs = tensors()
    assert routes.route_of(*inputs[:3], False, 0, None) is None
    assert_right(gradients_of(kernels.attention, *inputs, **options), *inputs, **options)
    mean = kernels.attention(*inputs[:3], causal=True, softmax_scale=0.0)[:, ::2, -1]
    torch.testing.assert_close(mean, inputs[2].mean(2))


@pytest.mark.parametrize("scale", ["0.5", torch.ones(2), torch.tensor(0.5, requires_grad=True), math.nan])
def test_a_softmax_scale_that_is_no_finite_number_is_refused_in_words(scale) -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 16)
    rows, starts = q[0].transpose(0, 1), torch.tensor([0, 8], dtype=torch.int32)
    calls = (
        partial(kernels.attention, q, k, v),
        partial(kernels.attention, q, k, v, softcap=2.0),
        partial(kernels.attention_varlen, rows, rows, rows, starts, starts, 8, 8),
        partial(kernels.decode, q[:, :, :1], k, v),
        partial(kernels.flash_attn.flash_attn_with_kvcache, *(x.transpose(1, 2) for x in (q, k, v))),
    )
    for call in calls:
        with pytest.raises(registry.UnsupportedCase, match="softmax_scale must be a finite number, or None for"):
            call(softmax_scale=scale)
    assert "softmax_scale must be a finite number" in kernels.explain(q, k, v, softmax_scale=scale)


def test_a_softmax_scale_may_be_a_tensor_of_one_number_which_is_read_at_each_call() -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 16)
    rows, starts = [x[0].transpose(0, 1) for x in (q, k, v)], torch.tensor([0, 8], dtype=torch.int32)
    scale = torch.ones(1)
    for number in (0.25, 0.5):
        scale.fill_(number)
        assert kernels.attention(q, k, v, softmax_scale=scale).equal(kernels.attention(q, k, v, softmax_scale=number))
        call = partial(kernels.attention_varlen, *rows, starts, starts, 8, 8)
        assert call(softmax_scale=scale).equal(call(softmax_scale=number))
    assert kernels.explain(q, k, v, softmax_scale=scale) == kernels.explain(q, k, v, softmax_scale=number)


@TORCH_COMPILE
def test_a_softmax_scale_may_be_a_numpy_number_or_come_from_a_dynamic_size() -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 16)
    of_numpy = kernels.attention(q, k, v, softmax_scale=numpy.float32(0.25))
    assert of_numpy.equal(kernels.attention(q, k, v, softmax_scale=0.25))
    scaled = lambda q, k, v: kernels.attention(q, k, v, softmax_scale=1 / (2 * q.shape[-1]), softcap=3.0)  # noqa: E731
    compiled = torch.compile(scaled, backend="eager", fullgraph=True, dynamic=True)
    for width in (16, 12, 8):
        part = [x[..., :width] for x in (q, k, v)]
        assert torch.allclose(compiled(*part), scaled(*part), atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "options", "sentence"), cases(__file__, "test_what_does_not_belong_together_is_refused_on_any_device")
)
def test_what_does_not_belong_together_is_refused_on_any_device(shapes, options, sentence) -> None:
    with pytest.raises((registry.UnsupportedCase, TypeError), match=sentence):
        kernels.attention(*map(torch.zeros, shapes), **options)
    q = torch.zeros(1, 1, 9, 16)
    with pytest.raises(registry.UnsupportedCase, match="mask must be boolean .*not torch.int32"):
        kernels.attention(q, q, q, mask=torch.ones(9, 9).int())


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # PyTorch: no rule for a batch
def test_transforms_of_torch_func_and_tensors_without_memory_go_to_pytorch() -> None:
    q, k, v, dout = tensors((2, 2, 9, 16))
    expected = gradients_of(kernels.attention, q, k, v, dout, causal=True)
    each = torch.vmap(lambda *x: kernels.attention(*(y[None] for y in x), causal=True)[0])(q, k, v)
    torch.testing.assert_close(each.detach(), expected[0])
    dq = torch.func.grad(lambda x: (kernels.attention(x, k, v, causal=True) * dout).sum())(q)
    torch.testing.assert_close(dq.detach(), expected[1])
    meta = [x.to("meta") for x in (q, k, v)]
    assert kernels.attention(*meta, causal=True).shape == kernels.attention(*meta, return_lse=True)[0].shape == q.shape


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_was_bound_serves_no_call_of_another_kind(monkeypatch) -> None:
    q, k, v = (x.detach() for x in tensors((1, 2, 8, 16))[:3])
    firsts = []
    first = dispatch._first
    monkeypatch.setattr(dispatch, "_SEEN", plans.SeenCalls())
    monkeypatch.setattr(dispatch, "_first", lambda *given: (firsts.append(1), first(*given))[1])
    wanting = q.clone().requires_grad_()
    storage = torch.zeros(q.numel() + 1)
    unaligned = storage[1:].view(q.shape).copy_(q)
    calls = {
        "first": lambda: kernels.attention(q, k, v),
        "dtype": lambda: kernels.attention(q.half(), k.half(), v.half()),
        "strides": lambda: kernels.attention(q.mT.contiguous().mT, k, v),
        "sizes": lambda: kernels.attention(q, k, v[..., :8]),
        "options": lambda: kernels.attention(q, k, v, causal=True),
        "class": lambda: kernels.attention(torch.nn.Parameter(q, requires_grad=False), k, v),
        "gradients": lambda: kernels.attention(wanting, k, v),
    }
    expected = {name: call() for name, call in calls.items()}
    assert len(firsts) == len(calls)
    for name, call in calls.items():
        assert torch.equal(call(), expected[name])
    assert len(firsts) == len(calls)
    with torch.no_grad():
        assert not calls["gradients"]().requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert calls["first"]().dtype == torch.bfloat16
        half = q.bfloat16(), k.bfloat16(), v.bfloat16()
        assert [kernels.attention(*half).dtype for _ in range(2)] == [torch.bfloat16] * 2
    with torch.autocast("cpu", dtype=torch.float16):
        assert kernels.attention(*half).dtype == torch.float16
    with torch.inference_mode():
        assert calls["first"]().is_inference()
    torch.testing.assert_close(kernels.attention(unaligned, k, v), expected["first"])
    assert torch.equal(kernels.attention(q, k, k), kernels.attention(q, k, k))
    assert torch.equal(calls["first"](), expected["first"])
    nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(3, 3)])
    for other in (q.to_sparse(), nested, torch.zeros(1), None):
        with pytest.raises((AttributeError, RuntimeError, TypeError, IndexError)):
            kernels.attention(q, other, v)
        with pytest.raises((AttributeError, RuntimeError, TypeError, IndexError)):
            kernels.attention(q, k, other)


def test_a_known_call_enters_each_module_once() -> None:
    qkv = [torch.ones(1, 1, 16, 16) for _ in range(3)]
    entered: list[str] = []

    def note(frame, event, argument) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("kernels"):
            entered.append(frame.f_globals["__name__"])

    with host_time.launching_nothing():
        for _ in range(2):
            entered.clear()
            sys.setprofile(note)
            kernels.attention(*qkv, causal=True)
            sys.setprofile(None)
    modules = [name for name, _ in groupby(name for name in entered if "tools" not in name)]
    assert modules[:4] == ["kernels", "kernels.dispatch", "kernels.attention.triton_fa2.plan", "kernels.launches"]
    assert len(set(modules)) == len(modules)


@TORCH_COMPILE
def test_it_compiles_whole_on_the_cpu() -> None:
    inputs = tensors((1, 2, 40, 16))
    compiled = torch.compile(kernels.attention, fullgraph=True, backend="aot_eager")
    assert_right(gradients_of(compiled, *inputs, causal=True), *inputs, causal=True)


@in_both_places
def test_autocast_sets_the_dtype_and_gradients_keep_theirs(device: str) -> None:
    q, k, v, _ = tensors((2, 4, 256, 64), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = kernels.attention(q, k, v, causal=True)
        assert kernels.attention(q.double(), k.double(), v.double()).dtype == torch.float64
    assert out.dtype == torch.bfloat16
    assert torch.autograd.grad(out.sum(), (q, k, v))[0].dtype == torch.float32
    assert kernels.attention(q, k, v).dtype == torch.float32


@in_both_places
def test_a_checkpointed_call_has_the_same_gradients(device: str) -> None:
    on_gpu = ((8, 8, 1024, 256), torch.bfloat16, device)  # long enough for our kernels
    q, k, v, dout = tensors(*on_gpu) if ON_GPU else tensors()
    plain = gradients_of(kernels.attention, q, k, v, dout, causal=True)
    kept = checkpoint(lambda *x: kernels.attention(*x, causal=True), q, k, v, use_reentrant=False)
    again = [kept.detach(), *torch.autograd.grad(kept, (q, k, v), dout)]
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.fixture
def operators():
    """The operators, which compute on the CPU in Triton's interpreter."""
    launch = pytest.importorskip("kernels.attention.triton_fa2.launch", exc_type=ImportError)
    if not ON_GPU and not launch.INTERPRETED:
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    import kernels.torch_ops

    return kernels.torch_ops


@TORCH_COMPILE
def test_the_operators_keep_their_promises_to_pytorch(operators, device: str) -> None:
    q, k, v, _ = tensors((1, 2, 20, 16), device=device, kv_heads=1)
    torch.library.opcheck(operators.trained, (q, k, v, True, 0, None))
    torch.library.opcheck(operators.forward, (q.mT.contiguous().mT.detach(), k.detach(), v.detach(), False, 5, 0.2))


@TORCH_COMPILE
@pytest.mark.parametrize("looks", ["nobody", "a mode", "a profile", "autograd"])
def test_python_answers_a_repeated_operator_where_nobody_looks_at_it(operators, device, monkeypatch, looks) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            return operator(*args, **(kwargs or {}))

    q, k, v, dout = (x.detach() for x in tensors((1, 2, 20, 16), device=device))
    options = (True, 0, None)
    expected = [operators.forward(q, k, v, *options) for _ in range(3)][0]
    dispatched: list[int] = []
    attend = operators._known_or_first
    monkeypatch.setattr(operators, "_known_or_first", lambda *given: dispatched.append(1) or attend(*given))
    with {"a mode": Mode(), "a profile": torch.profiler.profile()}.get(looks, nullcontext()):
        found = operators.forward(q.requires_grad_(looks == "autograd"), k, v, *options)
    assert bool(dispatched) == (looks != "nobody") and found[0].requires_grad == (looks == "autograd")
    assert all(map(torch.equal, found, expected))
    saved = [q.detach(), k, v, *expected, dout]
    gradients = [operators.backward(saved, *options) for _ in range(3)]
    assert all(map(torch.equal, gradients[0], gradients[2]))


@TORCH_COMPILE
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_compiled_operators_have_the_gradients_of_the_formula(operators, device: str, kv_heads: int) -> None:
    inputs = tensors((1, 2, 40, 16), device=device, kv_heads=kv_heads)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attention(q, k, v):
        return operators.trained(q, k, v, True, 0, None)[0]

    assert_right(gradients_of(attention, *inputs), *inputs, causal=True)


def test_a_query_that_sees_no_key_passes_nothing_on(operators, device: str) -> None:
    q, k, v, _ = tensors((1, 2, 20, 16), device=device)
    out, lse = operators.forward(q, k[:, :, :0], v[:, :, :0], False, 0, None)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.all(lse == float("inf"))


@pytest.fixture
def decoder():
    """`routes.route`, whose outputs come from triton_decode for few query tokens, in Triton's interpreter here."""
    launch = pytest.importorskip("kernels.decode.triton_decode.launch", exc_type=ImportError)
    if not ON_GPU and not launch.INTERPRETED:
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    return routes.route


def few_tokens(seqlen_q: int, device: str, heads: tuple[int, int] = (4, 2), seqlen_k: int = 530) -> list[torch.Tensor]:
    """q, k, v and dout of head_dim 32, keys and values as slices of a longer cache; q, k and v want gradients."""
    generator = torch.Generator().manual_seed(0)
    rows = (2, heads[0], seqlen_q, 32), (2, heads[1], seqlen_k + 38, 32), (2, heads[1], seqlen_k + 38, 32)
    q, k, v = (torch.randn(*shape, generator=generator).to(device) for shape in rows)
    inputs = (x.requires_grad_() for x in (q, k[:, :, :seqlen_k], v[:, :, :seqlen_k]))
    return [*inputs, torch.randn(q.shape, generator=generator).to(device)]


@pytest.mark.parametrize("heads, seqlen_q, options", cases(__file__, "few query tokens"))
def test_few_query_tokens_are_decoded_where_no_gradients_are_wanted(decoder, device, heads, seqlen_q, options) -> None:
    q, k, v, _ = few_tokens(seqlen_q, device, heads)
    route = decoder(q, k, v, *options)
    assert type(route.output.__self__).__module__ == "kernels.decode.triton_decode.plan"
    with torch.no_grad():
        out = plans.attend(route, q, k, v)
    causal, window_size, softmax_scale = options
    masks = {"causal": causal, "window_size": window_size, "softmax_scale": softmax_scale or 32**-0.5}
    expected = reference.attention(q, k, v, **masks)
    assert (out.double() - expected.out).abs().max() < 1e-5


@pytest.mark.parametrize("door", ["attention", "decode", "pages"])
def test_a_cache_that_grows_is_planned_once_for_each_tile(decoder, device, monkeypatch, door) -> None:
    from kernels.decode.triton_decode import calls, plan

    made: list[int] = []
    tile_of = plan._tile_of
    monkeypatch.setattr(plan, "_tile_of", lambda *asked, **how: made.append(1) or tile_of(*asked, **how))
    monkeypatch.setattr(plan, "machine_on", lambda device: ("sm_90", 132, 0))
    plans.forget()
    for step in range(0, 27, 13):  # a cache of its own, and a part of a longer one
        q, k, v, _ = (x.detach()[:1] for x in few_tokens(1, device, seqlen_k=530 + step))
        caches = (k.contiguous(), v.contiguous()) if step % 2 else (k, v)
        if door == "attention":
            grown = decoder(q, *caches, True, 0, None).output.__self__
            out = grown.output(q, *caches)
        else:
            table = torch.arange(530 + step, dtype=torch.int32, device=device)[None]
            paged = {"page_table": table, "kv_layout": "HND"} if door == "pages" else {}
            caches = tuple(x[0, :, :, None].transpose(0, 1) for x in caches) if paged else caches  # a page for each key
            out = kernels.decode(q, *caches, **paged)
            grown = list(calls.PLANS.values())[-1]
        fresh = plan.Plan(grown.request, one_launch=door == "attention")
        made.pop()
        assert grown.shares == fresh.shares and grown.request.capacity == 530 + step
        expected = reference.attention(q, k, v, causal=True, softmax_scale=32**-0.5).out
        assert (out.double() - expected).abs().max() < 1e-5
    plans.forget()
    assert len(made) == 1


def test_few_query_tokens_have_the_gradients_of_the_formula(decoder, device) -> None:
    inputs = few_tokens(3, device, (2, 1))
    route = decoder(*inputs[:3], True, 0, None)
    assert_right(gradients_of(lambda *x, causal: plans.attend(route, *x), *inputs, causal=True), *inputs, causal=True)


def test_queries_and_caches_may_have_any_strides(decoder, device) -> None:
    q, k, v, _ = (x.detach() for x in few_tokens(2, device))
    expected = reference.attention(q, k, v, causal=True, softmax_scale=32**-0.5).out
    turned = [x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0) for x in (q, k, v)]
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    for tensors_ in (turned, strided):
        out = plans.attend(decoder(*tensors_, True, 0, None), *tensors_)
        assert (out.double() - expected).abs().max() < 1e-5


def test_many_query_tokens_few_keys_and_rows_read_two_bytes_at_a_time_are_not_decoded(device) -> None:
    q, k, v, _ = few_tokens(17, device)
    assert not routes.decodes(q, k, v)
    assert routes.decodes(q[:, :, :16], k, v)
    assert not routes.decodes(q[:, :, :16], k[:, :, : routes.DECODED_KEYS - 1], v)
    many = k[:1].expand(routes.MANY_KEY_HEADS, -1, -1, -1)[:, :, : routes.DECODED_KEYS_SHARED]
    assert routes.decodes(q[:1, :, :1].expand(routes.MANY_KEY_HEADS, -1, -1, -1), many, many)
    q, k = torch.empty(1, 2, 1, 72), torch.empty(1, 2, routes.DECODED_KEYS, 72)
    assert not routes.decodes(q, k, k)
    assert routes.decodes(q[..., :64], k[..., :64], k[..., :64])


@pytest.mark.slow
@TORCH_COMPILE
def test_compiled_calls_of_few_query_tokens_are_decoded(decoder, device, monkeypatch) -> None:
    q, k, v, _ = few_tokens(2, device)
    monkeypatch.setattr(routes, "takes", lambda q, k, v: True)
    names = []

    def backend(module, example_inputs):
        names.extend(str(node.target) for node in module.graph.nodes)
        return module

    compiled = torch.compile(lambda *x: kernels.attention(*x, causal=True), fullgraph=True, backend=backend)
    with torch.no_grad():
        out = compiled(q, k, v)
    assert any("decode" in name for name in names)
    assert (out.double() - reference.attention(q, k, v, causal=True, softmax_scale=32**-0.5).out).abs().max() < 1e-5
    names.clear()
    compiled(q, k, v).sum().backward()
    assert q.grad is not None
    assert not any("decode" in name for name in names)


@TORCH_COMPILE
@pytest.mark.parametrize(
    "heads, kv_heads, queries, causal, trains",
    [(12, 12, 196, False, True), (120, 120, 196, True, True), (12, 6, 196, False, True), (120, 120, 196, False, False)]
    + [(12, 12, 8, False, False), (12, 12, 8, True, True)],
)
def test_a_compiled_call_is_decided_by_few_globals_as_by_many(
    heads, kv_heads, queries, causal, trains, in_program, monkeypatch
) -> None:
    from kernels import torch_ops

    def call(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return kernels.attention(q, k, k, causal=causal)

    def noted(entries: Sequence[Any]) -> list[bool]:
        read.append(sum("kernels" in entry.name for entry in entries))
        return [True] * len(entries)

    read: list[int] = []
    x = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, requires_grad=trains)
    q, k = x.expand(64, heads, queries, 64), x.expand(64, kv_heads, 196, 64)
    compiled = torch.compile(call, backend=lambda *_: lambda *x: x[-1:], options={"guard_filter_fn": noted})
    few = [*in_program(call, q, k)]
    compiled(q, k)
    monkeypatch.setattr(torch_ops, "in_program", lambda *_, **__: None)
    assert few and in_program(call, q, k) == [*few, *few]
    compiled(q, k)
    assert queries != 196 or read[0] < 0.6 * read[1], read


@TORCH_COMPILE
@pytest.mark.parametrize("decided_by", ["takes", "most_in_program"])
def test_a_program_with_dynamic_sizes_leaves_short_training_calls_to_pytorch(monkeypatch, decided_by) -> None:
    answers = {"takes": lambda q, k, v: True, "most_in_program": lambda call, dtype, device, head_dim: 1e5}
    for name, answer in ((decided_by, answers[decided_by]), ("most_operations", lambda call, device, head_dim: 1e5)):
        monkeypatch.setattr(routes, name, torch.compiler.assume_constant_result(answer))
    graphs: list[str] = []
    backend = lambda module, _: graphs.append(module.code) or (lambda *inputs: inputs[-1:])  # noqa: E731
    compiled = torch.compile(lambda x: kernels.attention(x, x, x), fullgraph=True, backend=backend, dynamic=True)
    for seqlen in (8, 9, 10, 11, 12, 90):
        compiled(torch.ones(1, 2, seqlen, 16, dtype=torch.bfloat16, requires_grad=True))
    assert ["scaled_dot_product" in graph for graph in (graphs[0], graphs[-1])] == [True, False] and len(graphs) < 4


class TestOnGpu:
    pytestmark = [pytest.mark.gpu, TORCH_COMPILE]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize("shape", [(1, 4, 128, 64), (4, 8, 1000, 64), (2, 8, 1024, 128), (2, 4, 1030, 256)])
    def test_out_and_gradients_are_right(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        inputs = tensors(shape, dtype, "cuda")
        for options in ({}, {"causal": True}, {"causal": True, "window_size": 100}):
            assert_right(gradients_of(kernels.attention, *inputs, **options), *inputs, **options)

    @pytest.mark.parametrize(
        ("shape", "backend"),
        [((1, 4, 128, 64), "aot_eager"), ((4, 8, 1024, 128), "inductor"), ((4, 8, 1024, 256), "aot_eager")],
    )
    def test_it_compiles_whole_and_agrees_with_eager(self, shape: tuple[int, ...], backend: str) -> None:
        inputs = tensors(shape, torch.bfloat16, "cuda")

        @torch.compile(fullgraph=True, backend=backend)
        def compiled(q, k, v):
            return kernels.attention(q * 2, k, v, causal=True) * 2

        values = gradients_of(compiled, *inputs)
        eager = gradients_of(lambda q, k, v: kernels.attention(q * 2, k, v, causal=True) * 2, *inputs)
        for value, wanted in zip(values, eager, strict=True):
            assert ((value - wanted).double().norm() / wanted.double().norm()).item() < 2**-6  # perhaps PyTorch's

    @pytest.mark.parametrize("shape", [(1, 4, 128, 64), (4, 8, 1024, 128)])
    def test_a_graph_replays_on_new_data(self, shape: tuple[int, ...]) -> None:
        inputs = tensors(shape, torch.bfloat16, "cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            gradients_of(kernels.attention, *inputs, causal=True)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values = gradients_of(kernels.attention, *inputs, causal=True)
        with torch.no_grad():
            for x in inputs:
                x.copy_(torch.randn_like(x))
        graph.replay()
        assert_right(values, *inputs, causal=True)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize("heads", [(32, 8), (71, 1), (8, 8)])
    @pytest.mark.parametrize("seqlen_q", [1, 16])
    def test_few_query_tokens_are_right(self, seqlen_q: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
        q, k, v = (x.detach().to(dtype) for x in few_tokens(seqlen_q, "cuda", heads, 1000)[:3])
        for keys in (1000, 999):  # a growing cache
            out = kernels.attention(q, k[:, :, :keys], v[:, :, :keys], causal=True)
            expected = reference.attention(q, k[:, :, :keys], v[:, :, :keys], causal=True, softmax_scale=32**-0.5).out
            error = (out.double() - expected).abs().max() / expected.abs().max()
            assert error < 4 * max(torch.finfo(dtype).eps, 1e-6)

    def test_layouts_that_the_copy_engine_cannot_address_are_copied(self) -> None:
        q, k, v, dout = (x.detach() for x in tensors((4, 8, 1024, 128), torch.bfloat16, "cuda", kv_heads=8))
        turned = [x.mT.contiguous().mT.requires_grad_() for x in (q, k, v)]
        assert_right(gradients_of(kernels.attention, *turned, dout, causal=True), *turned, dout, causal=True)
        strided = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
        assert_right(gradients_of(kernels.attention, *strided, dout, causal=True), *strided, dout, causal=True)

    def test_what_ours_cannot_compute_goes_to_pytorch(self) -> None:
        inputs = tensors((1, 2, 64, 520), torch.bfloat16, "cuda")
        assert routes.route_of(*inputs[:3], True, 0, None) is None
        assert_right(gradients_of(kernels.attention, *inputs, causal=True), *inputs, causal=True)

    def test_tensors_that_do_not_belong_together_are_refused(self) -> None:
        q = torch.zeros(1, 3, 16, 64, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(registry.UnsupportedCase, match="multiple"):
            kernels.attention(q, q[:, :2], q[:, :2])
