"""Our attention in place of scaled_dot_product_attention: equal results, every call counted, the function put back."""

import importlib.util
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import kernels
from kernels import drop_in, routes
from tests.cases import named

ORIGINAL = functional.scaled_dot_product_attention
MASKS = "tiled_v1 does not support masks given as tensors."
FLOAT64 = "tiled_v1 does not support float64 (supports bfloat16, float16, float32)."
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def sdpa(*arguments: torch.Tensor, **options: object) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*arguments, **options)


def tensors(heads: int = 4, kv_heads: int = 4, seqlen_q: int = 9, seqlen_k: int = 9) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, seqlen_q, 16), (2, kv_heads, seqlen_k, 16), (2, kv_heads, seqlen_k, 16))
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize("sizes, options", named(__file__, "served calls"))
def test_a_served_call_has_the_out_and_the_gradients_of_pytorch(sizes: dict, options: dict) -> None:
    inputs = tensors(**sizes)
    expected = gradients(sdpa(*inputs, **options), inputs)
    with kernels.sdpa_replacement("torch_naive") as calls:
        found = gradients(sdpa(*inputs, **options), inputs)
        windowed = gradients(sdpa(*(x[:, None] for x in inputs), **options)[:, 0], inputs)
    assert (calls.served, calls.passed_on) == (2, {})
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(windowed, expected, **CLOSE)


@pytest.mark.parametrize(
    ("inputs", "options", "reason"),
    [
        (tensors(), {"attn_mask": torch.ones(9, 9, dtype=torch.bool)}, MASKS),
        (tensors(), {"attn_mask": torch.zeros(9, 9, requires_grad=True)}, "a mask that wants a gradient"),
        (tensors(), {"dropout_p": 0.3}, "tiled_v1 does not support dropout."),
        ([x[0] for x in tensors()], {}, "tensors that are not (batch, heads, tokens, width)"),
        ([x[:1] if i else x for i, x in enumerate(tensors())], {}, "batches or heads that are broadcast"),
        (tensors(seqlen_k=3), {"is_causal": True}, "a causal mask over more queries than keys"),
        ([x.double() for x in tensors()], {}, FLOAT64),
    ],
)
def test_any_other_call_is_passed_on_unchanged_and_says_why(inputs: list, options: dict, reason: str) -> None:
    torch.manual_seed(0)
    expected = sdpa(*inputs, **options)
    torch.manual_seed(0)
    with kernels.sdpa_replacement("tiled_v1") as calls:
        torch.testing.assert_close(sdpa(*inputs, **options), expected)
    assert (calls.served, calls.passed_on) == (0, {reason: 1})


def test_a_call_left_to_pytorch_is_decided_once_and_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decide, decided = drop_in._first, []
    monkeypatch.setattr(drop_in, "_first", lambda *call: decided.append(1) or decide(*call))
    (q, k, v), mask = tensors(seqlen_k=8), torch.zeros(9, 8, requires_grad=True)
    with kernels.sdpa_replacement("torch_naive") as calls:
        for query in (q, q, q.mT.contiguous().mT):
            torch.testing.assert_close(sdpa(query, k, v, attn_mask=mask), ORIGINAL(q, k, v, attn_mask=mask))
        assert (calls.passed_on, len(decided)) == ({"a mask that wants a gradient": 3}, 1)
        sdpa(q, k, v, attn_mask=mask.detach())
    sdpa(q, k, v)
    assert repr(calls) == "SdpaCalls(served=1, passed_on=Counter({'a mask that wants a gradient': 3}))"
    assert len(decided) == 2


@pytest.mark.parametrize(
    ("mask", "error", "reason"),
    [
        (torch.zeros(9, 9, dtype=torch.long), RuntimeError, "a mask of another dtype"),
        (torch.zeros(9), IndexError, "a mask without a dimension for queries"),
    ],
)
def test_what_pytorch_refuses_raises_its_error(mask, error, reason) -> None:
    with kernels.sdpa_replacement("torch_naive") as calls, pytest.raises(error):
        sdpa(*tensors(), attn_mask=mask)
    assert calls.passed_on == {reason: 1}


def of_many(*qkv: torch.Tensor) -> torch.Tensor:
    return torch.vmap(sdpa)(*(torch.stack([x, 2 * x]) for x in qkv))


def along_a_direction(*qkv: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return forward_ad.unpack_dual(sdpa(forward_ad.make_dual(qkv[0], qkv[0]), *qkv[1:])).tangent


def traced(*qkv: torch.Tensor) -> torch.Tensor:
    return torch.jit.trace(lambda *x: sdpa(*x), qkv, check_trace=False)(*qkv)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (of_many, "a transform of torch.func"),
        (along_a_direction, "forward-mode differentiation"),
        (traced, "torch.jit.trace"),
    ],
)
def test_calls_in_a_mode_that_kernels_do_not_know_are_passed_on(call: Callable[..., torch.Tensor], reason: str) -> None:
    inputs = [x.detach() for x in tensors()]
    expected = call(*inputs)
    with kernels.sdpa_replacement("torch_naive") as calls:
        torch.testing.assert_close(call(*inputs), expected)
    assert (calls.served, calls.passed_on) == (0, {reason: 1})


def test_the_front_door_takes_what_its_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors()
    with kernels.sdpa_replacement() as calls:
        sdpa(*inputs)
        routes.forget()
        monkeypatch.setattr(routes, "takes", lambda q, k, v: True)
        monkeypatch.setattr(drop_in.dispatch, "bound", lambda q, k, v, *options: (lambda *tensors: tensors[0], ()))
        assert sdpa(*inputs) is inputs[0]
    routes.forget()
    assert calls.served == 1
    assert calls.passed_on == {"a device, dtype or width that no kernel of ours takes": 1}


def test_contexts_nest_hold_for_every_thread_and_put_the_function_back_after_an_error() -> None:
    inputs = tensors()
    with pytest.raises(ZeroDivisionError), kernels.sdpa_replacement("torch_naive") as outer:
        with kernels.sdpa_replacement("torch_sdpa_math") as inner:
            thread = threading.Thread(target=sdpa, args=inputs)
            thread.start()
            thread.join()
        sdpa(*inputs)
        assert (outer.served, inner.served) == (2, 1)
        raise ZeroDivisionError
    assert functional.scaled_dot_product_attention is ORIGINAL
    with pytest.raises(KeyError, match="Unknown implementation 'nope'"), kernels.sdpa_replacement("nope"):
        pass


def test_a_checkpointed_call_attends_in_the_backward_as_in_the_forward() -> None:
    inputs = tensors()
    expected = gradients(sdpa(*inputs), inputs)
    with kernels.sdpa_replacement("torch_naive") as calls, set_checkpoint_early_stop(False):
        found = gradients(checkpoint(sdpa, *inputs, use_reentrant=False), inputs)
    assert calls.served == 2
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_code_keeps_the_function_of_pytorch() -> None:
    inputs = tensors()
    with kernels.sdpa_replacement("torch_naive") as calls:
        out = torch.compile(sdpa, fullgraph=True, backend="eager")(*inputs)
    torch.testing.assert_close(out, sdpa(*inputs), **CLOSE)
    assert calls.served == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("heads, left", [(12, True), (120, False)])
@pytest.mark.parametrize("masked", ["bool 1", "bfloat16 196", "no mask"])
def test_compiled_code_leaves_to_pytorch_what_the_host_decides(heads, left, masked, in_program) -> None:
    dtype, _, queries = masked.partition(" ")
    mask = None if dtype == "no" else torch.ones(64, 1, int(queries), 196, dtype=getattr(torch, dtype))
    x = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16).expand(64, heads, 196, 64)
    dropout = 0.0 if masked != "no mask" else 0.1
    with kernels.sdpa_replacement():
        found = in_program(lambda x, mask: sdpa(x, x, x, attn_mask=mask, dropout_p=dropout), x, mask)
    assert found == ["scaled_dot_product_attention" if left or dropout else "attention_with_features"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "scale": 0.3},
        {"attn_mask": torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0)) > 0.3},
        {"attn_mask": torch.linspace(-3, 3, 9)[None]},
    ],
    ids=["full", "causal", "boolean", "additive"],
)
def test_the_gpu_computes_what_pytorch_does(options: dict, compiled: bool) -> None:
    inputs = [x.detach().cuda().requires_grad_() for x in tensors(kv_heads=2)]
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}

    def call(*qkv: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(*qkv, enable_gqa=True, **options)

    expected = gradients(call(*inputs), inputs)
    with kernels.sdpa_replacement() as calls:
        function = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
        found = gradients(function(*inputs), inputs)
        inside = operators(function, inputs)
    assert (calls.served, calls.passed_on) == (0 if compiled else 2, {})
    torch.testing.assert_close(found, expected, **CLOSE)
    assert bool(inside) == compiled
    assert not operators(function, inputs)


def operators(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[str]:
    """The operators of ours in a call: compiled code reaches our kernels through them."""
    with torch.profiler.profile() as profile:
        function(*inputs)
    return [event.name for event in profile.events() if event.name.startswith("attnbench::")]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_dropout_on_the_gpu_keeps_its_share_and_another_one_each_time(compiled: bool) -> None:
    q, v = torch.zeros(2, 4, 128, 16, device="cuda"), torch.ones(2, 4, 128, 16, device="cuda")

    def call() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, q, v, dropout_p=0.25)

    with kernels.sdpa_replacement() as calls:
        function = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
        first, second = function(), function()
    assert calls.served == (0 if compiled else 2)
    assert not first.equal(second)
    assert first.mean().item() == pytest.approx(1.0, abs=0.03)


def test_attention_among_pixels_and_to_a_text_in_pytorchs_modules_has_its_gradients() -> None:
    torch.manual_seed(0)
    among = nn.MultiheadAttention(32, 4, batch_first=True)
    to_text = nn.MultiheadAttention(32, 4, kdim=24, vdim=24, batch_first=True)
    weights = [*among.parameters(), *to_text.parameters()]
    pixels, text = torch.randn(2, 36, 32), torch.randn(2, 7, 24)

    def trained() -> list[torch.Tensor]:
        x = pixels + among(pixels, pixels, pixels, need_weights=False)[0]
        return gradients(x + to_text(x, text, text, need_weights=False)[0], weights)

    expected = trained()
    with kernels.sdpa_replacement("torch_naive") as calls:
        found = trained()
    assert (calls.served, calls.passed_on) == (2, {})
    torch.testing.assert_close(found, expected, **CLOSE)


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    section = (Path(kernels.__file__).parent / "README.md").read_text().split("## Drop-in")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks if importlib.util.find_spec("transformers") else blocks[1:]:
        exec(block, {})
    assert capsys.readouterr().out.strip() == re.search(r"# on a CPU: (.*)", blocks[1]).group(1)
