"""The tool that times what a call costs the host."""

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
