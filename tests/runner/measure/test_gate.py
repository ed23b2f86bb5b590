"""Bugs and cheats that got past an earlier gate: each is caught, and the sound versions pass."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from kernels import reference
from kernels.decode.step import DecodeStep
from results.records import attention_case, decode_case
from runner.levels import decode, make_inputs, op
from runner.measure import stopwatch
from runner.measure.check import check, check_timed, make_oracle
from runner.validate.planted import cached, fused

HALF, E4M3 = {"dtype": "bfloat16"}, {"dtype": "bfloat16", "cache_dtype": "float8_e4m3fn"}
PLAIN = attention_case(batch=1, num_heads=4, num_kv_heads=2, seqlen=200, head_dim=32, causal=True, **HALF)
STEP = decode_case(batch=2, num_heads=8, num_kv_heads=4, context=300, head_dim=32, **HALF)
LONG = decode_case(batch=1, num_heads=2, num_kv_heads=1, context=65536, head_dim=16, **HALF)
QUANTIZED = decode_case(batch=2, num_heads=8, num_kv_heads=4, context=300, head_dim=32, **E4M3)


def reason(attention: Callable, case=PLAIN) -> str | None:
    """Return why the gate refuses an implementation, before timing or after it."""
    level, inputs = {"op": op, "decode": decode}[case.level], make_inputs(case, "cpu", 0)
    oracle, mode = make_oracle(inputs, 0, modes={level.PASSES[0].mode}), level.PASSES[0].mode
    found = check(attention, level.PASSES[0], oracle, fused=True).reason
    make, doubled = partial(level.call, attention, inputs, mode), partial(level.doubled, inputs, mode)
    return found or check_timed(make, ("out",), doubled, oracle, fused=True)


def step_by_step(
    *,
    out: Callable = lambda x: x,
    shorter: int = 0,
    first: int = 0,
    sequences: slice = slice(None),
    values: Callable = lambda x: x,
) -> Callable:
    """Return decoding by the definition, rounded as a fused kernel rounds, with one stage changed."""

    def plan(step: DecodeStep) -> Callable:
        changed = range(len(step.lengths))[sequences]

        def attend() -> torch.Tensor:
            k, v = (x.float() for x in (step.k_cache, step.v_cache))
            if step.k_scale is not None:
                k, v = k * step.k_scale[:, None, None], v * values(step.v_scale.clone())[:, None, None]
            found = []
            for at, length in enumerate(step.lengths):
                keys = slice(first, length - shorter) if at in changed else slice(length)
                given = (step.q[at : at + 1], k[at : at + 1, :, keys], v[at : at + 1, :, keys])
                options = {"causal": step.causal, "softmax_scale": step.scale, "stored_as": step.q.dtype}
                found.append(reference.attention(*given, **options).out)
            return out(torch.cat(found)).to(step.q.dtype)

        return attend

    return plan


def head(number: int, factor: float) -> Callable:
    """Return a change of one head, or of the factor of one head."""

    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        (x if x.dim() == 1 else x.transpose(0, 1))[number] *= factor
        return x

    return change


def sixteen(x: torch.Tensor) -> tuple:
    """Return the address and sixteen numbers of a tensor."""
    return x.data_ptr(), *x.detach().flatten()[:: x.numel() // 16][:16].tolist()


def by_sum(x: torch.Tensor) -> tuple:
    return x.data_ptr(), float(x.detach()[..., 0].sum())


def in_a_thread(q, k, v, **options):
    """Return memory that another thread fills later."""
    out = torch.zeros_like(q)

    def work() -> None:
        time.sleep(0.05)
        out.copy_(fused({})(q, k, v, **options))

    threading.Thread(target=work).start()
    return out


SOUND = {
    "fused": (fused({}), PLAIN),
    "fused, float16": (fused({}), replace(PLAIN, dtype="float16")),
    "fused, float32": (fused({}), replace(PLAIN, dtype="float32")),
    "step": (step_by_step(), STEP),
    "step of e4m3": (step_by_step(), QUANTIZED),
    "long step": (step_by_step(), LONG),
}
CAUGHT = {
    "scale 0.1 % too large": (fused({"scale": lambda x: x * 1.001}), PLAIN),
    "scale 0.1 % too small": (fused({"scale": lambda x: x * 0.999}), PLAIN),
    "scores clipped at 6": (fused({"scores": lambda x: x.clamp(max=6)}), PLAIN),
    "scores clipped at 50": (fused({"scores": lambda x: x.clamp(max=50)}), PLAIN),
    "one head of out 2 % too large": (fused({"out": head(3, 1.02)}), PLAIN),
    "cached by address and 16 numbers": (cached(sixteen)(fused({})), PLAIN),
    "cached by address and sum of q": (cached(by_sum)(fused({})), PLAIN),
    "filled later by a thread": (in_a_thread, PLAIN),
    "e4m3: out 1 % too large": (step_by_step(out=lambda x: x * 1.01), QUANTIZED),
    "e4m3: one head 5 % too large": (step_by_step(out=head(3, 1.05)), QUANTIZED),
    "e4m3: scale of v of one head 2 % off": (step_by_step(values=head(1, 1.02)), QUANTIZED),
    "e4m3: one key short": (step_by_step(shorter=1), QUANTIZED),
    "one key short of 65536": (step_by_step(shorter=1), LONG),
    "first key of 65536 left out": (step_by_step(first=1), LONG),
    "one key short in one sequence": (step_by_step(shorter=1, sequences=slice(1, 2)), STEP),
    "step: one head 2 % too large": (step_by_step(out=head(5, 1.02)), STEP),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_version_passes(name: str) -> None:
    assert reason(*SOUND[name]) is None


@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught(name: str) -> None:
    assert reason(*CAUGHT[name])


def test_a_replaced_function_for_timing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopwatch.replaced_hooks() == []
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 0.0)
    assert stopwatch.replaced_hooks() == ["time.perf_counter", "Event.elapsed_time"]
