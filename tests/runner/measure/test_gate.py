"""Bugs and cheats that got past an earlier gate: each is caught, and the sound versions pass."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from kernels import reference, registry
from kernels.decode.step import DecodeStep
from results.records import attention_case, decode_case
from runner.levels import decode, make_inputs, op
from runner.measure import stopwatch
from runner.measure.check import check, check_timed, make_oracle
from runner.validate import planted
from runner.validate.planted import cached, fused
from tests.cases import cases

DEVICE = "cpu"  # changed by `device`
CASES = {
    name: (decode_case if "context" in said else attention_case)(**{"dtype": "bfloat16"} | said)
    for name, said in cases(__file__, "CASES").items()
}


def reason(
    attention: Callable, case=CASES["plain"], mode: str | None = None, *, fused: bool = True, seed: int = 0
) -> str | None:
    """Return why the gate refuses an implementation, before timing or after it."""
    level, inputs = {"op": op, "decode": decode}[case.level], make_inputs(case, DEVICE, seed)
    checked = next(p for p in level.PASSES if mode in (None, p.mode))
    oracle = make_oracle(inputs, seed, modes={checked.mode})
    found = check(attention, checked, oracle, fused=fused).reason
    make, doubled = partial(level.call, attention, inputs, checked.mode), partial(level.doubled, inputs, checked.mode)
    return found or check_timed(make, checked.tensors, doubled, oracle, fused=fused)


def step_by_step(*, shorter: int = 0, first: int = 0, sequences: tuple = (), **stages: Any) -> Callable:
    """Return decoding by the definition, rounded as a fused kernel rounds, with its `out` or `values` changed."""
    out, values = (planted.change_of(stages.get(stage, {})) for stage in ("out", "values"))

    def plan(step: DecodeStep) -> Callable:
        changed = sequences or range(len(step.lengths))

        def attend() -> torch.Tensor:
            k, v = (x.float() for x in (step.k_cache, step.v_cache))
            if step.k_scale is not None:
                k, v = k * step.k_scale[:, None, None], v * values(step.v_scale)[:, None, None]
            found = []
            for at, length in enumerate(step.lengths):
                keys = slice(first, length - shorter) if at in changed else slice(length)
                given = (step.q[at : at + 1], k[at : at + 1, :, keys], v[at : at + 1, :, keys])
                options = {"causal": step.causal, "softmax_scale": step.scale, "stored_as": step.q.dtype}
                found.append(reference.attention(*given, **options).out)
            return out(torch.cat(found)).to(step.q.dtype)

        return attend

    return plan


LENGTHS: dict[str, Callable[[DecodeStep, int], int]] = {  # what a wrong step takes for the length of a sequence
    "first": lambda step, length: min(step.lengths[0], *step.lengths),
    "page": lambda step, length: max(1, length - 16) if length == step.longest else length,
    "short": lambda step, length: length - 1,
    "longest": lambda step, length: step.longest,
    "room": lambda step, length: step.k_cache.shape[2],
}


def changed_step(said: dict) -> Callable:
    """Return sound decoding of a step that is read wrongly."""
    swap = {"rows": lambda t: t.flip(0), "two": lambda t: t[:, [*range(14), 15, 14, *range(16, t.shape[1])]]}
    swap["last"] = lambda t: torch.cat([t[:, 1:2], t[:, 1:]], 1)
    swap["identity"] = lambda t: torch.arange(t.numel(), dtype=torch.int32).view_as(t)

    def plan(step: DecodeStep) -> Callable:
        changes = {name: said[name] for name in ("window_size", "causal", "softmax_scale") if name in said}
        if "lengths" in said:
            changes["lengths"] = tuple(LENGTHS[said["lengths"]](step, length) for length in step.lengths)
            changes["cache_seqlens"] = torch.tensor(changes["lengths"], dtype=torch.int32, device=step.q.device)
        if "page_table" in said:
            changes["page_table"] = swap[said["page_table"]](step.page_table)
        if said.get("swapped"):
            changes |= {"k_scale": step.v_scale, "v_scale": step.k_scale}
        if said.get("rolled"):
            changes["v_scale"] = step.v_scale.roll(1)
        if said.get("one_scale"):
            changes["k_scale"] = step.k_scale.mean().expand_as(step.k_scale)
        if said.get("other_heads"):
            changes |= {"k_cache": step.k_cache.flip(1), "v_cache": step.v_cache.flip(1)}
        attend = registry.implementations("decode")["torch_naive"].attention(replace(step, **changes))
        return (lambda: attend() + 0 * step.v_cache[:, :1, -1:]) if said.get("weighs_with_zero") else attend

    return plan


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


CAUGHT = {
    "cached by address and 16 numbers": cached(sixteen)(fused({})),
    "cached by address and sum of q": cached(by_sum)(fused({})),
    "filled later by a thread": in_a_thread,
}


# Bugs that no audit named: changed stages, wrongly read steps, and cheats.
planted.CHANGES.update(
    largest=lambda p, count: p.where(p >= p.topk(count).values[..., -1:], 0.0),
    own=lambda p, share: p * (1 - (1 - share) * torch.eye(p.shape[-1], device=p.device)),
    softcap=lambda scores, cap: cap * torch.tanh(scores / cap),
    repeated=lambda x, times: x[..., ::times, :].repeat_interleave(times, -2),
)
STAGES, STEPS, BY_STEP = (cases(__file__, name) for name in ("STAGES", "STEPS", "BY_STEP"))
BACKWARD = ("ds", "delta", "dout", "dq", "dk", "dv", "groups")


def remembering(answer: Callable) -> Callable:
    """Return the sound attention around which `answer` gets the call, its inputs and what it remembers."""
    return planted.around(answer)(fused({}))


def scaled_from_the_first(call, inputs, known):
    """Return the first result of an address, times what v has grown by since."""
    v = inputs[2].detach()
    out, size = known.setdefault(v.data_ptr(), (call(), v.abs().sum()))
    return out * (v.abs().sum() / size).to(out.dtype)


def of_old_copies(call, inputs, known):
    """Return the result of copies that were taken at the first call of an address, as a captured graph may."""
    return fused({})(*known.setdefault(inputs[2].data_ptr(), [x.detach().clone() for x in inputs]), causal=True)


def over_q(call, inputs, known):
    """Return out in the memory of q."""
    inputs[0].data.copy_(call().detach())
    return inputs[0].detach()


def right_at_first(call, inputs, known):
    """Return the right result in the first 15 calls."""
    known["calls"] = known.get("calls", 0) + 1
    return call() * (1.0 if known["calls"] <= 15 else 1.02)


CHEATS = {
    "first result, scaled as v grows": scaled_from_the_first,
    "of copies of the first inputs": of_old_copies,
    "out in the memory of q": over_q,
    "wrong from the sixteenth call on": right_at_first,
    "a result in float32": lambda call, *_: call().float(),
}


def refused(name: str, seed: int = 0) -> str | None:
    """Return why the gate refuses a bug of either audit or of our own."""
    if name in CAUGHT:
        return reason(CAUGHT[name], seed=seed)
    if name in BY_STEP:
        said = dict(BY_STEP[name])
        return reason(case=CASES[said.pop("case")], attention=step_by_step(**said), seed=seed)
    if name in CHEATS:
        return reason(remembering(CHEATS[name]), seed=seed)
    if name in STEPS:
        return reason(changed_step(STEPS[name]), CASES[STEPS[name]["case"]], fused=False, seed=seed)
    said = {"case": "plain", **STAGES[name]}
    case = CASES[said.pop("case")]
    mode = "bwd" if set(said) <= set(BACKWARD) else "fwd"
    return reason(fused({stage: planted.change_of(change) for stage, change in said.items()}), case, mode, seed=seed)


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "DEVICE", request.param)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["plain", "float16", "float32", "step", "quantized", "long"])
def test_a_sound_version_passes(name: str) -> None:
    case = CASES[name]
    assert reason(step_by_step() if case.level == "decode" else fused({}), case) is None


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", sorted({case["case"] for case in STEPS.values()}))
def test_a_sound_step_passes(name: str) -> None:
    assert reason(changed_step({}), CASES[name], fused=False) is None


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", [*CAUGHT, *BY_STEP, *CHEATS, *STEPS, *STAGES])
def test_a_bug_is_caught(name: str) -> None:
    said = refused(name)
    assert said
    assert "relative error nan" in said or not STEPS.get(name, {}).get("reads_nan")  # what is not in use holds NaN


def test_more_bugs_are_our_own_than_were_asked_for() -> None:
    assert len({*CHEATS, *STEPS, *STAGES} - {bug.name for bug in planted.PLANTED}) >= 43


def test_a_replaced_function_for_timing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopwatch.replaced_hooks() == []
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 0.0)
    assert stopwatch.replaced_hooks() == ["time.perf_counter", "Event.elapsed_time"]
