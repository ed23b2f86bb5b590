"""The tool that times what a call costs the host."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernels
from kernels import routes
from kernels.tools import host_time


def test_what_a_row_leaves_undone_is_the_wall_time_not_the_hosts(monkeypatch):
    clock = [0.0]

    def takes(seconds):
        clock[0] += seconds

    monkeypatch.setattr(host_time.time, "perf_counter", lambda: clock[0])
    calls = {"short": lambda: takes(0.001), "long": lambda: takes(0.004)}
    times = host_time.times_us(calls, wait=lambda: takes(0.2), rows=3)
    assert times == {
        name: pytest.approx((us, us + 0.2e6 / host_time.CALLS)) for name, us in (("short", 1000), ("long", 4000))
    }


@pytest.mark.parametrize("shape", [(1, 1, 1, 17, 129, 48), (1, 8, 2, 1, 64, 16)], ids=str)
def test_both_attentions_are_called_the_same_way_and_give_gradients(shape):
    calls = host_time.calls_of(shape, device="cpu")
    assert list(calls) == (["forward", "forward + backward"] if shape[3] > 1 else ["forward"])
    ours, theirs = (call() for call in calls["forward"].values())
    torch.testing.assert_close(ours, theirs)
    for call in calls.get("forward + backward", {}).values():
        assert [x.shape[2] for x in call()] == [17, 129, 129]


def test_the_first_forward_and_backward_run_in_a_process_of_their_own():
    forward, backward = host_time.first_call_s("float32", 16, 32, device="cpu")
    assert 0 < forward < 60 and 0 < backward < 60


def test_a_first_call_finds_an_empty_cache(monkeypatch):
    caches = []

    def run(command, env, **keywords):
        caches.append(env["TRITON_CACHE_DIR"])
        assert list(Path(caches[-1]).iterdir()) == []
        return SimpleNamespace(stdout="a warning\n1.5 2.25\n")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/what/is/compiled/already")
    assert host_time.first_call_s("float32", 16, 32) == host_time.first_call_s("float32", 16, 32) == (1.5, 2.25)
    assert len({*caches, "/what/is/compiled/already"}) == 3


def test_first_calls_alone_are_printed_when_asked_for(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr(host_time, "first_call_s", lambda dtype, head_dim, seqlen: (1.5, 2.25))
    host_time.main(["--first-call"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a GPU" and len(printed) == 1 + len(host_time.FIRST_CALLS)
    assert printed[1] == "first call, 1x8x512x64, bfloat16: forward 1.5 s, backward 2.2 s, both 3.8 s"


def test_without_a_gpu_the_command_says_why_it_measures_nothing(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="No CUDA device"):
        host_time.main([])


def test_our_plans_are_timed_without_launches_and_nothing_stays_replaced(monkeypatch, capsys):
    q = torch.ones(1, 1, 16, 16)
    with host_time.launching_nothing():
        assert type(routes.route_of(q, q, q, True, 0, None)).__name__ == "Route"
    assert torch.equal(kernels.attention(q, q, q, causal=True), q)
    assert routes.route_of(q, q, q, True, 0, None) is None
    for name in ("ROWS_ALONE", "CALLS_ALONE"):
        monkeypatch.setattr(host_time, name, 1)
    host_time.main(["--alone"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", ")[0] for line in lines[::2]] == ["x".join(map(str, shape)) for shape in host_time.ALONE]
    assert all(line.endswith(" us") for line in lines)
