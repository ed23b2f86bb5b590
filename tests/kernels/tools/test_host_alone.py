"""The Python of a call alone: our path is taken without a GPU, and afterwards nothing is replaced."""

import torch

import kernels
from kernels import routes
from kernels.tools import host_alone


def test_our_plans_are_timed_and_nothing_stays_replaced(capsys) -> None:
    q = torch.ones(1, 1, 16, 16)
    with host_alone.launching_nothing():
        assert type(routes.route_of(q, q, q, True, 0, None)).__name__ == "Route"
    assert torch.equal(kernels.attention(q, q, q, causal=True), q)
    assert routes.route_of(q, q, q, True, 0, None) is None
    host_alone.main(["--rows", "1", "--calls", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["1x1x256x64", "1x1x2048x64", "1x8x128x128"]
    assert all(line.count(" us") == 3 for line in lines)
