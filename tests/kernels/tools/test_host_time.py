"""The tool that times what a call costs the host."""

import torch

import kernels
from kernels import routes
from kernels.tools import host_time


def test_our_plans_are_timed_without_launches_and_nothing_stays_replaced(monkeypatch, capsys):
    q = torch.ones(1, 1, 16, 16)
    with host_time.launching_nothing():
        assert type(routes.route_of(q, q, q, True, 0, None)).__name__ == "Route"
    assert torch.equal(kernels.attention(q, q, q, causal=True), q)
    assert routes.route_of(q, q, q, True, 0, None) is None
    for name in ("ROWS", "CALLS"):
        monkeypatch.setattr(host_time, name, 1)
    host_time.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", ")[0] for line in lines[::2]] == ["x".join(map(str, shape)) for shape in host_time.SHAPES]
    assert all(line.endswith(" us") for line in lines)
