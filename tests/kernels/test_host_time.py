import time

import pytest

from kernels import host_time


def test_a_call_of_known_length_is_measured_as_such(monkeypatch):
    monkeypatch.setattr(host_time, "CALLS", 5)
    monkeypatch.setattr(host_time, "WARM_UP", 1)
    calls = {"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.004)}
    times = host_time.host_times_us(calls, wait=lambda: None, rows=3)
    assert 1_000 <= times["short"] < times["long"]
    assert times["long"] >= 4_000


def test_what_a_row_leaves_undone_is_waited_for_within_it(monkeypatch):
    monkeypatch.setattr(host_time, "CALLS", 5)
    monkeypatch.setattr(host_time, "WARM_UP", 1)
    times = host_time.host_times_us({"no-op": lambda: None}, wait=lambda: time.sleep(0.01), rows=3)
    assert times["no-op"] >= 2_000


def test_both_modes_call_both_attentions_and_give_gradients():
    calls = host_time.calls_of(16, device="cpu")
    assert set(calls) == {"forward", "forward + backward"}
    for name in ("kernels.attention", "scaled_dot_product_attention"):
        assert calls["forward"][name]().shape == (*host_time.SHAPE, 16)
        assert len(calls["forward + backward"][name]()) == 3


def test_a_first_call_runs_in_a_process_of_its_own():
    assert 0 < host_time.first_call_s("float32", 16, 32, device="cpu") < 60


def test_without_a_gpu_the_command_says_why_it_measures_nothing(monkeypatch):
    monkeypatch.setattr("sys.argv", ["host_time"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="No CUDA device"):
        host_time.main()
