"""The stopwatches, tried on calls of known length, and the sampling that uses them."""

import time
from collections.abc import Callable

import pytest
import torch

from runner.measure.stopwatch import EagerStopwatch, KernelStopwatch, sample_round, settle
from runner.protocol import PROTOCOLS, Protocol


def busy(milliseconds: float) -> Callable[[], None]:
    """A call that keeps the processor for that long."""

    def call() -> None:
        end = time.perf_counter() + milliseconds / 1e3
        while time.perf_counter() < end:
            pass

    return call


def least_in_turns(*samplings: Callable[[int], list[float]]) -> list[float]:
    """Return the least of 24 times of each sampling, taken in turns: other processes can share the card."""
    turns = [[min(sampling(4)) for sampling in samplings] for _ in range(6)]
    return [min(times) for times in zip(*turns, strict=True)]


class Counting:
    """A stopwatch of prepared times."""

    flag = None

    def __init__(self, times: Callable[[int], float]) -> None:
        self.times, self.taken = times, 0

    def sample(self, call: Callable[[], object], count: int) -> list[float]:
        found = [self.times(self.taken + i) for i in range(count)]
        self.taken += count
        return found


def test_a_plain_call_is_timed_right_to_microseconds_with_its_wait_for_the_device() -> None:
    samples = EagerStopwatch().sample(busy(2.0), 30)
    assert len(samples) == 30
    assert min(samples) >= 2.0
    assert sorted(samples)[3] < 2.1  # the few that nobody interrupted
    assert sorted(EagerStopwatch().sample(lambda: None, 50))[25] < 0.01
    samples = EagerStopwatch(synchronize=busy(1.0)).sample(lambda: None, 5)
    assert min(samples) >= 1.0


@pytest.mark.parametrize(
    ("noise", "count", "limits"),
    [(0, 20, {"rounds": 1, "cap_ms": 1e6}), (1, 30, {"rounds": 3, "cap_ms": 1e6, "most": 90}), (1, 20, {"rounds": 1})],
)
def test_a_steady_call_stops_at_the_least_samples_and_a_noisy_one_at_the_most_or_at_the_cap(noise, count, limits):
    protocol = Protocol("test", **{"cap_ms": 0.0} | limits)
    assert len(sample_round(Counting(lambda i: 1.0 + noise * (i % 2)), lambda: None, [], protocol)) == count


def test_samples_of_earlier_rounds_count_towards_the_precision() -> None:
    stopwatch = Counting(lambda i: 1.0)
    protocol = Protocol("test", rounds=3, cap_ms=1e6)
    assert len(sample_round(stopwatch, lambda: None, [1.0] * 7, protocol)) == 7
    assert len(sample_round(stopwatch, lambda: None, [1.0, 3.0] * 40, protocol)) > 10


@pytest.mark.parametrize(
    ("call_ms", "quick", "standard"),
    [(0.01, 20, 7), (10.0, 20, 7), (25.0, 8, 4), (400.0, 6, 2), (900.0, 3, 2), (5000.0, 2, 2)],
)
def test_slow_calls_are_sampled_less_but_enough_for_an_interval(call_ms: float, quick: int, standard: int) -> None:
    assert PROTOCOLS["quick"].least_of_round(call_ms) == quick
    assert PROTOCOLS["standard"].least_of_round(call_ms) == standard
    assert PROTOCOLS["standard"].rounds * PROTOCOLS["standard"].least_of_round(call_ms) >= 6


def test_a_plain_calls_first_sample_counts() -> None:
    calls: list[None] = []
    protocol = Protocol("test", rounds=1, cap_ms=0.0)
    assert len(sample_round(EagerStopwatch(), lambda: calls.append(None), [], protocol)) == len(calls) == 20


@pytest.mark.parametrize(("call_ms", "samples"), [(0.01, 6), (400.0, 2), (5000.0, 1)])
def test_a_part_of_a_call_is_sampled_shortly(call_ms: float, samples: int) -> None:
    assert PROTOCOLS["standard"].for_a_share().least_of_round(call_ms) == samples


@pytest.mark.gpu
def test_kernel_time_leaves_the_hosts_time_out() -> None:
    x = torch.randn(2048, 2048, device="cuda")
    slow_host, work = busy(2.0), lambda: x @ x

    def call() -> None:
        slow_host()
        work()

    sample = KernelStopwatch("cuda:0").sample
    plain, with_host = least_in_turns(lambda n: sample(work, n), lambda n: sample(call, n))
    assert with_host == pytest.approx(plain, rel=0.1)
    assert min(EagerStopwatch(torch.cuda.synchronize).sample(call, 5)) >= 2.0 + 0.5 * plain


@pytest.mark.gpu
def test_kernel_time_of_a_long_spin_is_what_the_hosts_clock_says() -> None:
    settle("cuda:0", lambda: None, None)

    def call() -> None:
        torch.cuda._sleep(100_000_000)

    device, host = KernelStopwatch("cuda:0"), EagerStopwatch(torch.cuda.synchronize)
    by_events, by_host = least_in_turns(lambda n: device.sample(call, n), lambda n: host.sample(call, n))
    assert by_events == pytest.approx(by_host, rel=0.02)


@pytest.mark.gpu
def test_kernel_time_of_nothing_is_a_few_microseconds() -> None:
    assert sorted(KernelStopwatch("cuda:0").sample(lambda: None, 30))[15] < 0.01


@pytest.mark.gpu
def test_kernel_time_of_work_on_another_stream_that_is_waited_for_is_the_works() -> None:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()

    def elsewhere() -> None:
        side.wait_stream(current)
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
        current.wait_stream(side)

    sample = KernelStopwatch("cuda:0").sample
    here, there = least_in_turns(
        lambda n: sample(lambda: torch.cuda._sleep(2_000_000), n), lambda n: sample(elsewhere, n)
    )
    assert there == pytest.approx(here, rel=0.05)


@pytest.mark.gpu
def test_a_call_that_waits_for_the_device_is_flagged() -> None:
    stopwatch = KernelStopwatch("cuda:0")
    x = torch.ones(16, device="cuda")
    stopwatch.sample(lambda: x.sum().item(), 3)
    assert stopwatch.flag == "launches not hidden"


@pytest.mark.gpu
def test_a_gpu_that_was_held_back_is_waited_for() -> None:
    clocks = iter([1000.0, 1500.0, 1600.0, 1700.0, 1800.0, 1850.0, 1900.0, 1960.0])
    settle("cuda:0", lambda: next(clocks), 1980.0)
    assert next(clocks, None) is None
    asked = []
    settle("cuda:0", lambda: asked.append(1), None)
    assert asked == []


def test_a_clock_that_was_full_for_a_while_is_looked_at_once_and_a_cpu_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    asked = []
    settle("cuda:0", lambda: asked.append(1) or 1980.0, 1980.0, steady=True)
    assert len(asked) == 1
    clocks = iter([1500.0, 1980.0])
    settle("cuda:0", lambda: next(clocks), 1980.0, steady=True)
    assert next(clocks, None) is None
    settle("cpu", lambda: pytest.fail("it has no SM clock"), 1980.0)
