"""What a process waited for a core: of its own threads, while the block runs, and how much of a median it may be."""

import os
import subprocess
import sys
import time

import pytest

from results.compare import verdicts
from results.records import Measurement, Status, attention_case
from runner.machine import schedstat
from runner.machine.schedstat import sentence, waiting_share
from runner.measure.stopwatch import EagerStopwatch

CASE = attention_case(batch=1, num_heads=1, seqlen=32, head_dim=16, dtype="float32", causal=False)


def test_one_slow_sample_of_many_is_not_in_the_median_and_most_of_them_are() -> None:
    assert waiting_share([1.0] * 9 + [80.0], [0.0] * 9 + [79.0]) is None
    assert waiting_share([1.0] * 4 + [80.0] * 6, [0.0] * 4 + [79.0] * 6) == pytest.approx(1 - 1 / 80)
    assert waiting_share([10.0] * 5, [0.05] * 5) is None, "half a percent is next to nothing"
    assert waiting_share([10.0] * 5, [25.0] * 5) == 1.0, "threads that wait at the same time"
    assert waiting_share([0.1] * 5, [0.02] * 5) is None, "what being woken takes on a quiet host"


def test_what_was_not_watched_says_nothing_and_what_is_noted_is_what_a_verdict_reads() -> None:
    assert waiting_share([1.0, 2.0], []) is None
    stopwatch = EagerStopwatch()
    stopwatch.sample(lambda: None, 3)
    assert stopwatch.take_waits() == []
    row = Measurement("r", CASE, "x", "latency_ms", Status.OK, value=1.0, mode="fwd", note=sentence(0.374))
    assert verdicts.waiting(row) == pytest.approx(0.374)


def test_a_watched_stopwatch_has_a_wait_for_each_sample_and_gives_it_once() -> None:
    stopwatch = EagerStopwatch(watched=True)
    stopwatch.sample(lambda: None, 3)
    stopwatch.sample(lambda: None, 2)
    waits = stopwatch.take_waits()
    assert len(waits) == 5 and min(waits) >= 0
    assert stopwatch.take_waits() == []


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count")
def test_a_process_that_shares_its_core_with_another_waits_about_half_of_the_time() -> None:
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            os.sched_setaffinity(0, [core])
            begun = time.perf_counter()
            with schedstat.watch() as cores:
                while time.perf_counter() - begun < 0.4:
                    pass
                waited = cores.lap_ms()
        finally:
            os.sched_setaffinity(0, before)
            other.kill()
    assert waited > 60, "of 400 ms"
