"""Recordings: every call counted once with its problem, whatever a program does around it, and nothing left behind."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import dispatch, feature_calls, flash_attn, recorder, transformers
from kernels.problem import Problem

BEFORE = functional.scaled_dot_product_attention, dispatch.attention, transformers._by_mask


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    yield
    assert (functional.scaled_dot_product_attention, dispatch.attention, transformers._by_mask) == BEFORE
    assert not recorder._OPEN and not recorder._UNDO
    assert torch._dynamo.eval_frame._stance.stance == "default"  # of torch.compile


def tensors(heads: int = 4, kv_heads: int = 4, seqlen_q: int = 8, seqlen_k: int = 8) -> list[torch.Tensor]:
    return [torch.randn(2, heads, seqlen_q, 16), *(torch.randn(2, kv_heads, seqlen_k, 16) for _ in range(2))]


def asked(mask: str = "full", heads: int = 4, kv_heads: int = 4, queries: int = 8, keys: int = 8, **more) -> Problem:
    layout = more.pop("layout", "contiguous")
    return Problem("float32", mask, 2, heads, kv_heads, queries, keys, 16, 16, layout=layout, **more)


class OtherTensor(torch.Tensor):
    """A tensor that may hold anything."""


def sdpa(*arguments: torch.Tensor, **options: object) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*arguments, **options)


@pytest.mark.parametrize(
    ("sizes", "options", "problem"),
    [
        ({}, {"is_causal": True}, asked("causal")),
        ({"kv_heads": 2}, {"enable_gqa": True}, asked(kv_heads=2)),
        ({"seqlen_q": 4}, {"is_causal": True}, asked("causal", queries=4, keys=4, layout="other")),
        ({}, {"attn_mask": torch.zeros(8, 8), "dropout_p": 0.1}, asked(features=("mask", "dropout"))),
        ({"kv_heads": 1}, {}, asked(kv_heads=1)),  # broadcast
        ({"seqlen_k": 4}, {"is_causal": True}, None),
    ],
)
def test_a_call_of_pytorchs_function_is_its_problem_replaced_or_not(sizes, options, problem) -> None:
    inputs = tensors(**sizes)
    with kernels.recording() as seen:
        sdpa(*inputs, **options)
        with kernels.sdpa_replacement():
            sdpa(*inputs, **options)
            sdpa(*(x[:, None] for x in inputs), **options)
    assert seen.calls == ({problem: 3} if problem else {})
    assert sum(seen.unseen.values()) == (0 if problem else 3)


def test_calls_of_the_library_count_once_with_direction_dtype_and_features() -> None:
    q, k, v = tensors()
    packed, starts = torch.randn(8, 4, 16), torch.tensor([0, 3, 8], dtype=torch.int32)
    with kernels.recording() as seen:
        kernels.attention(q, k, v, causal=True, window_size=4)  # computed by PyTorch's function
        kernels.attention(q.clone().requires_grad_(), k, v, softcap=2.0)
        with torch.autocast("cpu", torch.bfloat16):
            kernels.attention(q, k, v)
        flash_attn.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
        feature_calls.attention_varlen(packed, packed, packed, starts, starts, 5, 5)
        call = transformers._Call(dispatch.attention, q, k, v, True, 4, None, {})
        transformers._by_mask(call, None, {})
        with pytest.raises(RuntimeError):
            kernels.attention(q, k[:, :, :, :8], v)  # refused, so no problem of the program
    assert seen.calls == {
        asked("causal window", window_size=4): 2,
        asked(features=("softcap",), direction="training"): 1,
        Problem("bfloat16", "full", 2, 4, 4, 8, 8, 16, 16, layout="contiguous"): 1,
        asked("causal"): 1,
        Problem("float32", "full", 2, 4, 4, 4, 4, 16, 16, features=("varlen",)): 1,
    }


def test_functions_of_flash_attention_are_their_problems(monkeypatch) -> None:
    ours = [each for each in inspect.getmembers(flash_attn, inspect.isroutine) if each[0].startswith("flash_attn_")]
    package = SimpleNamespace(**{name: functools.wraps(each)(lambda *_, **options: None) for name, each in ours})
    before, state = dict(vars(package)), torch.get_rng_state()
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    rows, starts = torch.ones(2, 8, 3, 4, 16), torch.tensor([0, 3, 8], dtype=torch.int32)
    q, k, v = rows.unbind(2)
    with kernels.recording() as seen:
        package.flash_attn_func(q, k, v, 0.1, causal=True, window_size=(3, 0))
        package.flash_attn_qkvpacked_func(rows.clone().requires_grad_(), softcap=2.0, alibi_slopes=torch.ones(4))
        package.flash_attn_varlen_qkvpacked_func(rows[0], starts, 5, 0.1)
        package.flash_attn_with_kvcache(q, k, v)
        package.flash_attn_func(q, k, v, window_size=(3, 1))
    assert vars(package) == before and torch.equal(torch.get_rng_state(), state)
    assert seen.calls == {
        asked("causal window", window_size=4, features=("dropout",), layout="other"): 1,
        asked(features=("softcap", "alibi_slopes"), direction="training", layout="other"): 1,
        Problem("float32", "full", 2, 4, 4, 4, 4, 16, 16, features=("varlen", "dropout")): 1,
    }
    assert seen.unseen == {"calls of FlashAttention over a cache": 1, "calls with windows of two widths": 1}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_calls_of_flex_attention_are_their_problems_by_what_their_masks_show() -> None:
    flex, documents = importlib.import_module("torch.nn.attention.flex_attention"), torch.arange(96) // 40
    inputs = [torch.randn(2, 4, 96, 16) for _ in range(3)]
    masks = (
        ("causal", {}, lambda b, h, q, k: q >= k),
        ("causal window", {"window_size": 20}, lambda b, h, q, k: (q >= k) & (q - k < 20)),
        ("window", {"window_size": 20}, lambda b, h, q, k: (q - k).abs() < 20),
        ("full", {"features": ("mask",)}, lambda b, h, q, k: documents[q] == documents[k]),
        ("full", {"features": ("mask",)}, lambda b, h, q, k: (q >= k) | (b == 1)),
        ("full", {"features": ("mask",)}, lambda b, h, q, k: (q >= k) & (h + q != 95 + 3)),
    )
    listed = flex.BlockMask.from_kv_blocks(
        torch.ones(1, 1, 3, dtype=torch.int32), torch.zeros(1, 1, 3, 3).int(), None, None, 32
    )
    with kernels.recording() as seen:
        for _, _, mask in masks:
            flex.flex_attention(*inputs, None, flex.create_block_mask(mask, 2, 4, 96, 96, "cpu", 32), 0.3)
        flex.flex_attention(*inputs, block_mask=listed, scale=torch.tensor(0.4))
        torch.compile(flex.flex_attention, backend="eager")(*inputs)
        flex.flex_attention(*inputs, lambda score, b, h, q, k: score * 2)
    problems = [asked(kind, queries=96, keys=96, **more) for kind, more, _ in masks]
    plain = asked(queries=96, keys=96, regime="captured")
    assert seen.calls == Counter([*problems, problems[3], plain])
    assert seen.scales == dict.fromkeys(problems, {0.3}) and seen.as_record()["calls"][0]["scales"] == [0.3]
    assert seen.unseen == {"calls of FlexAttention with a score_mod": 1}


def test_steps_are_those_of_the_optimizer_that_makes_most() -> None:
    often, once = (torch.optim.SGD([torch.zeros(1, requires_grad=True)]) for _ in range(2))
    with kernels.recording() as seen:
        _ = [often.step() for _ in range(3)], once.step()
    often.step()
    assert seen.steps == seen.as_record()["steps"] == 3 and kernels.recorder.Recording().steps == 0


def test_compiled_functions_are_counted_at_each_call() -> None:
    compiled = torch.compile(lambda x: sdpa(x, x, x) + 1, backend="eager")
    with kernels.recording() as seen:
        for _ in range(3):
            compiled(tensors()[0])
    assert seen.calls == {asked(regime="captured"): 3}


def test_threads_checkpoints_and_open_recordings_count_every_call() -> None:
    x = tensors()[0].requires_grad_()
    with kernels.recording() as outer:
        with kernels.recording() as inner:
            threads = [threading.Thread(target=lambda: [sdpa(x, x, x) for _ in range(50)]) for _ in range(4)]
            _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
        checkpoint(lambda y: sdpa(y, y, y).sin(), x, use_reentrant=False).sum().backward()
    assert inner.calls == {asked(direction="training"): 200}
    assert outer.calls == {asked(direction="training"): 202}  # the backward computes a forward again


def test_a_forked_process_records_nothing_and_the_recording_says_so() -> None:
    with kernels.recording() as seen:
        child = os.fork()
        if not child:
            os._exit(int(functional.scaled_dot_product_attention is not BEFORE[0] or bool(recorder._OPEN)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sdpa(*tensors())
    assert seen.calls == {asked(): 1} and seen.unseen == {recorder.FORKED: 1}


def test_what_is_not_seen_is_said_and_a_crash_keeps_the_calls() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 8, batch_first=True).eval()
    other = torch.randn(1, 2, 4, 8).as_subclass(OtherTensor)
    with pytest.raises(ZeroDivisionError), kernels.recording() as seen:
        with torch.no_grad():
            layer(torch.randn(1, 5, 16))
        sdpa(other, other, other)
        torch.func.grad(lambda x: sdpa(x, x, x).sum())(torch.randn(2, 4, 8, 16))
        sdpa(*tensors())
        with torch.no_grad():
            layer.train()(torch.randn(1, 5, 16))
        raise ZeroDivisionError
    of_layer = Problem("float32", "full", 1, 4, 4, 5, 5, 4, 4, layout="transposed", features=("dropout",))
    assert seen.calls == {asked(): 1, of_layer: 1}
    assert seen.modules == {asked(): set(), of_layer: {"MultiheadAttention"}}
    words = ("fast path", "other classes", "torch.func")
    assert len(seen.unseen) == 3 and all(any(word in said for said in seen.unseen) for word in words)
    record = seen.as_record()
    assert [(call["count"], call["modules"]) for call in record["calls"]] == [(1, []), (1, ["MultiheadAttention"])]
    assert "features" not in record["calls"][0]["problem"]
