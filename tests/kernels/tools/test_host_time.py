import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.tools import host_time


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
