"""Two GPUs of one host: each name finds its own, and a worker turns to its GPU before it asks anything of one."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from kernels import registry
from runner import plan, sweeps, worker
from runner.machine import devices, environment
from runner.plan import chosen
from runner.protocol import PROTOCOLS

TWO = [SimpleNamespace(name="NVIDIA H200", uuid=f"0000-{index}") for index in range(2)]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """A host with two GPUs that are not there; the answer is what was asked of them, in its order."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", TWO.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.append(f"set {device}"))
    return found


def test_each_gpu_has_a_lock_and_a_uuid_of_its_own(asked) -> None:
    first, second = devices.resolve("cuda:0"), devices.resolve("cuda:1")
    assert (first.id, second.id) == ("cuda:0", "cuda:1")
    assert (first.uuid, second.uuid) == ("0000-0", "0000-1")
    assert first.lock != second.lock
    assert devices.resolve(None) == devices.resolve("cuda") == first
    with pytest.raises(devices.Refused, match="Unknown device 'cuda:2'. Available: cuda:0, cuda:1, cpu"):
        devices.resolve("cuda:2")


def test_a_worker_turns_to_its_gpu_before_it_plans(asked, monkeypatch) -> None:
    monkeypatch.setattr(plan, "plan", lambda sweep, device, *_: asked.append(f"plan {device.id}") or [])
    monkeypatch.setattr(environment, "describe", lambda device: asked.append(f"describe {device.id}") or {})
    monkeypatch.setattr(worker, "set_interpreter", lambda device_type: None)
    said: list[dict] = []
    made = worker.Worker(SimpleNamespace(send=said.append))
    request = {"device": "cuda:1", "implementations": None, "protocol": "standard", "seed": 0, "plan": True}
    made._open(request | {"sweep": sweeps.to_json(sweeps.get("quick"))})
    assert asked == ["set cuda:1", "plan cuda:1", "describe cuda:1"]
    assert said[0]["device"] == {"id": "cuda:1", "lock": devices.resolve("cuda:1").lock, "type": "cuda"}


def test_reasons_are_asked_for_while_the_gpu_of_the_plan_is_the_current_one(asked, monkeypatch) -> None:
    current = ["cuda:0"]

    @contextmanager
    def turned_to(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    def reason(case, name, target) -> str:
        asked.append(current[-1])
        return "no"

    monkeypatch.setattr(torch.cuda, "device", turned_to)
    monkeypatch.setattr(registry, "describe_device", lambda device: registry.Device("cuda", "NVIDIA H200"))
    monkeypatch.setattr(plan, "_reason_against", reason)
    sweep = chosen(sweeps.get("quick"), ("torch_naive",))
    plan.plan(sweep, devices.resolve("cuda:1"), PROTOCOLS["quick"], 0)
    assert set(asked) == {"cuda:1"}
    assert current == ["cuda:0"]
